"""Chunks of arrays whose edges are edges of what zarr stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import dask.array as da
import numpy as np

from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.model.description import Description
from dask_tiled.tiling.bases import cut_no_block, split
from dask_tiled.tiling.scheme import negotiate

TASK_BYTES = 16 << 20
"""Pixels that one task reads, unless more are stored as one. Memory of this size is used again by
the next task, where that of large chunks comes fresh from the system, page by page."""

Chunks = tuple[tuple[int, ...], ...]


class Given(NamedTuple):
    """The facts about an array that an export needs."""

    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: Chunks
    description: Description | None = None
    """What an opened array shows of files; None for any other."""

    @classmethod
    def of(cls, arr: da.Array) -> Self:
        """Ask an array."""
        return cls(tuple(map(int, arr.shape)), arr.dtype, arr.chunks, description_of(arr))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def chunksize(self) -> tuple[int, ...]:
        """Shape of the largest chunk."""
        return tuple(int(max(axis)) for axis in self.chunks)

    @property
    def nav_ndim(self) -> int:
        """Number of the first axes that may be cut, so that frames stay whole."""
        return self.ndim if self.description is None else self.description.nav_ndim


def aligned(arr: da.Array, grid: tuple[int, ...]) -> da.Array:
    """Return the array in chunks whose edges are edges of a grid; :func:`aligned_chunks`."""
    return in_chunks(arr, aligned_chunks(Given.of(arr), grid))


def in_chunks(arr: da.Array, chunks: Chunks) -> da.Array:
    """Return the array in chunks: an opened one reads these, another one is cut anew."""
    if arr.chunks == chunks:
        return arr
    if isinstance(arr, TiledArray) and arr.description is not None:
        return arr.with_chunks(chunks)
    return arr.rechunk(chunks)


def aligned_chunks(given: Given, grid: tuple[int, ...]) -> Chunks:
    """Choose chunks whose edges are edges of a grid; small ones where that is as good."""
    desc, shape = given.description, given.shape
    if desc is not None:
        chunk, task = math.prod(given.chunksize), TASK_BYTES // given.dtype.itemsize
        # Frames that are cut are read by as few tasks as the memory of a chunk allows.
        sizes = grown(grid, shape, max(chunk, task), desc.nav_ndim)
        frames = zip(sizes[desc.nav_ndim :], shape[desc.nav_ndim :], strict=True)
        cut = any(n < size for n, size in frames)
        if not cut:
            sizes = grown(sizes, shape, min(task, chunk))
        small = _split(shape, sizes)
        if cut or cut_no_block(desc, small, given.chunks):
            return small
    if not any(n % size for axis, size in zip(given.chunks, grid, strict=True) for n in axis[:-1]):
        return given.chunks
    wanted = given.chunksize
    if desc is not None:
        wanted = tuple(axis[0] for axis in negotiate(desc).chunks)
    sizes = [max(size, int(n) // size * size) for n, size in zip(wanted, grid, strict=True)]
    return _split(shape, sizes)


def _split(shape: tuple[int, ...], sizes: list[int]) -> Chunks:
    return tuple(split(int(n), size) for n, size in zip(shape, sizes, strict=True))


def grown(grid: Sequence[int], shape: tuple[int, ...], budget: int, first: int = 0) -> list[int]:
    """Put neighbours in a grid together, those along the last axis first, up to so many pixels.

    Axes before the first one are left as they are.
    """
    sizes = list(grid)
    for k in reversed(range(first, len(sizes))):
        whole = max(1, -(-shape[k] // sizes[k]))
        sizes[k] *= max(1, min(whole, budget // math.prod(sizes)))
        if sizes[k] < shape[k]:
            break
    return sizes


def description_of(arr: da.Array) -> Description | None:
    """Return what an array shows of files; None for any other."""
    return arr.description if isinstance(arr, TiledArray) else None
