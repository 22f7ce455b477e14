"""Whether any of many boxes overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dask_tiled.model.box_tree import BoxTree, Numbers, narrow
from dask_tiled.model.selection import Index

GROWTH = 1.05
"""Planes are looked for again while there are so many times as many parts as before."""


def first_overlap(
    start: Sequence[Numbers], stop: Sequence[Numbers], count: int
) -> tuple[int, int] | None:
    """Find two boxes that overlap.

    As a rule, planes between boxes keep nearly all of them apart; a tree searches the others.

    Parameters
    ----------
    start, stop : sequence of arrays of int
        For each axis, where the boxes begin and end: one number for each, or one for all. None is
        negative.
    count : int
        Number of boxes.

    Returns
    -------
    tuple of int, or None
        The numbers of two boxes.
    """
    rest = _not_apart(start, stop, count)
    if not len(rest):
        return None
    low, high = ([_some(column, rest) for column in bounds] for bounds in (start, stop))
    pair = BoxTree(low, high, len(rest)).overlap()
    return pair and (int(rest[pair[0]]), int(rest[pair[1]]))


def _not_apart(start: Sequence[Numbers], stop: Sequence[Numbers], count: int) -> Index:
    """List the boxes that planes do not part from all others.

    Planes across one axis part the boxes into groups, those across the next axis part each group
    further, and so on. Boxes of different groups do not overlap.
    """
    axes = [k for k in range(len(start)) if len(start[k]) > 1 or len(stop[k]) > 1]
    some = narrow(np.arange(count + 1))[:-1]
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
    """Part groups of some boxes along one axis, leave out those alone in theirs, count groups."""
    # Groups are laid one after the other along the axis.
    size = int(stop.max())
    small = (int(group.max(initial=0)) + 1) * size <= np.iinfo(np.int32).max
    base = group.astype(np.int32 if small else np.int64) * size
    low, high = base + _some(start, some), base + _some(stop, some)
    order = _order(low)
    reach = np.maximum.accumulate(high[order])
    first = np.ones(len(some) + 1, bool)
    first[1:-1] = low[order[1:]] >= reach[:-1]
    group = np.cumsum(first[:-1], dtype=some.dtype)
    stays = ~(first[:-1] & first[1:])
    return some[order][stays], group[stays], int(group[-1]) if len(group) else 0


def _order(numbers: Numbers) -> Index:
    """Give the order that sorts numbers, none negative: with their places, if those fit in."""
    bits = len(numbers).bit_length()
    if int(numbers.max(initial=0)) >> (63 - bits):
        return np.argsort(numbers)
    # Several times faster than argsort.
    both = numbers.astype(np.int64)
    both <<= bits
    both |= np.arange(len(numbers))
    both.sort()
    both &= (1 << bits) - 1
    return both


def _some(column: Numbers, some: Index) -> Numbers:
    return column if len(column) == 1 else column[some]
