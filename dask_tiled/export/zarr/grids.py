"""Which zarr chunks and shards are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.array.given import Given
from dask_tiled.blocks.alignment import grown
from dask_tiled.errors import TilingError
from dask_tiled.tiling.bases import largest_divisor, read_chunks, split

CHUNK_BYTES = 1 << 20
"""Bytes of a zarr chunk before compression, unless one frame is larger: they stay in the cache from
the file to the compressor."""
SHARD_BYTES = 16 << 20
"""Bytes of a shard before compression: to make a file takes as long as to compress some 100 kB."""


def grids_of(
    given: Given, chunks: Any, shards: Any
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Choose the zarr chunks and the shards: as asked for, or of whole frames."""
    shape, dtype = given.shape, given.dtype
    shard = None if shards is None else equal_chunks("shards", shards, shape, dtype)
    if chunks is not None:
        grid = equal_chunks("zarr chunks", chunks, shape, dtype)
    else:
        whole, size = given.nav_ndim, dtype.itemsize
        if shard is None and given.description is not None:  # its dask chunks need not be kept
            grid = cut(shape, shape, whole, CHUNK_BYTES // size)
            shard = tuple(grown(grid, shape, SHARD_BYTES // size))
        else:
            shard = shard or cut(given.chunksize, shape, whole, SHARD_BYTES // size)
            grid = cut(shard, shape, whole, CHUNK_BYTES // size)
        if shards is None and grid == shard:
            shard = None
    if shard is None:
        return grid, None
    # A shard that holds a whole axis may be longer than that.
    axes = zip(shard, grid, shape, strict=True)
    shard = tuple(-(-n // k) * k if n == size else n for n, k, size in axes)
    if any(n % k for n, k in zip(shard, grid, strict=True)):
        raise TilingError("shards must be multiples of zarr chunks", expected=grid, found=shard)
    return grid, shard


def cut(sizes: tuple[int, ...], shape: tuple[int, ...], whole: int, budget: int) -> tuple[int, ...]:
    """Divide sizes along the first axes, so that at most so many pixels are left, if they can."""
    left = list(sizes)
    for k in range(whole):
        limit = max(1, budget // max(1, math.prod(left[:k] + left[k + 1 :])))
        # What is beyond the end of the array need not be divided.
        even = left[k] > limit and left[k] == shape[k]
        left[k] = -(-left[k] // -(-left[k] // limit)) if even else largest_divisor(left[k], limit)
    return tuple(left)


def equal_chunks(
    what: str, chunks: Any, shape: tuple[int, ...], dtype: np.dtype, dims: Sequence[str] = ()
) -> tuple[int, ...]:
    """Read chunks as dask takes them, which zarr wants equal along every axis.

    Raises
    ------
    TilingError
        They are not.
    """
    axes = read_chunks(chunks, shape, dtype, dims)
    sizes = tuple(max(axis[0], 1) for axis in axes)
    if tuple(map(split, shape, sizes)) != axes:
        raise TilingError(f"{what} must be equal along an axis", found=axes)
    return sizes
