"""Chunk grids: contiguous chunks, and gaps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dask_tiled.model.grids import gaps
from dask_tiled.model.indexing import Index

MOST_CELLS = 1 << 20
"""Examine at most this many cells."""
Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Start and shape."""


def join_chunks(
    start: Index,
    box: Index,
    offset: Index,
    strides: Index,
    chunk: Sequence[int],
    shape: Sequence[int],
) -> tuple[bool, Index, Index, Index, Index]:
    """Join all chunks, or those that are contiguous in the file, into larger pieces.

    ``start`` and ``box`` are the chunks in C order, ``offset`` their offsets, ``strides`` those of
    the pixels in a chunk. Returns whether there is a single piece, and start, shape, offset and
    strides of the pieces.
    """
    grid = [-(-n // size) for n, size in zip(shape, chunk, strict=True)]
    if len(start) == math.prod(grid):
        lattice = _lattice(offset.reshape(grid), strides, chunk)
        if lattice is not None:
            return True, start[:1], np.array([shape]), offset[:1], lattice
    nbytes = int(strides[0]) * chunk[0]
    axis = max((k for k, n in enumerate(grid) if n > 1), default=0)
    if nbytes != chunk[axis] * strides[axis] and chunk[axis] > 1:
        return False, start, box, offset, strides
    same = np.delete(start, axis, axis=1)
    follows = (np.diff(same, axis=0) == 0).all(axis=1)
    follows &= np.diff(start[:, axis]) == chunk[axis]
    follows &= np.diff(offset) == nbytes
    first = np.concatenate([[True], ~follows])
    last = np.concatenate([~follows, [True]])
    joined = box[first].copy()
    joined[:, axis] = start[last, axis] + box[last, axis] - start[first, axis]
    steps = strides.copy()
    steps[axis] = nbytes // chunk[axis]
    return False, start[first], joined, offset[first], steps


def _lattice(offsets: Index, strides: Index, chunk: Sequence[int]) -> Index | None:
    """Return the pixel strides of a whole grid of chunks; None if they are irregular."""
    found = strides.copy()
    for k, n in enumerate(offsets.shape):
        if n == 1:
            continue
        steps = np.diff(offsets, axis=k)
        step = int(steps.flat[0])
        if (steps != step).any() or (chunk[k] > 1 and step != chunk[k] * strides[k]):
            return None
        found[k] = step // chunk[k]
    return found


def uncovered(boxes: Sequence[Box], shape: Sequence[int]) -> tuple[Index, Index] | None:
    """Return boxes for the uncovered part; None if boxes overlap or are too many."""
    starts = np.array([start for start, _ in boxes], np.int64).reshape(-1, len(shape))
    stops = starts + np.array([size for _, size in boxes], np.int64).reshape(-1, len(shape))
    edges = [
        np.unique(np.concatenate([(0, n), low, high]))
        for n, low, high in zip(shape, starts.T, stops.T, strict=True)
    ]
    cells = [len(edge) - 1 for edge in edges]
    if math.prod(cells) > MOST_CELLS or (stops > shape).any():
        return None
    covered = np.zeros(cells, np.int8)
    for low, high in zip(starts, stops, strict=True):
        ends = zip(edges, low, high, strict=True)
        some = tuple(slice(*np.searchsorted(edge, (a, b)).tolist()) for edge, a, b in ends)
        if covered[some].any():
            return None
        covered[some] = 1
    start, size = gaps(np.argwhere(covered), cells, (1,) * len(cells))
    if not len(start):
        return start, size
    first = np.stack([edge[column] for edge, column in zip(edges, start.T, strict=True)], 1)
    stop = np.stack([e[column] for e, column in zip(edges, (start + size).T, strict=True)], 1)
    return first, stop - first


def boxes_between(first: int, stop: int, shape: Sequence[int]) -> Iterator[Box]:
    """Yield boxes that cover the pixels ``first`` to ``stop``, counted in C order."""
    while first < stop:
        # The outermost axis of which a whole position fits; a pixel of the last axis always does.
        inner = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
        axis = next(k for k, n in enumerate(inner) if first % n == 0 and first + n <= stop)
        start = tuple(int(n) for n in np.unravel_index(first, shape))
        count = min(shape[axis] - start[axis], (stop - first) // inner[axis])
        yield start, (*(1,) * axis, count, *shape[axis + 1 :])
        first += count * inner[axis]
