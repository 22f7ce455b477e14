"""Time and memory of common work on one large image, beside its format's library with dask.

Every job runs in a process of its own, which opens the file, works, and reports seconds and its
peak memory; the sides take turns. Prints medians and ratios as Markdown.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import h5py
import numpy as np
import scipy.ndimage as ndi
import tifffile
import zarr

import dask_tiled

ROWS = 1024
"""Rows that are made at a time when files are written."""


def bands(size: int) -> Iterator[np.ndarray]:
    """Yield rows of an image of bright cells on a noisy background."""
    noise = np.random.default_rng(0).poisson(20, (ROWS, size)).astype("u2")
    x = np.arange(size)
    for first in range(0, size, ROWS):
        y = np.arange(first, min(first + ROWS, size))[:, None]
        cells = ((y % 97 - 48) ** 2 + (x % 89 - 44) ** 2 < 500) * np.uint16(300)
        yield noise[: len(y)] + cells


def tiles(size: int, side: int = 512) -> Iterator[np.ndarray]:
    """Yield tiles of the image in the order of a TIFF file, padded at its ends."""
    for band in bands(size):
        for y in range(0, len(band), side):
            for x in range(0, size, side):
                tile = band[y : y + side, x : x + side]
                yield np.pad(tile, [(0, side - n) for n in tile.shape])


def write(kind: str, path: Path, size: int) -> None:
    """Write the image as a file of a kind."""
    shape = size, size
    match kind:
        case "tiff tiles":
            more: dict[str, Any] = {"tile": (512, 512), "compression": "zstd"}
            tifffile.imwrite(path, tiles(size), shape=shape, dtype="u2", **more)
        case "tiff strips":
            rows = (band[y : y + 64] for band in bands(size) for y in range(0, len(band), 64))
            more = {"rowsperstrip": 64, "compression": "zstd"}
            tifffile.imwrite(path, rows, shape=shape, dtype="u2", **more)
        case "zarr":
            stored: Any = zarr.create_array(path, shape=shape, chunks=(1024, 1024), dtype="u2")
            for k, band in enumerate(bands(size)):
                stored[k * ROWS : k * ROWS + len(band)] = band
        case "hdf5":
            with h5py.File(path, "w") as file:
                saved = file.create_dataset("image", shape, "u2", chunks=(512, 512), compression=1)
                for k, band in enumerate(bands(size)):
                    saved[k * ROWS : k * ROWS + len(band)] = band


def opened(side: str, kind: str, path: Path) -> da.Array:
    """Open the file by this package, or by the library of its format."""
    if side == "dask-tiled":
        return dask_tiled.open_dataset(path)
    if kind == "zarr":
        return da.from_zarr(path)
    if kind == "hdf5":
        return da.from_array(h5py.File(path)["image"], chunks=(2048, 2048))
    return da.from_zarr(tifffile.imread(path, aszarr=True))


def smoothed(block: np.ndarray) -> np.ndarray:
    """Average squares of five pixels."""
    return ndi.uniform_filter(block.astype("f4"), 5)


def export(arr: da.Array, target: Path) -> None:
    """Write the array and its levels, each from the one before."""
    if isinstance(arr, dask_tiled.TiledArray):
        dask_tiled.to_zarr(arr, target, pyramid=True)
        return
    for level in range(max(0, math.ceil(math.log2(max(arr.shape) / 256))) + 1):
        chunks = tuple(min(1024, n) for n in arr.shape)
        arr.rechunk(chunks).to_zarr(target, component=str(level))
        before = da.from_zarr(target, component=str(level))
        means = da.coarsen(np.mean, before, {0: 2, 1: 2}, trim_excess=True)
        arr = means.round().astype(arr.dtype)


def jobs(target: Path) -> dict[str, Callable[[da.Array], Any]]:
    """Return what is computed of the image."""

    def labelled(arr: da.Array) -> Any:
        from dask_image import ndmeasure

        return ndmeasure.label(arr > 150)[1].compute()

    return {
        "sum": lambda arr: arr.sum().compute(),
        "map_blocks": lambda arr: arr.map_blocks(np.sqrt, dtype="f4").max().compute(),
        "filter": lambda arr: da.map_overlap(smoothed, arr, depth=2, dtype="f4").mean().compute(),
        "threshold, label": labelled,
        "crop": lambda arr: arr[9000:10000, 9000:10000].compute(),
        "4 times smaller": lambda arr: (
            da.coarsen(np.mean, arr, {0: 4, 1: 4}, trim_excess=True).astype("f4").compute()
        ),
        "to_zarr, pyramid": lambda arr: export(arr, target),
    }


def run(side: str, kind: str, path: Path, job: str) -> tuple[float, float]:
    """Run a job in a process of its own: return seconds, and its peak memory in MiB."""
    target = path.parent / "out.zarr"
    code = [sys.executable, __file__, "--run", side, kind, str(path), job]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    shutil.rmtree(target, ignore_errors=True)
    if done.returncode:
        return math.nan, math.nan
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak


def measured(side: str, kind: str, path: str, job: str) -> None:
    """Do a job, and print seconds and peak memory."""
    dask.config.set({"dask-tiled.rest-seconds": 0})
    work = jobs(Path(path).parent / "out.zarr")[job]
    opened(side, kind, Path(path))[:8, :8].sum().compute()  # imports, and loads compiled code
    start = time.perf_counter()
    work(opened(side, kind, Path(path)))
    seconds = time.perf_counter() - start
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(json.dumps([seconds, int(status["VmHWM"].split()[0]) / 1024]))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", nargs="*", default=["tiff tiles", "tiff strips", "zarr", "hdf5"])
    parser.add_argument("--jobs", nargs="*", default=[*jobs(Path())])
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        measured(*arguments.run)
        return
    print(
        f"{arguments.side} x {arguments.side} uint16, {dask_tiled.__name__} / library with dask\n"
    )
    print("| file | job | s | ratio | MiB | ratio |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for kind in arguments.kinds:
            path = Path(name) / {"zarr": "a.zarr", "hdf5": "a.h5"}.get(kind, "a.tif")
            write(kind, path, arguments.side)
            for job in arguments.jobs:
                found: dict[str, list[tuple[float, float]]] = {"library": [], "dask-tiled": []}
                for _ in range(arguments.repeats):
                    for side, taken in found.items():
                        taken.append(run(side, kind, path, job))
                (theirs, peak), (ours, memory) = (
                    map(statistics.median, zip(*taken, strict=True)) for taken in found.values()
                )
                ratios = f"{ours:.2f} | {ours / theirs:.2f} | {memory:.0f} | {memory / peak:.2f}"
                print(f"| {kind} | {job} | {ratios} |", flush=True)
            shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    main()
