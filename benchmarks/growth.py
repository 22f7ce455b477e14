"""Seconds per GB for files of increasing size, by numbers of threads and of workers.

Run ``python benchmarks/growth.py``, with ``--gb 0.1 1 10 100`` for all sizes. Workers are processes
of a cluster with one thread each. The files are sparse, count as unchanged, and hold frames of 256
x 256 uint16 zeros; a pass sums every frame. For files up to a quarter of the memory, a first pass,
which compiles kernels and fills the page cache, is not counted. Larger files are dropped from the
page cache and read once: the time includes making and dropping pages of zeros. ``dd``, in one
thread, shows that cost without the sum.

"spread" compares the slowest with the fastest size. With ``--rst``, the table is written to the
documentation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask

import dask_tiled
from backends import evict
from cluster import cluster
from comparison.cores import core_count
from comparison.facts import facts, sentence
from comparison.table import make_console, print_table, write_table
from dask_tiled.reading.limits import BUFFERED_BYTES

SIG = (256, 256)
FRAME_BYTES = 2 * SIG[0] * SIG[1]
GB = 10**9
PLAIN = "dd"
KEPT_SHARE = 4
"""Files of more than one part in this many of the memory are read once."""


def sparse(path: Path, gb: float) -> Path:
    """Write a sparse file of zeros."""
    with path.open("wb") as file:
        file.truncate(max(1, round(gb * GB / FRAME_BYTES)) * FRAME_BYTES)
    return path


def plain_job(path: Path) -> Callable[[], object]:
    """Return a function that reads a file with ``dd``."""
    command = ["dd", f"if={path}", "of=/dev/null", f"bs={BUFFERED_BYTES}", "status=none"]
    return partial(subprocess.run, command, check=True)


def job(path: Path, io: str, where: dict[str, Any]) -> Callable[[], object]:
    """Return a function that sums all frames of a file."""
    arr = dask_tiled.open_dataset(path, "raw", dtype="uint16", sig_shape=SIG, io=io)
    return partial(arr.sum(axis=(1, 2)).compute, **where)


def seconds_of(path: Path, run: Callable[[], object], repeats: int) -> float:
    """Return the median seconds per GB of a pass."""
    nbytes = path.stat().st_size
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    is_cached = nbytes < memory // KEPT_SHARE
    times = []
    for _ in range(repeats + 1 if is_cached else 1):
        if not is_cached:
            evict(path)
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times[is_cached:]) / nbytes * GB


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, nargs="+", default=(0.1, 1, 10))
    parser.add_argument("--threads", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--workers", type=int, nargs="*", default=(1, 2))
    parser.add_argument("--io", nargs="+", default=("auto", "buffered"))
    parser.add_argument("--dir", type=Path, help="folder for the temporary files")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rst", type=Path, help="write the table for the documentation")
    args = parser.parse_args()
    body = []
    with (
        tempfile.TemporaryDirectory(prefix="growth-", dir=args.dir) as folder,
        dask.config.set({"dask-tiled.rest-seconds": 0}),
    ):
        warm = sparse(Path(folder) / "warm.raw", 0.01)
        files = [sparse(Path(folder) / f"{gb:g}.raw", gb) for gb in args.gb]

        def measure(label: str, count: int, make: Callable[[Path], Callable[[], object]]) -> None:
            make(warm)()
            found = [seconds_of(path, make(path), args.repeats) for path in files]
            spread = f"{max(found) / min(found) - 1:.0%}"
            body.append([label, str(count), *(f"{x:.3f}" for x in found), spread])

        measure(PLAIN, 1, plain_job)
        for threads in args.threads:
            for io in args.io:
                where = {"scheduler": "threads", "num_workers": threads}
                measure(f"{io}, threads", threads, partial(job, io=io, where=where))
        for workers in args.workers:
            with cluster(folder, workers) as client:
                for io in args.io:
                    made = partial(job, io=io, where={"scheduler": client})
                    measure(f"{io}, workers", workers, made)
    console, sizes = make_console(), [f"{gb:g} GB" for gb in args.gb]
    about = facts(0, args.repeats) | {"files": ", ".join(sizes)}
    console.print(sentence(about), highlight=False)
    head = ["io", "number", *sizes, "spread"]
    print_table(console, f"Seconds for each GB, {core_count()} cores", head, body)
    if args.rst:
        write_table(args.rst, "growth.py --rst", head, body, about)


if __name__ == "__main__":
    main()
