"""Compare reductions in small and large chunks with dask over a memory map.

Run ``python benchmarks/tasks.py``. Both read one raw file from the page cache, in the same chunks,
in turns, on one core. A small chunk shows what a task costs besides its pixels. Processor times are
compared, as medians in microseconds a task; ratios above 1: this package is faster.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

import dask_tiled

SIG = (128, 128)
JOBS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda a: a.sum(),
    "sum of the scan": lambda a: a.sum((0, 1)),
    "sums of frames": lambda a: a.sum((2, 3)),
    "maxima of frames": lambda a: a.max((2, 3)),
    "mean of the scan": lambda a: a.mean((0, 1)),
    "sums of roots": lambda a: np.sqrt(a).sum((2, 3)),
}


def in_turns(makers: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Compute in turns; return median seconds of the processor."""
    times: list[list[float]] = [[] for _ in makers]
    for _ in range(repeats + 1):
        for make, spent in zip(makers, times, strict=True):
            begin = time.process_time()
            make().compute()
            spent.append(time.process_time() - begin)
    return [statistics.median(spent[1:]) for spent in times]


def main() -> None:
    """Run the benchmark and print a line for each job and size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=128, help="size of the file")
    parser.add_argument("--chunks", type=int, nargs="+", default=[2, 8, 64], help="MiB of a chunk")
    parser.add_argument("--dtypes", nargs="+", default=["<u2", ">u2", "<f4"])
    parser.add_argument("--repeats", type=int, default=31)
    args = parser.parse_args()
    print(f"{'dtype':<7}{'MiB':>4}  {'job':<18}{'us a task':>10}{'memmap':>9}{'ratio':>7}")
    with (
        tempfile.TemporaryDirectory(prefix="tasks-") as folder,
        dask.config.set({"dask-tiled.rest-seconds": 0, "scheduler": "synchronous"}),
    ):
        for dtype in args.dtypes:
            frame = np.dtype(dtype).itemsize * SIG[0] * SIG[1]
            nav = (args.mib * 2**20 // (64 * frame), 64)
            path = Path(folder) / "frames.raw"
            frames = np.random.default_rng(0).integers(0, 200, (*nav, *SIG))
            frames.astype(dtype).tofile(path)
            del frames
            for mib in args.chunks:
                chunks = (max(1, mib * 2**20 // (64 * frame)), 64, *SIG)
                of = {"dtype": dtype, "nav_shape": nav, "sig_shape": SIG, "chunks": chunks}
                arr = dask_tiled.open_dataset(path, "raw", **of)
                pixels = np.memmap(path, dtype, "r", shape=(*nav, *SIG))
                plain = da.from_array(pixels, chunks=chunks, name="map").astype(arr.dtype)
                for name, job in JOBS.items():
                    makers = [partial(job, x) for x in (arr, plain)]
                    result, expected = (make().compute() for make in makers)
                    np.testing.assert_allclose(result, expected, rtol=1e-4)
                    ours, other = (
                        1e6 * spent / arr.npartitions for spent in in_turns(makers, args.repeats)
                    )
                    print(
                        f"{dtype:<7}{mib:>4}  {name:<18}{ours:>10.0f}{other:>9.0f}"
                        f"{other / ours:>7.2f}"
                    )


if __name__ == "__main__":
    main()
