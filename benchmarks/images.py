"""Time and memory of common work on one large image, beside other readers with dask.

Every job of every reader runs in a process of its own, which opens the file, works, and reports
seconds, its peak memory, and a checksum; checksums of one job must agree. Prints, as Markdown,
the figures of dask-tiled and their ratios to those of each other reader.
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
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import h5py
import imagecodecs
import numpy as np
import scipy.ndimage as ndi
import tifffile
import zarr

import dask_tiled
from dask_tiled.testing import write_czi
from dask_tiled.testing.czi import Tile

OURS = "dask-tiled"
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


def mosaic(size: int) -> Iterator[Tile]:
    """Yield the image as fields of a microscope."""
    count = 0
    for k, band in enumerate(bands(size)):
        for x in range(0, size, ROWS):
            yield Tile({"X": x, "Y": k * ROWS, "C": 0, "M": count}, band[:, x : x + ROWS])
            count += 1


def write(kind: str, path: Path, size: int) -> None:
    """Write the image as a file of a kind."""
    shape = size, size
    match kind:
        case "tiff tiles":
            more: dict[str, Any] = {"tile": (512, 512), "compression": "zstd"}
            tifffile.imwrite(path, tiles(size), shape=shape, dtype="u2", **more)
        case "tiff strips":
            rows = 64
            more = {"rowsperstrip": rows, "compression": "zstd"}
            strips = (
                bytes(imagecodecs.zstd_encode(band[y : y + rows].tobytes()))
                for band in bands(size)
                for y in range(0, len(band), rows)
            )
            tifffile.imwrite(path, strips, shape=shape, dtype="u2", **more)
        case "zarr":
            stored: Any = zarr.create_array(path, shape=shape, chunks=(1024, 1024), dtype="u2")
            for k, band in enumerate(bands(size)):
                stored[k * ROWS : k * ROWS + len(band)] = band
        case "hdf5":
            with h5py.File(path, "w") as file:
                saved = file.create_dataset("image", shape, "u2", chunks=(512, 512), compression=1)
                for k, band in enumerate(bands(size)):
                    saved[k * ROWS : k * ROWS + len(band)] = band
        case "czi mosaic":
            # czifile for Python 3.11 has no zstd; bioio requires a channel and pixel sizes.
            write_czi(path, mosaic(size), scaling={"X": 1e-7, "Y": 1e-7}, channels=["DAPI"])


def by_this(path: Path) -> da.Array:
    """Open a file by this package, without axes of length 1."""
    arr = dask_tiled.open_dataset(path)
    return arr[(0,) * (arr.ndim - 2)] if arr.ndim > 2 else arr


def by_tifffile(path: Path) -> da.Array:
    """Open a TIFF file by the zarr store of tifffile."""
    return da.from_zarr(tifffile.imread(path, aszarr=True))


def by_zarr(path: Path) -> da.Array:
    """Open an array of zarr."""
    return da.from_zarr(path)


def by_h5py(path: Path) -> da.Array:
    """Open a data set of HDF5, some of whose chunks make a chunk of dask."""
    return da.from_array(h5py.File(path)["image"], chunks=(2048, 2048))


def by_bioio(path: Path) -> da.Array:
    """Open a file by bioio."""
    from bioio import BioImage

    return BioImage(path).dask_data.squeeze()


def by_czifile(path: Path) -> da.Array:
    """Read a file by czifile, which knows no parts of images."""
    import czifile

    return da.from_array(czifile.imread(path).squeeze(), chunks=(2048, 2048))


OTHERS: dict[str, dict[str, Callable[[Path], da.Array]]] = {
    "tiff tiles": {"tifffile": by_tifffile, "bioio": by_bioio},
    "tiff strips": {"tifffile": by_tifffile, "bioio": by_bioio},
    "zarr": {"zarr": by_zarr},
    "hdf5": {"h5py": by_h5py},
    "czi mosaic": {"czifile": by_czifile, "bioio": by_bioio},
}
"""Other readers of each kind of file."""


def smoothed(block: np.ndarray) -> np.ndarray:
    """Average squares of five pixels."""
    return ndi.uniform_filter(block.astype("f4"), 5)


def export(arr: da.Array, target: Path) -> da.Array:
    """Write the array and its levels, each from the one before; return what was written."""
    if isinstance(arr, dask_tiled.TiledArray):
        return da.from_zarr(dask_tiled.to_zarr(arr, target, pyramid=True))
    level, written = 0, None
    while True:
        arr.rechunk(tuple(min(1024, n) for n in arr.shape)).to_zarr(target, component=str(level))
        before = da.from_zarr(target, component=str(level))
        written = before if written is None else written
        if max(arr.shape) <= 256:
            return written
        means = da.coarsen(np.mean, before, {0: 2, 1: 2}, trim_excess=True)
        arr, level = means.round().astype(arr.dtype), level + 1


def labelled(arr: da.Array) -> Any:
    """Count the cells."""
    from dask_image import ndmeasure

    return ndmeasure.label(arr > 150)[1].compute()


def jobs(target: Path) -> dict[str, Callable[[da.Array], Any]]:
    """Return what is computed of the image."""
    return {
        "sum": lambda arr: arr.sum().compute(),
        "map_blocks": lambda arr: arr.map_blocks(np.sqrt, dtype="f4").max().compute(),
        "filter": lambda arr: da.map_overlap(smoothed, arr, depth=2, dtype="f4").mean().compute(),
        "threshold, label": labelled,
        "crop": lambda arr: arr[tuple(slice(n // 3, n // 3 + 1000) for n in arr.shape)].compute(),
        "4 times smaller": lambda arr: (
            da.coarsen(np.mean, arr, {0: 4, 1: 4}, trim_excess=True).astype("f4").compute()
        ),
        "to_zarr, pyramid": lambda arr: export(arr, target),
    }


class Run(NamedTuple):
    """Seconds, peak memory in MiB and the checksum of a job in a process of its own."""

    seconds: float
    peak: float
    checksum: float


def run(reader: str, kind: str, path: Path, job: str, limit: float) -> Run:
    """Run a job in a process of its own; it has no memory or checksum if it takes too long."""
    code = [sys.executable, __file__, "--run", reader, kind, str(path), job]
    try:
        done = subprocess.run(code, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"{reader}, {kind}, {job}: more than {limit} s", file=sys.stderr)
        return Run(limit, math.nan, math.nan)
    finally:
        shutil.rmtree(path.parent / "out.zarr", ignore_errors=True)
    if done.returncode:
        print(f"{reader}, {kind}, {job}: {done.stderr[-2000:]}", file=sys.stderr)
        return Run(math.nan, math.nan, math.nan)
    return Run(*json.loads(done.stdout.splitlines()[-1]))


def measured(reader: str, kind: str, path: Path, job: str) -> Run:
    """Do a job, after a small one that imports and compiles what it needs."""
    warnings.simplefilter("ignore")
    dask.config.set({"dask-tiled.rest-seconds": 0})
    opened = by_this if reader == OURS else OTHERS[kind][reader]
    target = path.parent / "out.zarr"
    work = jobs(target)[job]
    if reader != "czifile":  # which reads all to open a file
        work(opened(path)[:600, :600])
    da.ones(2).compute()  # imports distributed, which opened arrays may not need
    shutil.rmtree(target, ignore_errors=True)
    start = time.perf_counter()
    found = work(opened(path))
    seconds = time.perf_counter() - start
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) / 1024
    return Run(seconds, peak, float(da.asarray(found).sum(dtype="f8").compute()))


def medians(runs: list[Run]) -> Run:
    """Return the medians of repeated runs."""
    return Run(*map(statistics.median, zip(*runs, strict=True)))


def line(kind: str, job: str, runs: dict[str, Run]) -> str:
    """Return a line of the table; results that differ are an error."""
    ours, others = runs[OURS], {name: one for name, one in runs.items() if name != OURS}
    wrong = {
        name: one.checksum
        for name, one in others.items()
        if not math.isnan(one.checksum)
        and not math.isclose(one.checksum, ours.checksum, rel_tol=1e-5)
    }
    if wrong:
        print(f"{kind}, {job}: {ours.checksum}, but {wrong}", file=sys.stderr)
    cells = [kind, job]
    for k, digits in ((0, 2), (1, 0)):
        ratios = (f"{ours[k] / one[k]:.2f} {name}" for name, one in others.items())
        cells += [f"{ours[k]:.{digits}f}", ", ".join(sorted(ratios, reverse=True))]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=8192, help="pixels along each axis")
    parser.add_argument("--repeats", type=int, default=1, help="runs, whose medians are printed")
    parser.add_argument("--limit", type=float, default=60, help="seconds of a run at most")
    parser.add_argument("--kinds", nargs="+", choices=OTHERS, default=[*OTHERS])
    known = [*jobs(Path())]
    parser.add_argument("--jobs", nargs="+", choices=known, default=known)
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        reader, kind, file, job = arguments.run
        print(json.dumps(measured(reader, kind, Path(file), job)))
        return
    print(f"{arguments.side} x {arguments.side} uint16, dask-tiled and its ratios to others\n")
    print("| file | job | s | ratio | MiB | ratio |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for kind in arguments.kinds:
            suffix = {"zarr": "zarr", "hdf5": "h5", "czi mosaic": "czi"}.get(kind, "tif")
            path = Path(name) / f"image.{suffix}"
            write(kind, path, arguments.side)
            for job in arguments.jobs:
                taken: dict[str, list[Run]] = {reader: [] for reader in [OURS, *OTHERS[kind]]}
                for _ in range(arguments.repeats):
                    for reader, some in taken.items():
                        some.append(run(reader, kind, path, job, arguments.limit))
                print(line(kind, job, {key: medians(some) for key, some in taken.items()}))
                sys.stdout.flush()
            shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    main()
