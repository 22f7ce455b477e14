"""Whole numbers for tiling: axes divided evenly between blocks, or as dask says it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from dask.array.core import normalize_chunks

from dask_tiled.errors import TilingError


class Base(NamedTuple):
    """Where an axis may be cut: between blocks of one size.

    ``lead`` positions of the first block lie before the axis begins.
    """

    size: int = 1
    lead: int = 0

    @classmethod
    def of(cls, size: int, start: int, step: int) -> Base:
        """Give the blocks of an axis that shows every ``step``-th position from ``start`` on."""
        if step >= size:  # no two positions lie in one block
            return cls()
        common = math.lcm(size, step)
        first = -(-(-start % common) // step)
        return cls(common // step, -first % (common // step))

    def at(self, start: int) -> Base:
        """Give the blocks of the part of the axis that begins at ``start``."""
        return Base(self.size, (self.lead + start) % self.size)


def read_chunks(
    chunks: Any, shape: tuple[int, ...], dtype: np.dtype, dims: Sequence[str] = ()
) -> tuple[tuple[int, ...], ...]:
    """Read chunks as dask takes them; a mapping may also name its axes."""
    if _covers(chunks, shape):
        return chunks  # there may be a million
    if isinstance(chunks, Mapping):
        unknown = [key for key in chunks if key not in (*dims, *range(-len(shape), len(shape)))]
        if unknown:
            raise TilingError(
                "chunks for an axis that is not there",
                expected=", ".join(dims) or f"numbers below {len(shape)}",
                found=unknown[0],
            )
        chunks = {list(dims).index(k) if k in dims else k: n for k, n in chunks.items()}
    try:
        sizes = normalize_chunks(chunks, shape=shape, dtype=dtype)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise TilingError(str(error), expected=f"chunks of {shape}", found=chunks) from error
    if not _covers(sizes, shape):
        raise TilingError("chunks must be whole numbers", found=chunks)
    return sizes


def _covers(chunks: Any, shape: tuple[int, ...]) -> bool:
    """Tell whether chunks are tuples of sizes that add up to a shape."""
    if not isinstance(chunks, tuple) or len(chunks) != len(shape):
        return False
    return all(
        isinstance(axis, tuple)
        and {*map(type, axis)} == {int}
        and min(axis) >= 0
        and sum(axis) == size
        for axis, size in zip(chunks, shape, strict=True)
    )


def split(size: int, chunk: int, lead: int = 0) -> tuple[int, ...]:
    """Cut an axis into chunks of one size.

    The first is ``lead`` shorter, the last takes what is left.
    """
    if chunk >= size:
        return (size,)
    whole, rest = divmod(size + lead, chunk)
    return (chunk - lead,) + (chunk,) * (whole - 1) + (rest,) * (rest > 0)


def even_size(size: int, limit: int, unit: int = 1, lead: int = 0) -> int:
    """Find the size of equal chunks, the last of which is at least half as large as the others.

    They are multiples of ``unit``, even beyond the limit, but for the last, and the first, which is
    ``lead`` shorter. The size is never smaller for a larger limit.
    """
    if size <= max(limit, unit - lead):
        return size
    total = size + lead
    units = -(-total // unit)
    for count in range(-(-units // max(1, limit // unit)), units):
        chunk = -(-units // count) * unit
        if 2 * (total - (-(-total // chunk) - 1) * chunk) >= chunk:
            return min(chunk, size)
    return min(unit, size)


def least_sizes(shape: Sequence[int], bases: Sequence[Base]) -> list[int]:
    """Give the smallest parts that axes may be cut into."""
    return [even_size(n, 1, *base) for n, base in zip(shape, bases, strict=True)]


def fill(shape: tuple[int, ...], budget: int, bases: Sequence[Base]) -> tuple[int, ...]:
    """Take whole axes from the last one on, and an even part of the first that does not fit.

    The smallest parts are taken even if they have more elements than the budget.
    """
    sizes = least_sizes(shape, bases)
    for k in range(len(shape) - 1, -1, -1):
        limit = budget // (math.prod(sizes[:k]) * math.prod(sizes[k + 1 :]))
        sizes[k] = even_size(shape[k], limit, *bases[k])
        if sizes[k] < shape[k]:
            break
    return tuple(sizes)


def largest_divisor(size: int, limit: int) -> int:
    """Find the largest divisor of ``size`` that is at most ``limit``."""
    return next(n for n in range(max(1, min(size, limit)), 0, -1) if size % n == 0)
