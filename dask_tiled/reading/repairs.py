"""Choose the pixels from which the excluded pixels of a frame are repaired.

Pixels with good neighbours come first, then the next ones inwards: ring by ring, each pixel becomes
the mean of its neighbours in earlier rings.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dask_tiled.model.corrections import Corrections
from dask_tiled.model.indexing import Array, Index
from dask_tiled.reading.limits import CELL_PIXELS

Bools = npt.NDArray[np.bool_]


class Steps(NamedTuple):
    """Pixels in the order of repair, and the neighbours whose mean replaces each."""

    pixels: Index
    bounds: Index
    neighbours: Index

    @classmethod
    def none(cls) -> Self:
        """Return an empty plan."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, np.zeros(1, np.int64), nothing)

    @classmethod
    def of(cls, pixels: Index, near: Index, used: Bools) -> Self:
        """Return the steps for pixels, and a mask of their neighbours to use."""
        return cls(pixels, np.concatenate([[0], np.cumsum(used.sum(axis=1))]), near[used])

    def repair(self, frames: Array) -> None:
        """Repair flattened frames in place."""
        if self.pixels.size:
            from dask_tiled.kernels.corrections import repair_kernel

            repair_kernel(frames.dtype)(frames, *self, frames)


class Repairs(NamedTuple):
    """The excluded pixels of a frame, ring by ring; pixels are numbered in C order."""

    pixels: Index
    rings: list[slice]
    near: Index
    """Neighbours of each pixel, in C order."""
    used: Bools
    """Mask of the neighbours that are good or in earlier rings."""
    parents: Index
    """Indices of the neighbours in ``pixels``; -1 for good and for unused ones."""

    def with_all(self, shown: Bools, near_shown: Bools) -> Bools:
        """Return a mask of the pixels that depend on ``shown`` pixels only."""
        whole = shown & (near_shown | ~self.used).all(axis=1)
        for ring in self.rings[1:]:
            parents = self.parents[ring]
            whole[ring] &= (whole[parents] | (parents < 0)).all(axis=1)
        return whole

    def needed_for(self, some: Index) -> Index:
        """Return the excluded pixels that ``some`` depend on, including themselves."""
        needed = np.zeros(len(self.pixels) + 1, bool)  # the last entry stands for good pixels
        needed[some] = True
        for ring in reversed(self.rings[1:]):
            needed[self.parents[ring][needed[ring]]] = True
        return np.flatnonzero(needed[:-1])

    def grouped(self, some: Index, shape: tuple[int, ...]) -> list[Index]:
        """Group pixels: those of the first ring one by one, inner ones by cell."""
        first = some < self.rings[0].stop if self.rings else some < 0
        inner = some[~first]
        cells = np.stack(np.unravel_index(self.pixels[inner], shape)) // CELL_PIXELS
        _, cell = np.unique(cells, axis=1, return_inverse=True)
        groups = [inner[cell == k] for k in range(cell.max(initial=-1) + 1)]
        return [*some[first][:, None], *groups]


@lru_cache(maxsize=16)
def repairs_of(corrections: Corrections, shape: tuple[int, ...]) -> Repairs:
    """Plan the repair of the excluded pixels of frames of a shape."""
    pixels: Any = corrections.excluded_pixels
    steps = [step for step in itertools.product((-1, 0, 1), repeat=len(shape)) if any(step)]
    padded = tuple(n + 2 for n in shape)  # pixels outside the frame count as excluded
    strides = np.array([math.prod(padded[k + 1 :]) for k in range(len(shape))], np.int64)
    offsets = np.array(steps, np.int64) @ strides
    ring = np.full(padded, len(pixels) + 1, np.int64)
    ring[tuple(slice(1, -1) for _ in shape)] = 0
    ring = ring.reshape(-1)
    places = (pixels + 1) @ strides
    ring[places] = len(pixels) + 1
    order: list[Index] = []
    left = np.arange(len(pixels))
    while left.size:
        reached = (ring[places[left, None] + offsets] <= len(order)).any(axis=1)
        order.append(left[reached])
        left = left[~reached]
        ring[places[order[-1]]] = len(order)
    ends = np.cumsum([0, *map(len, order)]).tolist()
    places = places[np.concatenate(order)]
    near = places[:, None] + offsets
    used = ring[near] < ring[places, None]
    number = np.full(ring.shape, -1, np.int64)
    number[places] = np.arange(len(places))
    inside = np.where(used, near, places[:, None])  # unused neighbours may lie outside
    return Repairs(
        _unpadded(places, padded, shape),
        [slice(a, b) for a, b in itertools.pairwise(ends)],
        _unpadded(inside, padded, shape),
        used,
        np.where(used, number[near], -1),
    )


def _unpadded(places: Index, padded: tuple[int, ...], shape: tuple[int, ...]) -> Index:
    points = tuple(x - 1 for x in np.unravel_index(places, padded))
    found: Index = np.ravel_multi_index(points, shape)
    return found
