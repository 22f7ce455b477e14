"""Compare I/O backends: time of each divided by that of the fastest, on the same files and jobs.

Run ``python benchmarks/backends.py``. The jobs:

- decoding: frame sums of a Merlin file, whose pixels have to be byte-swapped;
- zero-copy: frame sums of a raw file, whose pixels are used without copying;
- sparse: one pixel of every frame of the raw file.

"warm" files are read from the page cache, "cold" files from disk, where the operating system evicts
a file from the page cache on request; this is checked before each run. Direct reads are always
cold. Backends are timed in turns, so that other load on the machine affects all of them. "auto" is
the backend chosen for files older than a minute, "recent" the one for files written in the last
minute. The limit of whole warm files is to copy them from the page cache to a buffer for each
thread, which stays in the cache of a core; that of cold files is ``dd`` with the same block size.
With ``--rst``, the table is written to the documentation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

import dask_tiled
from comparison.cores import core_count
from comparison.facts import facts as facts_of
from comparison.facts import sentence
from comparison.limits import copied
from comparison.scans import Scan, expectations, prepare
from comparison.table import make_console, print_table, ratio, write_table
from dask_tiled.files.paths import GIVES_BACK
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.reading.limits import BUFFERED_BYTES
from dask_tiled.system.pages import is_cached

JOBS = {
    "decoding": ("merlin-u16", "frames"),
    "zero-copy": ("raw-u16", "frames"),
    "sparse": ("raw-u16", "pixel"),
}
CHOICES = (*BACKENDS, "auto", "recent")
LIMIT = "limit"
REST_SECONDS = "dask-tiled.rest-seconds"
PROBES = 64
"""Number of pages of a file that are probed to check whether it is in the page cache."""

TRIES = 50
"""Number of attempts to evict a file."""

Times = dict[tuple[str, str], dict[str, list[float]]]


def evict(path: Path) -> bool:
    """Evict a file from the page cache and return whether that worked."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        return False
    for give_back in GIVES_BACK:  # mapped pages stay
        give_back()
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)  # dirty pages are not evicted
        places = np.linspace(0, path.stat().st_size - 1, PROBES).astype(int).tolist()
        for _ in range(TRIES):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not any(is_cached(fd, place) for place in places):
                return True
            time.sleep(0.02)  # pages that are being read ahead stay
        return False
    finally:
        os.close(fd)


def runs_of(scan: Scan, job: str) -> dict[str, Callable[[], Any]]:
    """Open a scan with each available backend and check the results."""
    expected = expectations(scan)[job]()
    y, x = scan.pixel(0)
    runs: dict[str, Callable[[], Any]] = {}
    for io in CHOICES:
        try:
            arr = dask_tiled.open_dataset(
                scan.path,
                nav_shape=scan.nav,
                io=io.replace("recent", "auto"),
                **scan.format.options,
            )
        except dask_tiled.DatasetError as error:
            print(error)
            continue
        result = arr[..., y, x] if job == "pixel" else arr.sum(axis=(-2, -1))
        runs[io] = partial(compute, result, 10**6 if io == "recent" else 0)
        assert np.array_equal(runs[io](), expected)
    return runs


def compute(result: da.Array, seconds: int) -> Any:
    """Compute a result with `rest-seconds` set to `seconds`."""
    with dask.config.set({REST_SECONDS: seconds}):
        return result.compute()


def limits_of(scan: Scan, pool: ThreadPoolExecutor) -> dict[str, Callable[[], Any]]:
    """Return the limits of copying backends: for reads from the page cache and from disk."""
    copy = copied(scan, pool, core_count())
    command = ["dd", f"if={scan.path}", "of=/dev/null", f"bs={BUFFERED_BYTES}", "status=none"]
    return {"warm": partial(copy, 0), "cold": partial(subprocess.run, command, check=True)}


def measure(folder: Path, mib: float, repeats: int, pool: ThreadPoolExecutor) -> Times:
    """Time every job with every backend, in turns."""
    times: Times = {}
    for name, (key, job) in JOBS.items():
        scan = prepare(key, folder, mib)
        limits = {} if job == "pixel" else limits_of(scan, pool)
        opened = runs_of(scan, job)
        for state in ("warm", "cold"):
            runs = dict(opened)
            if state == "cold" and not evict(scan.path):
                print(f"{name}: the system does not drop {scan.path} from the page cache")
                continue
            if state in limits:
                runs[LIMIT] = limits[state]
            seconds: dict[str, list[float]] = {io: [] for io in runs}
            for _ in range(repeats):
                for io, run in runs.items():
                    if state == "cold":
                        assert evict(scan.path)
                    start = time.perf_counter()
                    run()
                    seconds[io].append(time.perf_counter() - start)
            times[name, state] = seconds
    return times


def report(times: Times, facts: dict[str, str], path: Path | None) -> None:
    """Print medians divided by the smallest of their row, and write them to the documentation."""
    body = []
    for (name, state), seconds in times.items():
        medians = {io: statistics.median(values) for io, values in seconds.items()}
        best = min(medians[io] for io in CHOICES if io in medians)
        shares = (medians[io] / best if io in medians else None for io in (*CHOICES, LIMIT))
        body.append([f"{name}, {state}", *map(ratio, shares), f"{1e3 * best:.3g}"])
    head, console = ["job", *CHOICES, LIMIT, "fastest, ms"], make_console()
    console.print(sentence(facts), highlight=False)
    print_table(console, "Times divided by the fastest", head, body)
    if path:
        write_table(path, "backends.py --rst", head, body, facts)


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=float, default=256, help="size of each file")
    parser.add_argument(
        "--dir", type=Path, help="folder to keep the files in; by default they are deleted"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rst", type=Path, help="write the table for the documentation")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backends-") as scratch:
        folder = args.dir or Path(scratch)
        with dask.config.set(scheduler="threads"), ThreadPoolExecutor(core_count()) as pool:
            times = measure(folder, args.mib, args.repeats, pool)
    report(times, facts_of(args.mib, args.repeats), args.rst)


if __name__ == "__main__":
    main()
