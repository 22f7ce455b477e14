"""Compare common expressions with hand-written loops, as a share of the machine's speed.

Run ``python benchmarks/bare_loops.py``; ``--help`` lists the options. The loops of
``comparison/bare.py`` are compiled by numba for one expression each, and read a mapping that is
kept; sixteen masks are a matrix product by BLAS. They use as many threads as dask. Results are
compared first. Both are timed in turns; rates come from medians, and the share is dask-tiled's rate
divided by the loop's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comparison.cores import core_count, pin

if TYPE_CHECKING:
    from comparison.measure import Timing
    from comparison.scans import Scan

FORMATS = ("merlin-u16", "raw-f4")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=float, default=512, help="size of each file")
    parser.add_argument("--dir", type=Path, help="folder to keep the files in; default: deleted")
    parser.add_argument("--threads", default="2", help="threads of dask and the loops: 1, 2, all")
    parser.add_argument("--formats", nargs="+", metavar="KEY", default=FORMATS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names in comparison/bare.py")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write all measured times")
    parser.add_argument("--rst", type=Path, help="write the table for the documentation")
    return parser.parse_args()


def found_by(call: Callable[..., Any], *args: object) -> Any:
    """Wrap a call so that it ignores the last argument, the number of the repeat."""
    return call(*args[:-1])


def time_loops(scan: Scan, names: Sequence[str], repeats: int, threads: str) -> list[Timing]:
    """Time expressions and loops on a scan, in turns."""
    import dask_tiled
    from comparison.bare import BARE, frames_of
    from comparison.evaluation import check, evaluate
    from comparison.expressions import EXPRESSIONS
    from comparison.measure import Job, Timing, take_turns
    from comparison.table import BARE_LOOP, OURS

    arr = dask_tiled.open_dataset(scan.path, nav_shape=scan.nav, **scan.format.options)
    timings = []
    with ThreadPoolExecutor(core_count()) as pool:
        frames = frames_of(scan, pool, core_count())
        for name in names:
            runs: dict[str, Job] = {
                OURS: partial(found_by, evaluate, EXPRESSIONS[name], arr),
                BARE_LOOP: partial(found_by, lambda bare, x: [bare(x)], BARE[name], frames),
            }
            note = check(runs[OURS](0), runs[BARE_LOOP](0))
            seconds = take_turns({} if note else runs, repeats)
            for reader in runs:
                about = scan.format.name, name, threads, scan.nbytes
                timings.append(Timing(reader, *about, seconds.get(reader, []), note))
    return timings


def report(timings: Sequence[Timing], about: Mapping[str, str], path: Path | None) -> None:
    """Print the table, and write it to the documentation."""
    from comparison import table as tables
    from comparison.expressions import code
    from comparison.facts import sentence

    every = tables.rows_of(timings)
    formats = list(dict.fromkeys(fmt for _, fmt in every))
    body = []
    for name in dict.fromkeys(name for name, _ in every):
        cells = [f"``{code(name)}``"]
        for fmt in formats:
            row = every[name, fmt]
            rates = [tables.cell(row[x], per_second=True) for x in (tables.BARE_LOOP, tables.OURS)]
            cells += [*rates, tables.ratio(tables.speedup(row, tables.BARE_LOOP))]
        body.append(cells)
    head = ["expression", *(f"{fmt}{x}" for fmt in formats for x in (": loop", "", " share"))]
    shares = [tables.speedup(row, tables.BARE_LOOP) for row in every.values()]
    mean = tables.ratio(statistics.geometric_mean([share for share in shares if share]))
    said = f"{mean} of the rate of the loops: geometric mean."
    console = tables.make_console()
    console.print(sentence(about), highlight=False)
    tables.print_table(console, f"GB/s, threads: {timings[0].threads}", head, body)
    console.print(said, *tables.notes(timings), sep="\n", markup=False, highlight=False)
    if path:
        tables.write_table(path, "bare_loops.py --rst", head, body, about, said)


def main() -> None:
    """Run the benchmark and print the table."""
    args = arguments()
    # numpy and numba count the cores when they are imported, which happens later.
    pin(args.threads)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # each thread calls it

    import dask

    from comparison.bare import BARE
    from comparison.facts import facts
    from comparison.scans import prepare

    warnings.simplefilter("ignore")
    timings: list[Timing] = []
    with (
        tempfile.TemporaryDirectory(prefix="loops-") as scratch,
        dask.config.set(scheduler="threads", num_workers=core_count()),
    ):
        for key in args.formats:
            scan = prepare(key, args.dir or Path(scratch), args.mib)
            timings += time_loops(scan, args.only or list(BARE), args.repeats, args.threads)
    about = facts(args.mib, args.repeats)
    if args.json:
        run = {"facts": about, "timings": [timing._asdict() for timing in timings]}
        args.json.write_text(json.dumps(run, indent=1))
    report(timings, about, args.rst)


if __name__ == "__main__":
    main()
