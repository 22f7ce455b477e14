"""Chunks of arrays whose edges are edges of what zarr stores."""

from __future__ import annotations

import dask.array as da

from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.model.description import Description
from dask_tiled.tiling.bases import split
from dask_tiled.tiling.negotiation import negotiate


def aligned(arr: da.Array, grid: tuple[int, ...]) -> da.Array:
    """Give the array chunks whose edges are edges of the zarr chunks."""
    if not any(n % size for axis, size in zip(arr.chunks, grid, strict=True) for n in axis[:-1]):
        return arr
    desc, wanted = description_of(arr), arr.chunksize
    if desc is not None:
        wanted = tuple(axis[0] for axis in negotiate(desc).chunks)
    sizes = [max(size, int(n) // size * size) for n, size in zip(wanted, grid, strict=True)]
    chunks = tuple(split(int(n), size) for n, size in zip(arr.shape, sizes, strict=True))
    if isinstance(arr, TiledArray) and desc is not None:
        return arr.with_chunks(chunks)
    return arr.rechunk(chunks)


def description_of(arr: da.Array) -> Description | None:
    """Give what an array shows of files; None for any other."""
    return arr.description if isinstance(arr, TiledArray) else None
