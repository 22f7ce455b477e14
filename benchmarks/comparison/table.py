"""Tables of medians, for the terminal and the documentation."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comparison.facts import sentence
from comparison.measure import Timing
from comparison.scans import JOBS, STREAMING

OURS, BARE_LOOP = "dask-tiled", "bare loop"
LIBERTEM = ("LiberTEM inline", "LiberTEM workers")
LIMITS = ("page cache", "memory copy")
PEERS = {"LiberTEM": LIBERTEM, "RosettaSciIO": ("RosettaSciIO",)}
COLUMNS = (OURS, *LIBERTEM, "RosettaSciIO", "numpy.memmap", *LIMITS)
NOTHING = "-"

Row = dict[str, Timing]


def rows_of(timings: Iterable[Timing]) -> dict[tuple[str, str], Row]:
    """Group timings by job and format; each row maps readers to timings."""
    rows: dict[tuple[str, str], Row] = {}
    for timing in timings:
        rows.setdefault((timing.job, timing.format), {})[timing.reader] = timing
    return rows


def median(row: Mapping[str, Timing], *names: str) -> float | None:
    """Return the median time of a reader, or of the fastest of several readers."""
    found = [row[name].seconds for name in names if name in row and row[name].seconds]
    return min(map(statistics.median, found)) if found else None


def speedup(row: Mapping[str, Timing], *names: str) -> float | None:
    """Return the time of the fastest of the other readers divided by that of dask-tiled."""
    theirs, ours = median(row, *names), median(row, OURS)
    return None if theirs is None or ours is None else theirs / ours


def cell(timing: Timing | None, *, per_second: bool) -> str:
    """Format a median: GB/s of the file, or milliseconds."""
    if timing is None or not timing.seconds:
        return "wrong" if timing is not None and timing.note.startswith("wrong") else NOTHING
    seconds = statistics.median(timing.seconds)
    if per_second:
        return f"{timing.nbytes / seconds / 1e9:.3g}"
    return f"{1e3 * seconds:.3g}"


def ratio(value: float | None) -> str:
    """Format a ratio."""
    return NOTHING if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def table(
    rows: Mapping[tuple[str, str], Row], job: str, *, per_second: bool
) -> tuple[list[str], list[list[str]]]:
    """Return the table of one job: the header and a row for each format."""
    here = {fmt: row for (row_job, fmt), row in rows.items() if row_job == job}
    names = [name for name in COLUMNS if any(name in row for row in here.values())]
    head = ["format", *names, "/ LiberTEM", "/ RosettaSciIO"]
    if per_second:
        head.append("/ page cache")
    body = []
    for fmt, row in here.items():
        cells = [cell(row.get(name), per_second=per_second) for name in names]
        ratios = [ratio(speedup(row, *LIBERTEM)), ratio(speedup(row, "RosettaSciIO"))]
        if per_second:
            ratios.append(ratio(speedup(row, "page cache")))
        body.append([fmt, *cells, *ratios])
    return head, body


def notes(timings: Sequence[Timing]) -> list[str]:
    """List unsupported jobs and reasons, with one line for the jobs that share a reason."""
    every = {timing.job for timing in timings}
    shared: dict[tuple[str, str, str], list[str]] = {}
    for timing in timings:
        if timing.note:
            key = (timing.format, timing.reader, timing.note)
            shared.setdefault(key, []).append(timing.job)
    lines = []
    for (fmt, reader, note), jobs in shared.items():
        which = "" if every <= set(jobs) else f" ({', '.join(dict.fromkeys(jobs))})"
        lines.append(f"{fmt}, {reader}{which}: {note}")
    return lines


def print_tables(timings: Sequence[Timing], facts: Mapping[str, str]) -> None:
    """Print all tables to the terminal."""
    console = make_console()
    console.print(sentence(facts), highlight=False)
    for threads in dict.fromkeys(timing.threads for timing in timings):
        rows = rows_of(timing for timing in timings if timing.threads == threads)
        for job in dict.fromkeys(job for job, _ in rows):
            per_second = job in STREAMING
            head, body = table(rows, job, per_second=per_second)
            unit = "GB/s" if per_second else "ms"
            print_table(console, f"{JOBS[job]}, {cores(threads)}, {unit}", head, body)
    for note in notes(timings):
        console.print(note, markup=False, highlight=False)


def make_console() -> Any:
    """Return a console, wide if the output is not a terminal."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 160
    return console


def print_table(
    console: Any, title: str, head: Sequence[str], body: Iterable[Sequence[str]]
) -> None:
    """Print one table with numbers aligned to the right."""
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    for k, name in enumerate(head):
        shown.add_column(name, justify="right" if k else "left")
    for line in body:
        shown.add_row(*map(escape, line))
    console.print(shown)


def csv_table(title: str, head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """Format a table for the documentation, with line breaks only where needed."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *body])
    options = ["   :class: speeds", "   :header-rows: 1"]
    lines = [f"   {line}" for line in text.getvalue().splitlines()]
    return [f".. csv-table:: {title}".rstrip(), *options, "", *lines, ""]


def write_table(
    path: Path,
    command: str,
    head: Sequence[str],
    body: Iterable[Sequence[str]],
    facts: Mapping[str, str],
    *before: str,
) -> None:
    """Write a table to the documentation, between paragraphs and the facts of the run."""
    lines = [f".. Written by benchmarks/{command}; do not edit.", ""]
    lines += [line for text in before for line in (text, "")]
    lines += [*csv_table("", head, body), sentence(facts), ""]
    path.write_text("\n".join(lines))


def cores(threads: str) -> str:
    """Format a number of cores."""
    return {"1": "1 core", "all": "all cores"}.get(threads, f"{threads} cores")


def overview(timings: Sequence[Timing]) -> tuple[list[str], list[list[str]]]:
    """Return one table of all formats and jobs: the header and a row for each format.

    A cell holds the speed of dask-tiled and the times of the others divided by its time.
    """
    rows = rows_of(timings)
    jobs = list(dict.fromkeys(job for job, _ in rows))
    body = []
    for fmt in dict.fromkeys(fmt for _, fmt in rows):
        cells = [fmt]
        for job in jobs:
            row = rows.get((job, fmt), {})
            own = cell(row.get(OURS), per_second=job in STREAMING)
            ratios = (times(row, *names) for names in PEERS.values())
            cells.append(" ".join([f"**{own}**", *ratios]))
        body.append(cells)
    heads = [JOBS[job].capitalize() + ("" if job in STREAMING else ", ms") for job in jobs]
    return ["", *heads], body


def times(row: Row, *names: str) -> str:
    """Format the time of others divided by that of dask-tiled, or a mark if they cannot do it."""
    value = speedup(row, *names)
    if value is None:
        wrong = any(name in row and row[name].note.startswith("wrong") for name in names)
        return "wrong" if wrong else NOTHING
    return f"{value:.1f}x" if value < 10 else f"{value:.0f}x"


def summary(timings: Sequence[Timing]) -> str:
    """Return a sentence on the speedup for whole files: geometric mean and minimum."""
    found = []
    whole = [timing for timing in timings if timing.job in STREAMING]
    rows = rows_of(whole).values()
    for peer, names in PEERS.items():
        ratios = [value for row in rows if (value := speedup(row, *names)) is not None]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            least = min(ratios)
            found.append(f"{mean:.1f} times as fast as {peer} (never less than {least:.1f})")
    formats = len({timing.format for timing in whole})
    jobs = len({timing.job for timing in whole})
    where = cores(timings[0].threads)
    means = f"geometric means of {jobs} jobs on {formats} kinds of files"
    return f"Through whole files, on {where}: {' and '.join(found) or 'beside no other'}; {means}."


def rst(timings: Sequence[Timing], facts: Mapping[str, str], image: str = "") -> str:
    """Format the results for the documentation: sentences, one table and the plot."""
    groups = [
        [timing for timing in timings if timing.threads == threads]
        for threads in dict.fromkeys(timing.threads for timing in timings)
    ]
    lines = [".. Written by benchmarks/compare.py --rst; do not edit.", "", ".. summary", ""]
    lines += [summary(groups[-1]), "", ".. end of the summary", ""]
    lines += [text for group in groups[:-1] for text in (summary(group), "")]
    lines += csv_table(f"dask-tiled, {cores(groups[-1][0].threads)}", *overview(groups[-1]))
    lines += [sentence(facts), ""]
    if image:
        alt = "How many times the time of dask-tiled the others take"
        lines += [f".. image:: {image}", f"   :alt: {alt}", ""]
    found = notes(timings)
    if found:
        lines += ["What could not be done:", ""]
        lines += [f"- {note.partition(': ')[0]}: ``{note.partition(': ')[2]}``" for note in found]
        lines += [""]
    return "\n".join(lines)
