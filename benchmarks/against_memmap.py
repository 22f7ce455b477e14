"""Time sums, masks, one frame and an export beside NumPy's memmap in dask, on any system.

Prints medians in seconds and their ratio as Markdown.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr

import dask_tiled
from dask_tiled.testing import write_raw

SIG = (256, 256)


def opened(path: Path, count: int) -> tuple[da.Array, da.Array]:
    """Open the frames by this package, and as a memmap in chunks of the same shape."""
    raw: Any = {"format": "raw", "dtype": "u2", "sig_shape": SIG}
    ours = dask_tiled.open_dataset(path, **raw)
    mapped = np.memmap(path, "u2", "r", shape=(count, *SIG))
    return ours, da.from_array(mapped, chunks=ours.chunks, name=False)


def jobs(folder: Path) -> dict[str, Callable[[da.Array], object]]:
    """Return what is computed of an array."""
    y, x = np.indices(SIG) - 128
    masks = np.stack([np.hypot(y, x) < r for r in (20, 60, 100)]).astype("f4")

    def export(arr: Any) -> None:
        target = folder / f"out-{time.monotonic_ns()}.zarr"
        if isinstance(arr, dask_tiled.TiledArray):
            arr.to_zarr(target, layout="array", compressors=None)
        else:
            create: Any = zarr.create_array
            store = create(
                target, shape=arr.shape, dtype=arr.dtype, chunks=arr.chunksize, compressors=None
            )
            arr.store(store, lock=False)

    return {
        "sum of frames": lambda arr: arr.sum(axis=0).compute(),
        "sum of each frame": lambda arr: arr.sum(axis=(1, 2)).compute(),
        "three masks": lambda arr: da.tensordot(
            arr.astype("f4"), masks, axes=((1, 2), (1, 2))
        ).compute(),
        "one frame": lambda arr: arr[arr.shape[0] // 2].compute(),
        "export to zarr": export,
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    count = (arguments.mib << 20) // (2 * SIG[0] * SIG[1])
    dask.config.set({"dask-tiled.rest-seconds": 0})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frames = np.random.default_rng(0).integers(0, 99, (count, *SIG)).astype("u2")
        arrays = opened(write_raw(folder / "scan.raw", frames), count)
        print(f"| {arguments.mib} MiB | memmap | dask-tiled | ratio |\n|---|---|---|---|")
        for title, job in jobs(folder).items():
            times: tuple[list[float], list[float]] = [], []
            for _ in range(arguments.repeats + 1):
                for arr, taken in zip(arrays, times, strict=True):
                    start = time.perf_counter()
                    job(arr)
                    taken.append(time.perf_counter() - start)
            ours, other = (statistics.median(taken[1:]) for taken in times)
            print(f"| {title} | {other:.4f} | {ours:.4f} | {other / ours:.2f} |", flush=True)
        del arrays


if __name__ == "__main__":
    main()
