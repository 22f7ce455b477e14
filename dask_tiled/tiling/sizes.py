"""Sizes of chunks: parsed as in dask, split and merged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from dask import config
from dask.utils import parse_bytes
from numpy.lib.array_utils import normalize_axis_index

from dask_tiled.errors import TilingError
from dask_tiled.tiling.bases import Chunks, ceil_div, largest_divisor, split


def least_count(
    chunks: Any, shape: tuple[int, ...], dtype: np.dtype, dims: Sequence[str] = ()
) -> int:
    """Return a lower bound of the number of chunks, before they are normalized.

    Chunks of given sizes are counted along each axis, chunks that dask chooses all together.
    """
    if isinstance(chunks, Mapping):
        named = [chunks.get(name, chunks.get(k)) for k, name in enumerate(dims)]
        given = [
            chunks.get(k - len(shape)) if entry is None else entry for k, entry in enumerate(named)
        ]
    else:
        given = [*chunks] if isinstance(chunks, tuple | list) else [chunks] * len(shape)
    sizes = zip(shape, given, strict=False)
    whole = [
        (n, int(entry)) for n, entry in sizes if isinstance(entry, int | np.integer) and entry > 0
    ]
    count = sum(ceil_div(n, entry) for n, entry in whole)
    count += sum(len(entry) for entry in given if isinstance(entry, tuple | list))
    for entry in given:
        if isinstance(entry, str):
            with suppress(ValueError):  # read_chunks raises the error
                limit = parse_bytes(config.get("array.chunk-size") if entry == "auto" else entry)
                count = max(count, math.prod(shape) * dtype.itemsize // max(1, int(limit)))
    return count


def read_chunks(
    chunks: Any, shape: tuple[int, ...], dtype: np.dtype, dims: Sequence[str] = ()
) -> tuple[tuple[int, ...], ...]:
    """Normalize chunks as in dask; a mapping may also use names of axes."""
    if _covers(chunks, shape):
        return chunks  # normalizing a million sizes is slow
    if isinstance(chunks, Mapping):
        unknown = [key for key in chunks if key not in (*dims, *range(-len(shape), len(shape)))]
        if unknown:
            raise TilingError(
                "chunks for an axis that does not exist",
                expected=", ".join(dims) or f"numbers below {len(shape)}",
                found=unknown[0],
            )
        chunks = {list(dims).index(k) if k in dims else k: n for k, n in chunks.items()}
    sizes = _normalized(chunks, shape, dtype)
    if not _covers(sizes, shape):
        raise TilingError("chunks must be whole numbers", found=chunks)
    return sizes


def _normalized(
    chunks: Any,
    shape: tuple[int, ...],
    dtype: np.dtype,
    limit: int | None = None,
    before: tuple[tuple[int, ...], ...] | None = None,
) -> tuple[tuple[int, ...], ...]:
    from dask.array.core import normalize_chunks

    try:
        return normalize_chunks(chunks, shape, limit, dtype, before)
    except (ValueError, TypeError, ArithmeticError) as error:
        problem = "chunks of size 0" if isinstance(error, ZeroDivisionError) else str(error)
        raise TilingError(problem, expected=f"chunks of {shape}", found=chunks) from error


def _covers(chunks: Any, shape: tuple[int, ...]) -> bool:
    """Return whether chunks are tuples of sizes that add up to a shape."""
    if not isinstance(chunks, tuple) or len(chunks) != len(shape):
        return False
    return all(
        isinstance(axis, tuple)
        and {*map(type, axis)} == {int}
        and min(axis) >= 0
        and sum(axis) == size
        for axis, size in zip(chunks, shape, strict=True)
    )


def rechunked(
    chunks: Any,
    before: tuple[tuple[int, ...], ...],
    dtype: np.dtype,
    limit: int | None,
    *,
    balance: bool,
) -> tuple[tuple[int, ...], ...]:
    """Normalize the chunks of ``rechunk`` as dask does: axes without new ones keep theirs."""
    import dask.array as da

    if isinstance(chunks, dict):
        if unknown := [axis for axis in chunks if not isinstance(axis, int | np.integer)]:
            raise TypeError(f"axes must be numbers, not {unknown[0]!r}")
        named = {normalize_axis_index(axis, len(before)): sizes for axis, sizes in chunks.items()}
        chunks = tuple(map(named.get, range(len(before))))
    if isinstance(chunks, tuple | list):
        chunks = tuple(
            old if new is None else new for new, old in zip(chunks, before, strict=False)
        )
    shape = tuple(map(sum, before))
    asked = _normalized(chunks, shape, dtype, limit, before)
    if balance:  # following dask
        asked = da.empty(shape, dtype, chunks=shape).rechunk(asked, balance=True).chunks
    return asked


def equal_chunks(
    what: str, chunks: Any, shape: tuple[int, ...], dtype: np.dtype, dims: Sequence[str] = ()
) -> tuple[int, ...]:
    """Normalize chunks that must be equal along every axis, as zarr requires.

    Raise a TilingError if the chunks are not equal.
    """
    axes = read_chunks(chunks, shape, dtype, dims)
    sizes = tuple(max(axis[0], 1) for axis in axes)
    if tuple(map(split, shape, sizes)) != axes:
        raise TilingError(f"{what} must be equal along every axis", found=axes)
    return sizes


def divided(
    sizes: tuple[int, ...], shape: tuple[int, ...], whole: int, budget: int
) -> tuple[int, ...]:
    """Divide sizes along the first axes, so that at most ``budget`` pixels remain if possible."""
    left = list(sizes)
    for k in range(whole):
        limit = max(1, budget // max(1, math.prod(left[:k] + left[k + 1 :])))
        # The part beyond the end of the array is not divided.
        even = left[k] > limit and left[k] == shape[k]
        left[k] = -(-left[k] // -(-left[k] // limit)) if even else largest_divisor(left[k], limit)
    return tuple(left)


def grown(grid: Sequence[int], shape: tuple[int, ...], budget: int, first: int = 0) -> list[int]:
    """Merge neighbours in a grid, along the last axes first, up to ``budget`` pixels.

    Axes before ``first`` are left as they are.
    """
    sizes = list(grid)
    for k in reversed(range(first, len(sizes))):
        whole = max(1, -(-shape[k] // sizes[k]))
        sizes[k] *= max(1, min(whole, budget // math.prod(sizes)))
        if sizes[k] < shape[k]:
            break
    return sizes


def common_sizes(chunks: Chunks) -> tuple[int, ...]:
    """Return the largest sizes that divide all chunks but the last ones along each axis."""
    return tuple(math.gcd(*axis[:-1]) if len(axis) > 1 else max(axis, default=1) for axis in chunks)


def divides(grid: Sequence[int], chunks: Chunks) -> bool:
    """Return whether chunk edges lie on the grid."""
    axes = zip(chunks, grid, strict=True)
    return not any(n % size for axis, size in axes for n in axis[:-1])
