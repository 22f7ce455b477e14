"""Scans of known contents, and the expected results of all jobs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from comparison.file_format import Array, FileFormat, Shape
from comparison.formats import FORMATS

STREAMING = {
    "scan": "sum over the scan",
    "frames": "frame sums",
    "mask": "one mask",
    "masks": "16 masks",
    "com": "centre of mass",
}
"""Jobs that read whole files, measured in bytes per second."""
PICKING = {"pixel": "one pixel of every frame", "frame": "one frame"}
"""Jobs that read a few bytes of a file, measured in seconds."""
JOBS = STREAMING | PICKING


@dataclass(frozen=True)
class Scan:
    """A file or set of files, and the arguments of the jobs.

    Attributes
    ----------
    format : FileFormat
    path : Path
        The file to open.
    files : tuple of Path
        The files with the frames, in order.
    nav : tuple of int
        Scan shape, (y, x).
    masks : array, (16, y, x), float32
        Rings, each in four quadrants.
    """

    format: FileFormat
    path: Path
    files: tuple[Path, ...]
    nav: Shape
    masks: Array

    @property
    def nbytes(self) -> int:
        """Size of the stored frames in bytes."""
        return self.nav[0] * self.nav[1] * self.format.record.itemsize

    def position(self, repeat: int) -> Shape:
        """Return the scan position to read in a repeat, the same for all readers."""
        y, x = np.random.default_rng([1, repeat]).integers(self.nav)
        return int(y), int(x)

    def pixel(self, repeat: int) -> Shape:
        """Return the detector pixel to read in a repeat."""
        y, x = np.random.default_rng([2, repeat]).integers(self.format.sig)
        return int(y), int(x)


def prepare(key: str, folder: Path, mib: float) -> Scan:
    """Write a scan of about ``mib`` MiB to a folder, unless it exists."""
    fmt = FORMATS[key]
    n = max(4, int(mib * 2**20) // fmt.record.itemsize)
    height = 2 ** ((n.bit_length() - 1) // 2)
    nav = (height, n // height)
    place = folder / f"{key}-{nav[0]}x{nav[1]}"
    if not place.exists():
        partial = folder / f"{place.name}.{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        fmt.write(partial, islice(cycle(example_frames(fmt)), nav[0] * nav[1]), nav)
        partial.rename(place)  # renamed last: the final name marks a complete scan
    files = tuple(sorted(place.glob(fmt.files)))
    path = place / fmt.opened if fmt.opened else files[0]
    return Scan(fmt, path, files, nav, segments(fmt.sig))


def example_frames(fmt: FileFormat) -> Array:
    """Return frames of Poisson counts: a bright disk that moves across the detector."""
    rng = np.random.default_rng(0)
    y, x = np.indices(fmt.sig)
    frames = np.empty((fmt.period, *fmt.sig), fmt.dtype)
    for k, frame in enumerate(frames):
        turn = 2 * np.pi * k / fmt.period
        from_centre = np.hypot(
            y - fmt.sig[0] * (0.5 + 0.2 * np.sin(turn)),
            x - fmt.sig[1] * (0.5 + 0.1 * np.cos(turn)),
        )
        mean = fmt.level * np.where(from_centre < fmt.sig[0] / 5, 1, 0.2)
        counts = rng.poisson(mean[:: fmt.binning]).clip(0, fmt.limit - 1)
        frame[:] = counts.repeat(fmt.binning, axis=0)
    return frames


@cache
def segments(sig: Shape) -> Array:
    """Return 16 detector masks: four rings, each in four quadrants."""
    y, x = np.indices(sig) - (np.array(sig)[:, None, None] - 1) / 2
    ring = np.minimum(np.hypot(y, x) // (sig[0] / 8), 3)
    quadrant = 2 * (y > 0) + (x > 0)
    return (4 * ring + quadrant == np.arange(16)[:, None, None]).astype("f4")


def expectations(scan: Scan) -> dict[str, Callable[[], Array]]:
    """Compute the expected result of the first run of every job from the written frames."""
    frames = example_frames(scan.format).astype("f8")
    index = np.arange(scan.nav[0] * scan.nav[1]).reshape(scan.nav) % len(frames)
    sums = frames.sum(axis=(1, 2))
    y, x = np.indices(scan.format.sig)

    def centres() -> Array:
        moments = np.stack([(frames * axis).sum(axis=(1, 2)) for axis in (y, x)], axis=-1)
        return (moments / sums[:, None])[index]

    def masked(masks: Array) -> Array:
        # One at a time: all masks in double precision can be larger than the frames.
        return np.stack([np.tensordot(frames, mask.astype("f8"), 2) for mask in masks], -1)[index]

    return {
        "scan": lambda: np.tensordot(np.bincount(index.ravel(), minlength=len(frames)), frames, 1),
        "frames": lambda: sums[index],
        "mask": lambda: masked(scan.masks[:1]),
        "masks": lambda: masked(scan.masks),
        "com": centres,
        "pixel": lambda: frames[(slice(None), *scan.pixel(0))][index],
        "frame": lambda: frames[index[scan.position(0)]],
    }
