"""Open and read sets of thousands of files with one frame each.

Run ``python benchmarks/many_files.py``. The time of opening is shown as a ratio to opening each
file, reading 1 KiB and closing it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import dask_tiled
from dask_tiled.testing import iter_counting_frames, write_mib_series


def seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """Return the median time of a function."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return median(times)


@contextmanager
def counted_descriptors() -> Iterator[list[int]]:
    """Sample the number of open files of this process every millisecond."""
    counts, stop = [0], threading.Event()

    def look() -> None:
        while not stop.wait(0.001):
            counts.append(len(os.listdir("/proc/self/fd")))

    watcher = threading.Thread(target=look)
    watcher.start()
    yield counts
    stop.set()
    watcher.join()


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-") as folder:
        frames = iter_counting_frames((args.files, 64, 64), "uint16")
        paths = write_mib_series(Path(folder) / "scan", frames, frames_per_file=1, hdr=False)

        def read_each() -> None:
            for path in paths:
                with open(path, "rb") as file:
                    file.read(1024)

        base = seconds(read_each)
        print(f"{args.files} files of one frame; open, read 1 KiB, close each: {base:.3f} s")
        ways = {
            "one of them": lambda: dask_tiled.open_dataset(paths[0]),
            "a list": lambda: dask_tiled.open_dataset(paths),
            "a pattern": lambda: dask_tiled.open_dataset(Path(folder) / "*.mib"),
        }
        for name, way in ways.items():
            taken = seconds(way)
            print(f"open_dataset of {name:12} {taken:.3f} s   {taken / base:.2f} x")
        arr = dask_tiled.open_dataset(paths[0])
        before = len(os.listdir("/proc/self/fd"))
        with counted_descriptors() as counts:
            taken = seconds(lambda: arr.mean(axis=0).compute(), 3)
        print(f"mean of all frames {taken:.3f} s; {max(counts) - before} more files open at most")


if __name__ == "__main__":
    main()
