"""A Merlin scan of 1 GB through plain dask here, through RosettaSciIO and through LiberTEM.

Run ``python benchmarks/readers.py``. All read the same file in the same run, warm, the first two on
all cores, LiberTEM with its inline executor; the readers take turns, so that noise hits them alike.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import dask_tiled
from dask_tiled.testing import write_mib

Jobs = dict[str, Callable[[], np.ndarray]]
SIG = (256, 256)


def write_scan(folder: Path, nav: tuple[int, int]) -> Path:
    """Write a scan of Poisson counts."""
    some = np.random.default_rng(0).poisson(20, (64, *SIG)).astype("u2")
    frames = (some[k % len(some)] for k in range(nav[0] * nav[1]))
    return write_mib(folder / "scan.mib", frames, kind="U16", nav_shape=nav)


def plain_dask(path: Path) -> Jobs:
    """Decode chunks and reduce them with dask, which knows nothing of tiles."""
    import dask.array as da

    arr = dask_tiled.open_dataset(path)
    plain = da.Array(arr.dask, arr.name, arr.chunks, meta=arr)
    return {
        "frame sums": lambda: plain.sum(axis=(-2, -1)).compute(),
        "sum over the scan": lambda: plain.sum(axis=(0, 1)).compute(),
    }


def rosettasciio(path: Path) -> Jobs:
    """Reduce RosettaSciIO's lazy array with dask."""
    from rsciio.quantumdetector import file_reader

    arr = file_reader(str(path), lazy=True)[0]["data"]
    return {
        "frame sums": lambda: arr.sum(axis=(-2, -1)).compute(),
        "sum over the scan": lambda: arr.sum(axis=(0, 1)).compute()[::-1],  # it flips y
    }


def libertem(path: Path, nav: tuple[int, int]) -> Jobs:
    """Run LiberTEM's own reductions."""
    from libertem.api import Context
    from libertem.udf.sum import SumUDF
    from libertem.udf.sumsigudf import SumSigUDF

    context = Context.make_with("inline")
    dataset = context.load("mib", path=str(path), nav_shape=nav)
    return {
        "frame sums": lambda: context.run_udf(dataset, SumSigUDF())["intensity"].data,
        "sum over the scan": lambda: context.run_udf(dataset, SumUDF())["intensity"].data,
    }


def main() -> None:
    """Print medians, and ratios to the time taken here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nav", type=int, nargs=2, default=(64, 128), metavar=("Y", "X"))
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    nav = tuple(args.nav)
    with tempfile.TemporaryDirectory() as folder:
        path = write_scan(Path(folder), nav)
        readers = {
            "dask-tiled": plain_dask(path),
            "RosettaSciIO": rosettasciio(path),
            "LiberTEM": libertem(path, nav),
        }
        times: dict[tuple[str, str], list[float]] = {}
        for job in ("frame sums", "sum over the scan"):
            results = {name: np.asarray(jobs[job]()) for name, jobs in readers.items()}  # warm
            for name, result in results.items():
                if not np.allclose(result, results["dask-tiled"], rtol=1e-5):
                    raise SystemExit(f"{name} gives another result for {job}")
            for _ in range(args.repeats):
                for name, jobs in readers.items():
                    start = time.perf_counter()
                    jobs[job]()
                    times.setdefault((job, name), []).append(time.perf_counter() - start)
    nbytes = 2 * nav[0] * nav[1] * SIG[0] * SIG[1]
    print(f"{nbytes / 1e9:.2f} GB of 16-bit Merlin frames, medians of {args.repeats}")
    for (job, name), seconds in times.items():
        median, ours = np.median(seconds), np.median(times[job, "dask-tiled"])
        rate = nbytes / median / 1e9
        print(f"{job:<20}{name:<14}{median:7.3f} s {rate:6.2f} GB/s {median / ours:6.2f}x")


if __name__ == "__main__":
    main()
