"""CPU time of maps, following detectors and the search of the disk, as ratios in one run.

Beside LiberTEM, for virtual detectors and centres of mass of an array in memory, if it is
installed. Every job runs several times, in turn with the others; medians are compared.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dask.array as da
import numpy as np
from dask import config
from dask.base import compute

import dask_tiled
from dask_tiled import tiles

FRAME = 256


def pattern(rng: np.random.Generator) -> np.ndarray:
    """Return a frame of counts with a bright disk and scattered electrons."""
    away = np.hypot(*(np.indices((FRAME, FRAME)) - 127.3))
    return rng.poisson(np.where(away < 40, 20, 2)).astype("u2")


def write(path: Path, frames: int, *, sparse: bool) -> None:
    """Write frames of counts; of a sparse file, those of which the search takes a sample."""
    rng = np.random.default_rng(0)
    some = [pattern(rng).tobytes() for _ in range(16)]
    size = FRAME * FRAME * 2
    with path.open("wb") as file:
        file.truncate(frames * size)
        side = round(frames**0.5)
        for k in range(frames):
            if not sparse or not (k // side % 8 or k % side % 8):
                file.seek(k * size)
                file.write(some[k % len(some)])


def scan(path: Path, frames: int) -> da.Array:
    """Open a file as a square scan."""
    side = round(frames**0.5)
    return dask_tiled.open_dataset(
        path, format="raw", dtype="u2", nav_shape=(side, side), sig_shape=(FRAME, FRAME)
    )


def cpu_times(jobs: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return the median CPU time of each job, in turn; the first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeat + 1):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            if turn:
                times[name].append(time.process_time() - start)
    return {name: statistics.median(some) for name, some in times.items()}


def libertem_jobs(path: Path, side: int) -> dict[str, Callable[[], object]]:
    """Return the same jobs in LiberTEM, on an array in memory; none if it is not installed."""
    try:
        from libertem.api import Context
        from libertem.udf.com import CoMUDF
        from libertem.udf.masks import ApplyMasksUDF
    except ImportError:
        return {}
    context = Context.make_with("inline")
    pixels = np.fromfile(path, "u2").reshape(side, side, FRAME, FRAME)
    dataset = context.load("memory", data=pixels, sig_dims=2)
    away = np.hypot(*(np.indices((FRAME, FRAME)) - 127.3))
    rings = [away < 40, (away >= 20) & (away < 40), away >= 40, away >= 120, away >= 0]
    mask = ApplyMasksUDF(mask_factories=[lambda: rings[2].astype("f4")], use_sparse=False)
    several = ApplyMasksUDF(
        mask_factories=[lambda k=k: rings[k].astype("f4") for k in range(5)], use_sparse=False
    )
    com = CoMUDF.with_params(cy=127.3, cx=127.3, r=400)
    return {
        "LiberTEM: a mask": lambda: context.run_udf(dataset, mask),
        "LiberTEM: detectors, sum and centre": lambda: context.run_udf(dataset, [several, com]),
    }


def main() -> None:
    """Print the figures as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=4096, help="frames of 128 KiB, a square")
    parser.add_argument("--large", type=int, default=78400, help="frames of the sparse file")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, config.set(scheduler="synchronous"):
        path = Path(folder) / "scan.raw"
        write(path, args.frames, sparse=False)
        arr = scan(path, args.frames)
        side = round(args.frames**0.5)
        mask = tiles.ring(arr, 40, 200, (127.3, 127.3))
        drift = np.random.default_rng(1).uniform(-4, 4, (side, side, 2))
        disk = tiles.find_disk(arr)
        jobs: dict[str, Callable[[], object]] = {
            "a mask": lambda: tiles.apply_masks(arr, mask).compute(),
            "a following mask": lambda: tiles.apply_masks(arr, mask, shift=drift).compute(),
            "standard": lambda: compute(dict(tiles.standard(arr, disk=disk))),
            **libertem_jobs(path, side),
        }
        times = cpu_times(jobs, args.repeat)
        print(f"{arr.nbytes / 2**20:.0f} MiB\n\n| job | CPU time | of a mask |\n|---|---|---|")
        for name, seconds in times.items():
            print(f"| {name} | {1e3 * seconds:.0f} ms | {seconds / times['a mask']:.2f} |")
        path.unlink()
        write(path, args.large, sparse=True)
        large = scan(path, args.large)
        walls = []
        for _ in range(args.repeat):
            start = time.perf_counter()
            found = tiles.find_disk(large)
            walls.append(time.perf_counter() - start)
        print(f"\n{large.nbytes / 1e9:.1f} GB: {found}: {statistics.median(walls):.2f} s")


if __name__ == "__main__":
    main()
