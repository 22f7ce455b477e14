"""A tree of boxes that finds the boxes overlapping another box in logarithmic time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.model.indexing import Index

Numbers = npt.NDArray[Any]

FANOUT = 16
"""Children of a node of the tree."""
PAIRS = 1 << 12
"""Maximum number of pairs of nodes compared at a time."""


class _Bounds(NamedTuple):
    """Start and end of boxes or nodes along each axis; a single number if all are equal."""

    low: tuple[Numbers, ...]
    high: tuple[Numbers, ...]

    def meet(self, some: Index, low: Sequence[Any], high: Sequence[Any]) -> npt.NDArray[np.bool_]:
        """Return a mask of the selected boxes that intersect a box, or one box for each."""
        found = np.ones(len(some), bool)
        for axis in range(len(self.low)):
            found &= numbers_of(self.low[axis], some) < high[axis]
            found &= numbers_of(self.high[axis], some) > low[axis]
        return found


class BoxTree:
    """Bounding boxes in levels, each node around ``FANOUT`` boxes or nodes of the level below."""

    def __init__(self, start: Sequence[Numbers], stop: Sequence[Numbers], count: int) -> None:
        self._count = count
        self._boxes = _Bounds(tuple(start), tuple(stop))
        keys = [column for column in start if len(column) > 1]
        order = np.lexsort(keys[::-1]) if keys else np.arange(count)
        in_order = bool((np.diff(order) == 1).all())
        self._order = None if in_order else order.astype(np.min_scalar_type(count))
        self._levels: list[_Bounds] = []
        bounds, size = self._boxes, count
        while size > FANOUT:
            firsts = np.arange(0, size, FANOUT)
            sort = None if self._levels or in_order else order
            low = tuple(_reduced(np.minimum, column, firsts, sort) for column in bounds.low)
            high = tuple(_reduced(np.maximum, column, firsts, sort) for column in bounds.high)
            bounds, size = _Bounds(low, high), len(firsts)
            self._levels.append(bounds)

    def meeting(self, low: Sequence[int], high: Sequence[int]) -> Index:
        """Return the indices of the boxes that intersect a box, in ascending order."""
        found = np.arange(self._size(len(self._levels)))
        for depth in range(len(self._levels), 0, -1):
            found = found[self._levels[depth - 1].meet(found, low, high)]
            below = np.add.outer(found * FANOUT, np.arange(FANOUT)).ravel()
            found = below[below < self._size(depth - 1)]
        found = self._unsorted(found)
        return np.sort(found[self._boxes.meet(found, low, high)])

    def overlap(self) -> tuple[int, int] | None:
        """Return the numbers of two boxes that overlap, or None."""
        top = len(self._levels)
        nodes = np.arange(self._size(top))
        a, b = (axis.ravel() for axis in np.meshgrid(nodes, nodes, indexing="ij"))
        todo = [(top, a, b)]
        while todo:
            depth, a, b = todo.pop()
            if len(a) > PAIRS:
                todo.append((depth, a[PAIRS:], b[PAIRS:]))
            a, b = self._meeting_pairs(depth, a[:PAIRS], b[:PAIRS])
            if not len(a):
                continue
            if not depth:
                return int(a[0]), int(b[0])
            inside = np.arange(FANOUT)
            a = np.repeat(np.add.outer(a * FANOUT, inside), FANOUT, axis=1).ravel()
            b = np.tile(np.add.outer(b * FANOUT, inside), FANOUT).ravel()
            todo.append((depth - 1, a, b))
        return None

    def _meeting_pairs(self, depth: int, a: Index, b: Index) -> tuple[Index, Index]:
        """Keep the pairs that intersect, each pair once, without pairing a box with itself."""
        size = self._size(depth)
        there = (a < b + bool(depth)) & (b < size)
        a, b = a[there], b[there]
        bounds = self._levels[depth - 1] if depth else self._boxes
        if not depth:
            a, b = self._unsorted(a), self._unsorted(b)
        low = [numbers_of(column, b) for column in bounds.low]
        high = [numbers_of(column, b) for column in bounds.high]
        meet = bounds.meet(a, low, high)
        return a[meet], b[meet]

    def _size(self, depth: int) -> int:
        """Return the number of nodes in a level; level 0 holds the boxes."""
        return -(-self._count // FANOUT**depth)

    def _unsorted(self, found: Index) -> Index:
        return found if self._order is None else self._order[found].astype(np.int64)


def numbers_of(column: Numbers, some: Index | slice) -> Numbers:
    """Return the entries of some boxes; a column of length 1 stands for all boxes."""
    return column if len(column) == 1 else column[some]


def _reduced(ufunc: np.ufunc, column: Numbers, firsts: Index, order: Index | None) -> Numbers:
    """Return the minimum or maximum of each node."""
    if len(column) == 1:
        return column
    found: Numbers = ufunc.reduceat(column if order is None else column[order], firsts)
    return found
