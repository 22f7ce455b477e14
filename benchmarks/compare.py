"""Compare dask-tiled, LiberTEM, RosettaSciIO and numpy: same jobs, files, cores and run.

Run ``python benchmarks/compare.py``; ``--help`` lists the options. Files are read from the page
cache: CPU and memory speed are measured, not disks. The results of each reader are checked against
the written frames before it is timed: "wrong" marks wrong results, "-" unsupported jobs. The
readers are timed in turns, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comparison.measure import Timing


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=float, default=256, help="size of each file")
    parser.add_argument(
        "--dir", type=Path, help="folder to keep the files in; by default they are deleted"
    )
    parser.add_argument("--threads", nargs="+", default=["1", "all"], choices=["1", "2", "all"])
    parser.add_argument("--formats", nargs="+", metavar="KEY", help="keys of comparison/formats.py")
    parser.add_argument("--jobs", nargs="+", metavar="KEY", help="keys of comparison/scans.py")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write all measured times")
    parser.add_argument("--rst", type=Path, help="write the tables for the documentation")
    parser.add_argument("--plot", type=Path, help="write the ratios as .svg or .png")
    parser.add_argument(
        "--show", type=Path, metavar="JSON", help="show a saved run without measuring"
    )
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return args
    # numpy and numba count the cores, and start threads for them, when they are imported. That does
    # not matter in this process: everything is measured in child processes with their own set of
    # cores.
    from comparison.formats import FORMATS
    from comparison.scans import JOBS

    for option, table in (("formats", FORMATS), ("jobs", JOBS)):
        chosen = getattr(args, option) or list(table)
        if unknown := set(chosen) - set(table):
            parser.error(f"no such {option}: {', '.join(unknown)}; there are {', '.join(table)}")
        setattr(args, option, chosen)
    if args.repeats < 1:
        parser.error("--repeats must be 1 or more")
    return args


def child(args: argparse.Namespace) -> None:
    """Run the measurement on the available cores and write the results to a file."""
    from comparison.cores import pin

    (threads,) = args.threads
    pin(threads)

    import dask

    from comparison.limits import limits
    from comparison.measure import time_scan
    from comparison.readers import readers
    from comparison.scans import prepare

    # LiberTEM's warnings take time in every run.
    warnings.simplefilter("ignore")
    timings: list[Timing] = []
    with ExitStack() as stack, dask.config.set(scheduler="threads"):
        known = readers(stack, cluster=threads == "all")
        bounds = limits()
        for key in args.formats:
            print(f"{key}, {threads} threads", file=sys.stderr)
            scan = prepare(key, args.dir, args.mib)
            timings += time_scan(
                scan, known, bounds, args.jobs, repeats=args.repeats, threads=threads
            )
    args.child.write_text(json.dumps([timing._asdict() for timing in timings]))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the measurement in a child process for each number of threads."""
    from comparison.facts import facts
    from comparison.scans import prepare

    timings: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="compare-") as scratch:
        folder = args.dir or Path(scratch)
        for key in args.formats:
            prepare(key, folder, args.mib)
        for threads in args.threads:
            out = Path(scratch) / f"{threads}.json"
            command = [sys.executable, __file__, "--child", str(out), "--dir", str(folder)]
            command += ["--threads", threads, "--mib", str(args.mib)]
            command += ["--repeats", str(args.repeats)]
            command += ["--formats", *args.formats, "--jobs", *args.jobs]
            subprocess.run(command, check=True)
            timings += json.loads(out.read_text())
    return {"facts": facts(args.mib, args.repeats), "timings": timings}


def main() -> None:
    """Run the comparison and print the tables."""
    args = arguments()
    if args.child:
        child(args)
        return
    from comparison.measure import Timing
    from comparison.table import print_tables, rst

    run = json.loads(args.show.read_text()) if args.show else measure(args)
    timings = [Timing(**timing) for timing in run["timings"]]
    print_tables(timings, run["facts"])
    if args.json:
        args.json.write_text(json.dumps(run, indent=1))
    if args.plot:
        from comparison.plot import plot

        plot(timings, args.plot)
    if args.rst:
        image = os.path.relpath(args.plot, args.rst.parent) if args.plot else ""
        args.rst.write_text(rst(timings, run["facts"], image))


if __name__ == "__main__":
    main()
