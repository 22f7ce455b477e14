"""Chunks of arrays whose edges are edges of what zarr stores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import dask.array as da

from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.model.description import Description
from dask_tiled.tiling.bases import cut_no_block, split
from dask_tiled.tiling.scheme import negotiate

TASK_BYTES = 16 << 20
"""Pixels that one task reads, unless more are stored as one. Memory of this size is used again by
the next task, where that of large chunks comes fresh from the system, page by page."""


def aligned(arr: da.Array, grid: tuple[int, ...]) -> da.Array:
    """Return the array chunks whose edges are edges of a grid; small ones where that is as good."""
    desc = description_of(arr)
    if isinstance(arr, TiledArray) and desc is not None:
        chunk, task = int(math.prod(arr.chunksize)), TASK_BYTES // arr.dtype.itemsize
        # Frames that are cut are read by as few tasks as the memory of a chunk allows.
        sizes = grown(grid, arr.shape, max(chunk, task), desc.nav_ndim)
        frames = zip(sizes[desc.nav_ndim :], arr.shape[desc.nav_ndim :], strict=True)
        cut = any(n < size for n, size in frames)
        if not cut:
            sizes = grown(sizes, arr.shape, min(task, chunk))
        small = _split(arr.shape, sizes)
        if cut or cut_no_block(desc, small, arr.chunks):
            return arr.with_chunks(small)
    if not any(n % size for axis, size in zip(arr.chunks, grid, strict=True) for n in axis[:-1]):
        return arr
    wanted = arr.chunksize
    if desc is not None:
        wanted = tuple(axis[0] for axis in negotiate(desc).chunks)
    sizes = [max(size, int(n) // size * size) for n, size in zip(wanted, grid, strict=True)]
    chunks = _split(arr.shape, sizes)
    if isinstance(arr, TiledArray) and desc is not None:
        return arr.with_chunks(chunks)
    return arr.rechunk(chunks)


def _split(shape: tuple[int, ...], sizes: list[int]) -> tuple[tuple[int, ...], ...]:
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
