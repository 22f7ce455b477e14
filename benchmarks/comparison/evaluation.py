"""Evaluation of expressions on the arrays of all readers: check, time and show them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import compute

import dask_tiled
from comparison import table as tables
from comparison.cores import core_count
from comparison.expressions import EXPRESSIONS, PARTS, Expression, code
from comparison.facts import sentence
from comparison.file_format import Array
from comparison.limits import copied, page_cache
from comparison.measure import Timing, reason, take_turns
from comparison.readers import OURS, rosettasciio_array
from comparison.scans import Scan

KEPT, ANEW, OTHER = "memmap kept", "memmap anew", "RosettaSciIO"
LIMIT = "page cache"
RECENT, BUFFERED, COPIED = "recent", "buffered", "preadv"
Cells = tuple[str, list[str]]
READERS = KEPT, RECENT, BUFFERED, ANEW, OTHER
MOST_LISTED = 10
"""Maximum number of expressions that a sentence lists."""
ENOUGH, NEAR = 0.75, 0.85
"""Shares of mapped speed, or else of that of ``preadv`` alone, that copying is to have."""


def mapped(scan: Scan, chunks: Any) -> da.Array:
    """Wrap the memory-mapped file lazily, as views; ``da.from_array`` would copy it to memory."""
    fmt, (path,) = scan.format, scan.files
    offset = path.stat().st_size - scan.nbytes
    stored = np.memmap(path, fmt.record, "r", offset, scan.nav)["pixels"]

    def block(block_info: Any = None) -> Array:
        y, x, *rest = (slice(*ends) for ends in block_info[None]["array-location"])
        part = stored[y, x]
        if fmt.decode is not None:
            frames = fmt.decode(part.reshape(-1, *part.shape[2:]))
            part = frames.reshape(*part.shape[:2], *fmt.sig)
        return part[:, :, *rest]

    dtype = stored.dtype if fmt.decode is None else np.dtype(fmt.dtype)
    meta = np.empty((0,) * 4, dtype)
    # Without a name, dask hashes the whole file.
    return da.map_blocks(block, name=f"mapped-{path}", chunks=chunks, dtype=dtype, meta=meta)


def evaluate(expression: Expression, arr: Any, *, resting: bool = True) -> list[Array]:
    """Compute an expression of a file that rests or was just written; return arrays."""
    with dask.config.set({"dask-tiled.rest-seconds": 0 if resting else 10**6}):
        made = expression(arr)
        results = compute(*made) if isinstance(made, tuple) else [made.compute()]
    return [np.asarray(x) for x in results]


def check(found: Sequence[Array], wanted: Sequence[Array]) -> str:
    """Return a description of the difference between found and expected results, or ""."""
    for one, other in zip(found, wanted, strict=True):
        if one.shape != other.shape or one.dtype.newbyteorder("=") != other.dtype.newbyteorder("="):
            return f"wrong: {one.dtype}{one.shape}, not {other.dtype}{other.shape}"
        exact = {2: 1e-2, 4: 1e-4}.get(one.dtype.itemsize, 1e-9) if one.dtype.kind == "f" else 0
        # The tolerance scales with the largest value, since differences of large numbers are less
        # exact.
        atol = exact and exact * float(np.abs(other[np.isfinite(other)]).max(initial=0))
        close = np.isclose(one, other, rtol=exact, atol=atol, equal_nan=True)
        if not close.all():
            return f"wrong: {1 - close.mean():.2%} of the values"
    return ""


def time_expressions(
    scan: Scan, names: Sequence[str], *, repeats: int, threads: str, readers: Sequence[str]
) -> Iterator[Timing]:
    """Time expressions on the arrays of dask-tiled and other readers, and the limits, in turns.

    Results are compared with those of the first reader in ``READERS``, or else of dask-tiled.
    """
    own, copy = (
        dask_tiled.open_dataset(scan.path, nav_shape=scan.nav, io=io, **scan.format.options)
        for io in ("auto", "buffered")
    )
    kept = mapped(scan, own.chunks)
    shown = {KEPT: kept, OURS: own, RECENT: own, BUFFERED: copy}
    shown = {name: arr for name, arr in shown.items() if name in {OURS, *readers}}
    arrays: dict[str, Callable[[], Any]] = {
        name: partial(lambda arr: arr, arr) for name, arr in shown.items()
    }
    failed = dict.fromkeys((LIMIT, COPIED), "")
    if ANEW in readers:
        arrays[ANEW], failed[ANEW] = partial(mapped, scan, own.chunks), ""
    try:
        if OTHER in readers:
            other = rosettasciio_array(scan).reshape(own.shape)
            arrays[OTHER] = partial(lambda arr: arr, other)
            shown[OTHER] = other[..., ::-1, :] if scan.format.upside_down else other
    except Exception as error:  # noqa: BLE001 - failures of readers are results
        failed[OTHER] = reason(error)
    with ThreadPoolExecutor(core_count()) as pool:
        limits = {
            LIMIT: page_cache(scan, pool, 1)["scan"],
            COPIED: copied(scan, pool, core_count()),
        }
        for name in names:
            found: dict[str, list[Array]] = {}
            said = dict(failed)
            for reader, arr in shown.items():
                try:
                    found[reader] = evaluate(EXPRESSIONS[name], arr, resting=reader != RECENT)
                    said[reader] = check(found[reader], next(iter(found.values())))
                except Exception as error:  # noqa: BLE001 - as above
                    said[reader] = reason(error)
            runs = {
                reader: lambda _, make=make, name=name, reader=reader: evaluate(
                    EXPRESSIONS[name], make(), resting=reader != RECENT
                )
                for reader, make in arrays.items()
                if not said[reader]
            }
            seconds = take_turns(limits | runs, repeats)
            for reader, note in said.items():
                times = seconds.get(reader, [])
                yield Timing(reader, scan.format.name, name, threads, scan.nbytes, times, note)


def shares_of(name: str, row: tables.Row) -> tuple[float | None, ...]:
    """Return the speeds of recent files and of buffered reads, by that of mapped files at rest.

    The third number is the speed of buffered reads by that of ``preadv`` alone.
    """
    ours, copy = tables.median(row, OURS), tables.median(row, COPIED)
    recent, found = tables.median(row, RECENT), tables.median(row, BUFFERED)
    pairs = (ours, recent), (ours, found), (None if name in PARTS else copy, found)
    return tuple(a / b if a and b else None for a, b in pairs)


def summarised(rows: Mapping[str, tables.Row]) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the table of one format: header, a row per expression, and summary lines."""
    ratios = {
        x: {k: tables.speedup(row, x) for k, row in rows.items()} for x in (KEPT, ANEW, OTHER)
    }
    body = []
    for name, row in rows.items():
        rate, share = tables.cell(row[OURS], per_second=True), tables.speedup(row, LIMIT)
        whole = [tables.NOTHING] * 2 if name in PARTS or not share else [rate, f"{share:.0%}"]
        cells = [tables.cell(row[OURS], per_second=False), *whole]
        slowdowns = (tables.ratio(x) for x in shares_of(name, row))
        others = (tables.ratio(x[name]) for x in ratios.values())
        body.append([name, code(name), *cells, *slowdowns, *others])
    summary = []
    for peer, every in ratios.items():
        if found := {name: value for name, value in every.items() if value is not None}:
            mean = tables.ratio(statistics.geometric_mean(found.values()))
            slow = [f"``{code(name)}`` ({value:.2f})" for name, value in found.items() if value < 1]
            line = f"{mean} times as fast as {peer}: geometric mean of {len(found)} expressions; "
            summary.append(f"{line}{len(slow)} below 1: {', '.join(slow) or 'none'}.")
    shares = {name: shares_of(name, row) for name, row in rows.items()}
    for k, kind in enumerate(("Recent files", "Buffered reads")):
        known = {name: share[k] or 0 for name, share in shares.items() if share[k]}
        if known:
            mean = tables.ratio(statistics.geometric_mean(known.values()))
            slow = [
                f"``{code(name)}`` ({share:.2f})"
                for name, share in known.items()
                if share < ENOUGH and (shares[name][2] or 0) * k < NEAR
            ]
            bounds = f"{ENOUGH} of that" + f" and {NEAR} of preadv" * k
            line = f"{kind} {mean} times as fast as mapped files at rest; "
            listed = f": {', '.join(slow) or 'none'}" if len(slow) <= MOST_LISTED else ""
            summary.append(f"{line}{len(slow)} below {bounds}{listed}.")
    heads = "ms", "GB/s", "of limit", "recent / rest", "buffered / rest", "of preadv"
    return (
        ["name", "expression", *heads, *(f"/ {x}" for x in ratios)],
        body,
        summary,
    )


def compact(
    every: Mapping[tuple[str, str], tables.Row], numbers: Callable[[str, tables.Row], Cells]
) -> tuple[list[str], list[list[str]]]:
    """Return one table of all formats for the documentation: a row per expression.

    ``numbers`` returns the time, which is bold, and the ratios of an expression.
    """
    formats = list(dict.fromkeys(fmt for _, fmt in every))
    body = []
    for name in dict.fromkeys(name for name, _ in every):
        cells = [f"``{code(name)}``"]
        for fmt in formats:
            own, ratios = numbers(name, every.get((name, fmt), {}))
            cells.append(" ".join([f"**{own}**", *ratios]))
        body.append(cells)
    return ["expression", *formats], body


def mapped_numbers(_: str, row: tables.Row) -> Cells:
    """Return the time of mapped files, and how many times as long others take."""
    own = tables.cell(row.get(OURS), per_second=False)
    return own, [tables.times(row, x) for x in (KEPT, OTHER)]


def buffered_numbers(name: str, row: tables.Row) -> Cells:
    """Return the time of buffered reads, and their shares of mapped speed and of ``preadv``."""
    _, *shares = shares_of(name, row)
    return tables.cell(row.get(BUFFERED), per_second=False), [*map(tables.ratio, shares)]


def report_buffered(timings: Sequence[Timing], facts: Mapping[str, str], path: Path) -> None:
    """Write the table of buffered reads to the documentation."""
    head, body = compact(tables.rows_of(timings), buffered_numbers)
    tables.write_table(path, "expressions.py --buffered", head, body, facts)


def report(timings: Sequence[Timing], facts: Mapping[str, str], path: Path | None) -> None:
    """Print the tables and write them to the documentation."""
    console = tables.make_console()
    console.print(sentence(facts), highlight=False)
    lines = [".. Written by benchmarks/expressions.py --rst; do not edit.", "", sentence(facts), ""]
    every = tables.rows_of(timings)
    for fmt in dict.fromkeys(timing.format for timing in timings):
        rows = {job: row for (job, row_format), row in every.items() if row_format == fmt}
        head, body, summary = summarised(rows)
        title = f"{fmt}, threads: {timings[0].threads}"
        tables.print_table(console, title, head, body)
        console.print(*summary, sep="\n", markup=False, highlight=False)
        lines += [f"**{title}**", "", *(f"- {line}" for line in summary), ""]
    lines += [".. end of the summary", "", *tables.csv_table("", *compact(every, mapped_numbers))]
    for note in tables.notes(timings):
        console.print(note, markup=False, highlight=False)
    if path:
        path.write_text("\n".join(lines))
