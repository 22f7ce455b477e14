"""Time LiberTEM's analyses on opened arrays and on its own data sets, and the same jobs on tiles.

Run ``python benchmarks/libertem_arrays.py``. All three read one Merlin file from the page cache, in
turns. LiberTEM runs in this process, with a thread for each core. The printed times are the minimum
of all rounds.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import dask_tiled
from dask_tiled.testing import write_mib

SIG = (256, 256)
Job = Callable[[], Any]


def masks() -> np.ndarray:
    """Return sixteen detector masks."""
    y, x = np.ogrid[: SIG[0], : SIG[1]]
    angle = np.arctan2(y - SIG[0] / 2, x - SIG[1] / 2)
    edges = np.linspace(-np.pi, np.pi, 17)
    chosen = [(angle >= a) & (angle < b) for a, b in pairwise(edges)]
    return np.stack(chosen).astype("float32")


def of_libertem(context: Any, dataset: Any) -> dict[str, Job]:
    """Return the jobs as LiberTEM analyses."""
    from libertem.udf.com import CoMUDF
    from libertem.udf.masks import ApplyMasksUDF
    from libertem.udf.sum import SumUDF
    from libertem.udf.sumsigudf import SumSigUDF

    def run(udf: Any, channel: str = "intensity") -> Job:
        return lambda: np.asarray(context.run_udf(dataset, udf)[channel].data)

    return {
        "sum over the scan": run(SumUDF()),
        "sums of frames": run(SumSigUDF()),
        "16 masks": run(ApplyMasksUDF(mask_factories=masks, mask_count=16)),
        "centre of mass": run(CoMUDF(), "raw_com"),
    }


def on_tiles(arr: Any) -> dict[str, Job]:
    """Return the jobs as reductions of this package."""
    return {
        "sum over the scan": lambda: arr.sum(axis=(0, 1)).compute(),
        "sums of frames": lambda: arr.sum(axis=(2, 3)).compute(),
        "16 masks": lambda: dask_tiled.tiles.apply_masks(arr, masks()).compute(),
        "centre of mass": lambda: dask_tiled.tiles.center_of_mass(arr).compute(),
    }


def best(job: Job, repeats: int, others: list[Job]) -> list[float]:
    """Time jobs in turns and return the minimum time of each, in seconds."""
    jobs = [job, *others]
    times = [float("inf")] * len(jobs)
    for _ in range(repeats + 1):
        for k, one in enumerate(jobs):
            start = time.perf_counter()
            one()
            times[k] = min(times[k], time.perf_counter() - start)
    return times


def main() -> None:
    """Run the benchmark and print the table."""
    from libertem.api import Context
    from libertem.executor.inline import InlineJobExecutor

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="size of the file in MiB")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    logging.getLogger("libertem").setLevel(logging.ERROR)  # LiberTEM warns about merged chunks
    nav = (max(1, args.mib // 8), 64)
    rng = np.random.default_rng(0)
    frames = rng.poisson(5, (1, 64, *SIG)).astype(">u2")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scan.mib")
        write_mib(path, np.broadcast_to(frames, nav + SIG))
        arr = dask_tiled.open_dataset(path, nav_shape=nav)
        context = Context(executor=InlineJobExecutor(inline_threads=2))
        with context:
            own = of_libertem(context, context.load("mib", path=str(path), nav_shape=nav))
            wrapped = of_libertem(context, context.load("dask", dask_array=arr, sig_dims=2))
            ours = on_tiles(arr)
            print(f"{'':20}{'array in LiberTEM':>20}{'LiberTEM':>12}{'on tiles':>12}")
            for name in own:
                np.testing.assert_allclose(own[name](), wrapped[name](), rtol=1e-4)
                times = best(wrapped[name], args.repeats, [own[name], ours[name]])
                cells = "".join(
                    f"{1e3 * one:{w}.0f} ms" for one, w in zip(times, (17, 9, 9), strict=True)
                )
                print(f"{name:20}{cells}")


if __name__ == "__main__":
    main()
