"""Time everyday expressions on opened scans, compared with the same code on other dask arrays.

Run ``python benchmarks/expressions.py``; ``--help`` lists the options. The other arrays are dask
over ``numpy.memmap`` in the chunks of dask-tiled, with a mapping that is kept, so that its pages
stay mapped, or created for each run; and RosettaSciIO's lazy array in its own chunks. The time from
the opened array to the result is measured, after the result has been compared with that of the kept
mapping: values, shape and dtype. All are timed in turns, with a limit: one core reading the newly
mapped file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path

from comparison.cores import core_count, pin


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=float, default=512, help="size of each file")
    parser.add_argument("--dir", type=Path, help="folder to keep the files in; default: deleted")
    parser.add_argument(
        "--threads", default="2", help="dask threads, one per core: 1, 2, all, sync"
    )
    formats = ("merlin-u16", "raw-u16", "raw-f4", "merlin-r12")
    parser.add_argument("--formats", nargs="+", metavar="KEY", default=formats)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="names in comparison/expressions.py"
    )
    parser.add_argument(
        "--readers", nargs="*", metavar="NAME", help="others to time: READERS in evaluation.py"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all measured times")
    parser.add_argument("--rst", type=Path, help="write the tables for the documentation")
    parser.add_argument("--buffered", type=Path, help="write the table of buffered reads for it")
    return parser.parse_args()


def main() -> None:
    """Run the comparison and print the tables."""
    args = arguments()
    # numpy and numba count the cores when they are imported, which happens later.
    pin("1" if args.threads == "sync" else args.threads)

    import dask

    from comparison.evaluation import READERS, report, report_buffered, time_expressions
    from comparison.expressions import EXPRESSIONS
    from comparison.facts import facts
    from comparison.measure import Timing
    from comparison.scans import prepare

    names = args.only or list(EXPRESSIONS)
    if unknown := {*names} - {*EXPRESSIONS}:
        sys.exit(f"no such expressions: {', '.join(unknown)}; there are {', '.join(EXPRESSIONS)}")
    readers = READERS if args.readers is None else args.readers
    if unknown := {*readers} - {*READERS}:
        sys.exit(f"no such readers: {', '.join(unknown)}; there are {', '.join(READERS)}")
    warnings.simplefilter("ignore")  # dask warns about chunks in every run
    scheduler = "synchronous" if args.threads == "sync" else "threads"
    timings: list[Timing] = []
    with (
        tempfile.TemporaryDirectory(prefix="expressions-") as scratch,
        dask.config.set(scheduler=scheduler, num_workers=core_count()),
    ):
        for key in args.formats:
            scan = prepare(key, args.dir or Path(scratch), args.mib)
            timings += time_expressions(
                scan, names, repeats=args.repeats, threads=args.threads, readers=readers
            )
    about = facts(args.mib, args.repeats)
    if args.json:
        run = {"facts": about, "timings": [timing._asdict() for timing in timings]}
        args.json.write_text(json.dumps(run, indent=1))
    report(timings, about, args.rst)
    if args.buffered:
        report_buffered(timings, about, args.buffered)


if __name__ == "__main__":
    main()
