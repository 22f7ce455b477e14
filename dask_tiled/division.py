"""Whole numbers for tiling: axes divided evenly, or as dask says it."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.array.core import normalize_chunks

from dask_tiled.errors import TilingError


def read_chunks(
    chunks: Any, shape: tuple[int, ...], dtype: np.dtype
) -> tuple[tuple[int, ...], ...]:
    """Read chunks as dask takes them.

    Raises
    ------
    TilingError
        They do not suit the shape, or are none.
    """
    try:
        sizes = normalize_chunks(chunks, shape=shape, dtype=dtype)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise TilingError(str(error), expected=f"chunks of {shape}", found=chunks) from error
    if any(type(n) is not int or n < 0 for axis in sizes for n in axis):
        raise TilingError("chunks must be whole numbers", found=chunks)
    return sizes


def covers(chunks: Any, shape: tuple[int, ...]) -> bool:
    """Tell whether chunks are tuples of sizes that add up to a shape."""
    tuples = isinstance(chunks, tuple) and all(isinstance(axis, tuple) for axis in chunks)
    return tuples and tuple(map(sum, chunks)) == shape


def split(size: int, chunk: int) -> tuple[int, ...]:
    """Cut an axis into chunks of one size; the last one takes what is left."""
    whole, rest = divmod(size, chunk)
    return (chunk,) * whole + (rest,) * (rest > 0)


def even_size(size: int, limit: int, unit: int = 1) -> int:
    """Find the size of equal chunks, the last of which is at least half as large as the others.

    Parameters
    ----------
    size : int
        Length of the axis.
    limit : int
        Largest size of a chunk; taken as ``unit`` where it is smaller.
    unit : int
        Chunks are multiples of this, but for the last one.

    Returns
    -------
    int
        Never smaller for a larger limit.
    """
    size_units = -(-size // unit)
    limit_units = max(1, limit // unit)
    if limit_units >= size_units:
        return size
    for count in range(-(-size_units // limit_units), size_units):
        chunk = -(-size_units // count) * unit
        if 2 * (size - (-(-size // chunk) - 1) * chunk) >= chunk:
            return chunk
    return unit


def fill(
    shape: tuple[int, ...], budget: int, units: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Take whole axes from the last one on, and an even part of the first that does not fit."""
    sizes = []
    for n, unit in zip(reversed(shape), reversed(units or (1,) * len(shape)), strict=True):
        size = even_size(n, budget, min(unit, n))
        sizes.append(size)
        budget = max(1, budget // size) if size == n else 1
    return tuple(reversed(sizes))


def largest_divisor(size: int, limit: int) -> int:
    """Find the largest divisor of ``size`` that is at most ``limit``."""
    return next(n for n in range(max(1, min(size, limit)), 0, -1) if size % n == 0)
