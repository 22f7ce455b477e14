"""From a Merlin scan to images and to zarr: the main functions of dask-tiled, step by step.

Run it with ``make demo``, or ``python examples/demo.py --help``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import dask.array as da
import matplotlib as mpl
import numpy as np
import zarr
from dask.array.core import slices_from_chunks
from dask.diagnostics import ProgressBar

import dask_tiled

mpl.use("Agg")  # draws to files only

DISK = 1.6  # radius of the bright-field detector, mrad: just outside of the direct beam
ANNULUS = (8.0, 25.0)  # inner and outer angle of the annular detector, mrad


def main() -> None:
    """Run all steps."""
    out = parse_arguments().out
    picture, target = out / "gold.png", out / "gold.zarr"

    with step("Make the sample: a 4D-STEM scan of gold on carbon"):
        with dask.config.set({"dask_tiled.samples-folder": out}):
            source = dask_tiled.samples.gold()
        print(f"{source}, {source.stat().st_size / 2**20:.0f} MiB")

    with step("Open it: headers are read, pixels are not"):
        arr = dask_tiled.open_dataset(source)
        print(arr.description, arr, sep="\n")

    with step("How its chunks were decided"):
        print(dask_tiled.scheme_of(arr).explain())

    with step("Compute a bright-field and a dark-field image and the mean pattern in one pass"):
        bright, dark, pattern = compute_images(arr)
        print(f"bright field {bright.min():.0f} to {bright.max():.0f} electrons")
        print(f"dark field {dark.min():.0f} to {dark.max():.0f} electrons")
        print(f"mean pattern {pattern.min():.2f} to {pattern.max():.0f} electrons")

    with step(f"Draw it to {picture}"):
        dask_tiled.show(arr, picture)

    with step(f"Export the scan to {target}"):
        dask_tiled.to_zarr(arr, target, overwrite=True, progress=True)
        stored_bytes = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
        print(f"{stored_bytes / 2**20:.0f} MiB after compression")

    with step("Open the export with zarr alone and compare it with the source"):
        prove_equal(zarr.open_array(target, mode="r", path="data"), arr)

    print(f"\nThe scan stays in {source}, its picture in {picture}, its export in {target}.")


def compute_images(arr: da.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the images of two virtual detectors, and the mean pattern.

    All run on tiles; computed together, they read the file once.
    """
    first, step = arr.axes[-1].offset, arr.axes[-1].scale  # the same for y
    angle = np.hypot(*(first + step * np.indices(arr.shape[-2:])))
    low, high = ANNULUS
    detectors = dask_tiled.tiles.apply_masks(arr, [angle < DISK, (angle >= low) & (angle < high)])
    with ProgressBar():
        sums, pattern = dask.compute(detectors, arr.mean(axis=(0, 1)))
    return sums[..., 0], sums[..., 1], pattern


def prove_equal(stored: zarr.Array, arr: da.Array) -> None:
    """Compare a zarr array with its source block by block."""
    print(f"zarr: shape {stored.shape}, dtype {stored.dtype}, chunks {stored.chunks}")
    boxes = slices_from_chunks(arr.chunks)
    for box in boxes:
        if not np.array_equal(stored[box], arr[box].compute()):
            message = f"the export differs from the source in {box}"
            raise SystemExit(message)
    print(f"{len(boxes)} of {len(boxes)} blocks equal")


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print the title of a step, and its duration."""
    print(f"\n== {title}", flush=True)
    started = time.perf_counter()
    yield
    print(f"   ({time.perf_counter() - started:.1f} s)", flush=True)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="directory to use")
    return parser.parse_args()


if __name__ == "__main__":
    main()
