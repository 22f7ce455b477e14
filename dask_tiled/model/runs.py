"""Runs of equally spaced frames of a file, each as one piece."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dask_tiled.model.indexing import Index
from dask_tiled.model.pieces import PieceTable, axis_columns, piece_table


def run_table(
    first: Index,
    sig_shape: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    numbers: Index | None = None,
    file: npt.ArrayLike = 0,
    decoder: int = 0,
) -> PieceTable:
    """Return a piece for each run of equally spaced frames in a file.

    Parameters
    ----------
    first : int64 array
        Position in the file, in bytes, of the first unit of each frame.
    sig_shape, strides : tuple of int
        Shape of a frame, and bytes from one unit to the next along its axes.
    numbers : int64 array, optional
        Numbers of the frames, in ascending order; by default all.
    file : int or array of int
        Index of the file of each frame.
    decoder : int
        Index of the decoder in the layout.
    """
    numbers = np.arange(len(first)) if numbers is None else numbers
    files = np.broadcast_to(np.asarray(file, np.int64), first.shape)
    steps = np.diff(first)
    near = (np.diff(numbers) == 1) & (np.diff(files) == 0)
    same = (np.diff(steps) == 0) & near[1:] & near[:-1]
    # Each run ends with a single step that differs from its neighbours.
    inside = np.zeros(len(steps), bool)
    inside[1:] |= same
    inside[:-1] |= same
    new = ~inside
    new[1:] |= inside[:-1] & ~same
    starts = np.append(0, np.flatnonzero(new) + 1)[: len(first)]
    counts = np.diff(starts, append=len(first))
    along = np.where(counts > 1, np.append(steps, 0)[starts], 0)
    return piece_table(
        axis_columns(numbers[starts], (0,) * len(sig_shape)),
        axis_columns(counts, sig_shape),
        first[starts],
        axis_columns(along, strides),
        file=files[starts],
        decoder=decoder,
    )
