"""From a Merlin scan to images and to zarr: the main way through dask-tiled, step by step.

Run it with ``make demo``, or ``python examples/demo.py --help``.
"""

from __future__ import annotations

import argparse
import shutil
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
from gold_on_carbon import DETECTED, DETECTOR, FIELD_OF_VIEW, SEMI_ANGLE, Specimen
from numpy.typing import NDArray

import dask_tiled
from dask_tiled.testing import write_mib

mpl.use("Agg")  # a file is all that is drawn to
import matplotlib.pyplot as plt

ANNULUS = (14.0, 31.0)  # inner and outer angle of the annular detector, mrad


def main() -> None:
    """Run all steps."""
    options = parse_arguments()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    source, target = out / "scan.mib", out / "scan.zarr"

    with step(f"Simulate a scan of {options.scan} x {options.scan} positions, write {source}"):
        electrons = simulate(source, options.scan)
        print(f"{source.stat().st_size / 2**20:.0f} MiB, {electrons} electrons counted")

    with step("Open it: headers are read, pixels are not"):
        arr = dask_tiled.open_dataset(source)
        print(arr.description, arr, sep="\n")

    with step("How its chunks were decided"):
        print(dask_tiled.scheme_of(arr).explain())

    with step("Compute a bright-field and a dark-field image and the mean pattern in one pass"):
        bright, dark, pattern = images(arr)

    with step(f"Draw them to {out / 'demo.png'}"):
        draw(out / "demo.png", bright, dark, pattern)

    with step(f"Export the scan to {target}"):
        dask_tiled.to_zarr(arr, target, overwrite=True, progress=True)
        stored_bytes = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
        print(f"{stored_bytes / 2**20:.0f} MiB after compression")

    with step("Open the export with zarr alone and compare it with the source"):
        prove_equal(zarr.open_array(target, mode="r", path="data"), arr, electrons)

    if not options.keep:
        source.unlink()
        source.with_suffix(".hdr").unlink()
        shutil.rmtree(target)
        print(f"\nThe scan and its export are removed again (--keep leaves them in {out}).")


def simulate(path: Path, scan: int) -> int:
    """Write a simulated scan as a Merlin file and return how many electrons it counted.

    Frames go to the file as they are made: no more than one scan row is ever in memory.
    """
    electrons = 0

    def frames() -> Iterator[NDArray[np.uint16]]:
        nonlocal electrons
        for row in Specimen(scan).counts():
            electrons += int(row.sum())
            yield from row

    write_mib(path, frames(), kind="U16", nav_shape=(scan, scan))
    return electrons


def images(arr: da.Array) -> tuple[NDArray, NDArray, NDArray]:
    """Sum what falls on two detectors, and average over the scan.

    Both work on tiles, and what is computed together reads the file once.
    """
    angle = detector_angle()
    disk = angle < SEMI_ANGLE
    annulus = (angle >= ANNULUS[0]) & (angle < ANNULUS[1])
    detectors = dask_tiled.tiles.apply_masks(arr, [disk, annulus])
    with ProgressBar():
        sums, pattern = dask.compute(detectors, arr.mean(axis=(0, 1)))
    return sums[..., 0], sums[..., 1], pattern


def detector_angle() -> NDArray[np.float64]:
    """Scattering angle of every detector pixel in milliradians."""
    y, x = np.indices((DETECTOR, DETECTOR)) - (DETECTOR - 1) / 2
    return DETECTED / DETECTOR * np.hypot(y, x)


def draw(path: Path, bright: NDArray, dark: NDArray, pattern: NDArray) -> None:
    """Save the two images and the mean diffraction pattern side by side."""
    plt.rcParams.update({"font.size": 10, "axes.titlesize": 11, "axes.titlepad": 8})
    figure, axes = plt.subplots(1, 3, figsize=(13.2, 4.0), layout="constrained")
    low, high = ANNULUS
    titles = (
        f"bright field, 0 to {SEMI_ANGLE:g} mrad",
        f"annular dark field, {low:g} to {high:g} mrad",
    )
    for ax, image, title in zip(axes, (bright, dark), titles, strict=False):
        drawn = ax.imshow(
            image / 1e3, cmap="gray", extent=(0, FIELD_OF_VIEW, FIELD_OF_VIEW, 0), vmin=0
        )
        ax.set(title=title, xlabel="scan x (nm)")
        ax.set_xticks(range(0, 65, 16))
        ax.set_yticks(range(0, 65, 16))
        figure.colorbar(drawn, ax=ax, label="thousand electrons", fraction=0.046, pad=0.02)
    axes[0].set_ylabel("scan y (nm)")
    axes[0].plot([50, 60], [58, 58], color="black", linewidth=4, solid_capstyle="butt")
    axes[0].text(55, 56.5, "10 nm", ha="center")

    edge = DETECTED / 2
    drawn = axes[2].imshow(
        pattern, cmap="inferno", norm="log", extent=(-edge, edge, edge, -edge), interpolation="none"
    )
    for radius, style in ((SEMI_ANGLE, "-"), (low, "--"), (high, "--")):
        circle = plt.Circle((0, 0), radius, fill=False, color="white", linestyle=style, alpha=0.7)
        axes[2].add_patch(circle)
    axes[2].set(
        title="mean diffraction pattern",
        xlabel="scattering angle x (mrad)",
        ylabel="scattering angle y (mrad)",
    )
    figure.colorbar(drawn, ax=axes[2], label="electrons per pixel", fraction=0.046, pad=0.02)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def prove_equal(stored: zarr.Array, arr: da.Array, electrons: int) -> None:
    """Compare a zarr array with its source block by block, and both with the simulation."""
    print(f"zarr: shape {stored.shape}, dtype {stored.dtype}, chunks {stored.chunks}")
    boxes = slices_from_chunks(arr.chunks)
    total = 0
    for box in boxes:
        block = stored[box]
        if not np.array_equal(block, arr[box].compute()):
            message = f"the export differs from the source in {box}"
            raise SystemExit(message)
        total += int(block.sum(dtype=np.uint64))
    if total != electrons:
        message = f"the export holds {total} electrons, the simulation counted {electrons}"
        raise SystemExit(message)
    print(f"{len(boxes)} of {len(boxes)} blocks equal, {total} electrons as simulated")


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step, and say how long it took."""
    print(f"\n== {title}", flush=True)
    started = time.perf_counter()
    yield
    print(f"   ({time.perf_counter() - started:.1f} s)", flush=True)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="directory to use")
    parser.add_argument("--scan", type=int, default=64, help="positions along each scan axis")
    parser.add_argument("--keep", action="store_true", help="keep the scan and its export")
    options = parser.parse_args()
    if options.scan < 2:
        parser.error("--scan has to be 2 or more")
    return options


if __name__ == "__main__":
    main()
