"""Gaps of a chunk grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dask_tiled.model.indexing import Index


def gaps(written: Index, shape: Sequence[int], chunk: Sequence[int]) -> tuple[Index, Index]:
    """Find boxes that cover all unwritten chunks: few boxes, however large the grid.

    Parameters
    ----------
    written : int64 array, of shape (chunks, axes)
        Positions of the chunks in their grid, in C order.
    shape, chunk : sequence of int
        Shapes of the array and of a chunk.

    Returns
    -------
    start, shape : int64 array, of shape (boxes, axes)
        In pixels.
    """
    grid = np.array([-(-n // size) for n, size in zip(shape, chunk, strict=True)])
    if not len(written):
        return np.zeros((1, len(grid)), np.int64), np.array([shape])
    starts, stops = [], []
    new = np.arange(len(written)) == 0  # where positions on the previous axes change
    for k, n in enumerate(grid):
        begins = new
        new = begins | np.concatenate([[True], np.diff(written[:, k]) != 0])
        here, first = written[new], begins[new]
        before = np.where(first, -1, np.roll(here[:, k], 1))
        last = np.roll(first, -1)
        low = np.concatenate([before + 1, here[last, k] + 1])
        high = np.concatenate([here[:, k], np.full(last.sum(), n)])
        corners = np.concatenate([here, here[last]])
        start, stop = corners.copy(), corners + 1
        start[:, k], stop[:, k] = low, high
        start[:, k + 1 :], stop[:, k + 1 :] = 0, grid[k + 1 :]
        some = low < high
        starts.append(start[some])
        stops.append(stop[some])
    start, stop = (np.concatenate(ends) * np.array(chunk, np.int64) for ends in (starts, stops))
    return start, np.minimum(stop, np.array(shape, np.int64)) - start
