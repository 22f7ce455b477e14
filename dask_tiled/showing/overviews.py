"""Small forms of large images: a level of the pyramid in the file, or some of the pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.measuring.sampling import sample_bytes
from dask_tiled.model.axes import Axis
from dask_tiled.opened.tiled_array import TiledArray, description_of, levels_of
from dask_tiled.tiling.bases import Base, bases, ceil_div, part_bases, split

DECODED = 8
"""Number of samples whose bytes may be decoded for a picture: few blocks make a coarse one."""


class Overview(NamedTuple):
    """Some of the pixels of an array, or the means of some of its blocks."""

    arr: da.Array
    steps: tuple[int, ...]
    """Distance of the pixels that are taken, along each axis."""
    means: tuple[int, ...]
    """Pixels that are averaged along each axis."""

    def axis(self, k: int, axis: Axis) -> Axis:
        """Return the axis of the overview that an axis of the array becomes."""
        return axis.binned(self.means[k]).cut(0, self.steps[k] // self.means[k])


def overview(arr: da.Array, axes: Sequence[int], longest: int) -> Overview:
    """Return at most ``longest`` pixels along some axes of an image.

    Compressed blocks are decoded as a whole. Where this would be too much for a picture, some
    blocks are read, at equal distances, and the mean of each is one pixel.
    """
    steps = [ceil_div(n, longest) if k in axes else 1 for k, n in enumerate(arr.shape)]
    blocks = _blocks_of(arr)
    every = _distances(arr, axes, blocks)
    means = [1] * arr.ndim
    for k, distance in enumerate(every):
        if distance > 1:
            means[k], steps[k] = blocks[k].size, blocks[k].size * distance
    if max(means) == 1 or not isinstance(arr, TiledArray) or arr.dtype.names:
        cuts = tuple(slice(None, None, step) for step in steps)
        return Overview(arr[cuts], tuple(steps), (1,) * arr.ndim)
    sizes = zip(arr.shape, blocks, strict=True)
    parts = arr.with_chunks(tuple(split(n, base.size, base.lead) for n, base in sizes))
    some = parts.blocks[tuple(slice(None, None, distance) for distance in every)]
    over = tuple(k for k, size in enumerate(means) if size > 1)
    chunks = [(1,) * len(c) if k in over else c for k, c in enumerate(some.chunks)]
    made = da.map_blocks(np.mean, some, axis=over, keepdims=True, chunks=chunks, dtype="f8")
    cuts = tuple(slice(None, None, 1 if k in over else step) for k, step in enumerate(steps))
    return Overview(made[cuts], tuple(steps), tuple(means))


def _blocks_of(arr: da.Array) -> tuple[Base, ...]:
    """Return the blocks along each axis that are decoded as a whole."""
    desc = description_of(arr)
    if desc is None or not desc.layout.has_blocks:
        return (Base(),) * arr.ndim
    found, nav = bases(desc), desc.nav_ndim
    return (*found[:nav], *part_bases(desc.layout, found[nav:], 1))


def _distances(arr: da.Array, axes: Sequence[int], blocks: Sequence[Base]) -> list[int]:
    """Return the distances of the blocks to decode, so that they are not too much."""
    counts = [ceil_div(n + base.lead, base.size) for n, base in zip(arr.shape, blocks, strict=True)]
    block = math.prod(base.size for base in blocks) * arr.dtype.itemsize
    budget, distance = DECODED * sample_bytes(arr) // max(1, block), 1
    every = [1] * arr.ndim
    while math.prod(map(ceil_div, counts, every)) > budget:
        distance += 1
        found = [min(distance, n) if k in axes else 1 for k, n in enumerate(counts)]
        every = [n if base.size > 1 else 1 for n, base in zip(found, blocks, strict=True)]
        if max(every) == 1 or distance > max(counts):  # single pixels are read by themselves
            break
    return every


def smallest_level(arr: da.Array, longest: int) -> da.Array:
    """Return the smallest stored level of a large image with ``longest`` pixels along an axis."""
    if arr.nbytes <= sample_bytes(arr):
        return arr
    return next(
        level
        for level in reversed(levels_of(arr))
        if level.shape == arr.shape or max(_reduced(level, arr)) >= longest
    )


def _reduced(level: da.Array, arr: da.Array) -> list[int]:
    """Return the sizes of the axes along which a level has fewer pixels than an image."""
    return [n for n, whole in zip(level.shape, arr.shape, strict=True) if n < whole]
