"""Coverage of an array by pieces: overlaps and holes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.box_tree import BoxTree, Numbers, numbers_of
from dask_tiled.model.indexing import Index
from dask_tiled.model.pieces import PieceTable

Corner = tuple[int, ...]

MOST_CELLS = 1 << 13
"""Maximum number of cells checked at a time."""


def check_inside(pieces: PieceTable, shape: tuple[int, ...]) -> None:
    """Check that all pieces lie inside the array."""
    for axis, size in enumerate(shape):
        start, length = pieces.column("start", axis), pieces.column("shape", axis)
        bad = np.flatnonzero((start < 0) | (length < 1) | (start > size - length))
        if len(bad):
            i = int(bad[0])
            first, count = (int(numbers_of(c, bad[:1])[0]) for c in (start, length))
            raise DatasetError(
                "a piece lies outside of the array",
                where=f"piece {i}, axis {axis}",
                expected=f"positions 0 to {size}",
                found=f"{count} positions from {first} on",
            )


def overlap_error(pieces: PieceTable, pair: tuple[int, int]) -> DatasetError:
    """Return the error that names two overlapping pieces."""
    found = pieces.rows(np.array(pair))
    boxes = [
        f"{tuple(shape.tolist())} from {tuple(start.tolist())} on"
        for start, shape in zip(found.start, found.shape, strict=True)
    ]
    return DatasetError(
        "pieces overlap",
        where=f"pieces {pair[0]} and {pair[1]}",
        found=" and ".join(boxes),
        hint='Pass overlap="first" or overlap="last" to choose.',
    )


def first_hole(pieces: PieceTable, shape: tuple[int, ...], *, overlapping: bool) -> Corner | None:
    """Find a pixel that no piece covers.

    Edges of pieces cut the array into cells, each either covered completely or not at all. If there
    are very many cells, the array is halved first.
    """
    if not overlapping and pieces.size == math.prod(shape):
        return None
    todo = [((0,) * len(shape), shape)]
    while todo:
        low, high = todo.pop()
        met = pieces.rows(pieces.tree.meeting(low, high))
        start = np.maximum(met.start, low)
        stop = np.minimum(met.start + met.shape, high)
        size = math.prod(b - a for a, b in zip(low, high, strict=True))
        if not overlapping and (stop - start).prod(axis=1).sum() == size:
            continue
        edges = [
            np.unique(np.concatenate([start[:, k], stop[:, k], (low[k], high[k])]))
            for k in range(len(shape))
        ]
        counts = [len(found) - 1 for found in edges]
        if math.prod(counts) <= MOST_CELLS:
            hole = _empty_cell(start, stop, edges, counts)
            if hole is not None:
                return hole
            continue
        axis = max(range(len(counts)), key=counts.__getitem__)
        at = int(edges[axis][counts[axis] // 2])
        todo.append(((*low[:axis], at, *low[axis + 1 :]), high))
        todo.append((low, (*high[:axis], at, *high[axis + 1 :])))
    return None


def _empty_cell(
    start: Index, stop: Index, edges: Sequence[Index], counts: Sequence[int]
) -> Corner | None:
    """Find a cell that no box covers."""
    held = np.zeros(counts, bool)
    first, end = (
        np.column_stack([np.searchsorted(edge, c) for edge, c in zip(edges, corner.T, strict=True)])
        for corner in (start, stop)
    )
    for a, b in zip(first.tolist(), end.tolist(), strict=True):
        held[tuple(map(slice, a, b))] = True
    empty = int(held.argmin())
    if held.flat[empty]:
        return None
    place = np.unravel_index(empty, held.shape)
    return tuple(int(edge[i]) for edge, i in zip(edges, place, strict=True))


GROWTH = 1.05
"""Splitting is repeated while it multiplies the number of groups by at least this factor."""


def first_overlap(
    start: Sequence[Numbers], stop: Sequence[Numbers], count: int
) -> tuple[int, int] | None:
    """Find two boxes that overlap.

    Usually, planes between boxes separate nearly all of them; the rest are searched in a tree.
    """
    rest = _not_apart(start, stop, count)
    if not len(rest):
        return None
    low, high = ([numbers_of(column, rest) for column in bounds] for bounds in (start, stop))
    pair = BoxTree(low, high, len(rest)).overlap()
    return pair and (int(rest[pair[0]]), int(rest[pair[1]]))


def _not_apart(start: Sequence[Numbers], stop: Sequence[Numbers], count: int) -> Index:
    """List the boxes that planes do not separate from all others.

    Planes across one axis split the boxes into groups, planes across the next axis split each group
    further, and so on. Boxes of different groups do not overlap.
    """
    axes = [k for k in range(len(start)) if len(start[k]) > 1 or len(stop[k]) > 1]
    some = np.arange(count, dtype=np.min_scalar_type(count))
    group = np.zeros_like(some)
    parts, before = 1, 0
    while len(some) and parts > GROWTH * before:
        before = parts
        for k in axes:
            if count * int(stop[k].max()) <= np.iinfo(np.int64).max:
                alone = count - len(some)
                some, group, found = _parted(some, group, start[k], stop[k])
                parts = alone + found
    return some


def _parted(some: Index, group: Index, start: Numbers, stop: Numbers) -> tuple[Index, Index, int]:
    """Split groups along an axis; return the boxes that share a group, their groups, the count."""
    # Groups are laid end to end along the axis.
    size = int(stop.max())
    small = (int(group.max(initial=0)) + 1) * size <= np.iinfo(np.int32).max
    base = group.astype(np.int32 if small else np.int64) * size
    low, high = base + numbers_of(start, some), base + numbers_of(stop, some)
    order = _order(low)
    reach = np.maximum.accumulate(high[order])
    first = np.ones(len(some) + 1, bool)
    first[1:-1] = low[order[1:]] >= reach[:-1]
    group = np.cumsum(first[:-1], dtype=some.dtype)
    stays = ~(first[:-1] & first[1:])
    return some[order][stays], group[stays], int(group[-1]) if len(group) else 0


def _order(numbers: Numbers) -> Index:
    """Return the order that sorts non-negative numbers; packed with positions to sort faster."""
    bits = len(numbers).bit_length()
    if int(numbers.max(initial=0)) >> (63 - bits):
        return np.argsort(numbers)
    # This is several times as fast as argsort.
    both = numbers.astype(np.int64)
    both <<= bits
    both |= np.arange(len(numbers))
    both.sort()
    both &= (1 << bits) - 1
    return both
