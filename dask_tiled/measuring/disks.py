"""The bright disk of a mean frame, where the direct beam meets the detector."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.model.indexing import Array


class Disk(NamedTuple):
    """The bright disk of a frame, in pixels."""

    y: float
    x: float
    radius: float

    def mask(self, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """Return a mask of the pixels inside."""
        y, x = np.ogrid[: shape[0], : shape[1]]
        inside: npt.NDArray[np.bool_] = np.hypot(y - self.y, x - self.x) <= self.radius
        return inside


def find_disk(frame: Array) -> Disk | None:
    """Return the bright disk of a mean frame, or None."""
    every = -(-max(frame.shape) // 256)
    small = np.nan_to_num(frame[::every, ::every])
    smooth = np.median(_around(small), axis=(2, 3))  # ignores single hot pixels
    brightest, usual = smooth.max(), np.median(smooth)
    level = (brightest + usual) / 2
    bright = (small > level) & _around(smooth > level).any(axis=(2, 3))
    area = np.count_nonzero(bright)
    if brightest <= 1.5 * usual or not 0 < area < bright.size / 2:
        return None
    places = np.argwhere(bright)
    middle = places.mean(axis=0)
    radius = math.sqrt(area / math.pi)
    spread = math.sqrt(((places - middle) ** 2).sum(axis=1).mean())
    if spread > 1.3 * radius / math.sqrt(2):  # for a disk, without the factor 1.3
        return None
    y, x = middle * every
    return Disk(float(y), float(x), radius * every)


def _around(pixels: Array) -> Array:
    """Return each pixel with its neighbours, on two extra axes."""
    return np.lib.stride_tricks.sliding_window_view(np.pad(pixels, 1, "edge"), (3, 3))
