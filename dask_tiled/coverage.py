"""Whether pieces cover an array: pixels that several of them hold, and pixels that none holds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.pieces import PieceTable
from dask_tiled.selection import Index

Corner = tuple[int, ...]


def check_inside(pieces: PieceTable, shape: tuple[int, ...]) -> None:
    """Make sure that all pieces are boxes inside an array.

    Raises
    ------
    DatasetError
        One is not.
    """
    for axis, size in enumerate(shape):
        start, length = pieces.column("start", axis), pieces.column("shape", axis)
        bad = np.flatnonzero((start < 0) | (length < 1) | (start > size - length))
        if len(bad):
            i = int(bad[0])
            first, count = (int(c[i if len(c) > 1 else 0]) for c in (start, length))
            raise DatasetError(
                "a piece lies outside of the array",
                where=f"piece {i}, axis {axis}",
                expected=f"positions 0 to {size}",
                found=f"{count} from {first} on",
            )


def first_hole(pieces: PieceTable, shape: tuple[int, ...], *, overlapping: bool) -> Corner | None:
    """Find a pixel that no piece holds.

    Boxes are cut at edges of pieces until one meets none, the first ones first.

    Parameters
    ----------
    pieces : PieceTable
    shape : tuple of int
        Shape of the array.
    overlapping : bool
        Whether pieces may have pixels in common. If none have, it is enough to count.

    Returns
    -------
    tuple of int, or None
    """
    if not overlapping and pieces.size == math.prod(shape):
        return None
    todo = [((0,) * len(shape), shape)]
    while todo:
        low, high = todo.pop()
        met = pieces.rows(pieces.tree.meeting(low, high))
        if not len(met.file):
            return low
        start = np.maximum(met.start, low)
        stop = np.minimum(met.start + met.shape, high)
        held = (stop - start).prod(axis=1)
        size = math.prod(b - a for a, b in zip(low, high, strict=True))
        if held.max() == size or (not overlapping and held.sum() == size):
            continue
        axis, at = _cut(start, stop, low, high)
        todo.append(((*low[:axis], at, *low[axis + 1 :]), high))
        todo.append((low, (*high[:axis], at, *high[axis + 1 :])))
    return None


def _cut(start: Index, stop: Index, low: Sequence[int], high: Sequence[int]) -> tuple[int, int]:
    """Choose an edge of a piece inside a box: the middle one along the axis with the most."""
    edges = []
    for axis in range(len(low)):
        found = np.unique(np.concatenate([start[:, axis], stop[:, axis]]))
        edges.append(found[(found > low[axis]) & (found < high[axis])])
    axis = max(range(len(edges)), key=lambda axis: len(edges[axis]))
    return axis, int(edges[axis][len(edges[axis]) // 2])
