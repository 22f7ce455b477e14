"""Streams of events: layouts of sparse pieces, and frames of a scan that may be added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.files.file import File
from dask_tiled.model.blocks import Fetch
from dask_tiled.model.decoders import EventDecoder, function_at
from dask_tiled.model.events import EventRun, EventTarget
from dask_tiled.model.indexing import Array, Index
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import axis_columns, piece_table

SUM = "sum"
"""Value of the option ``frames`` that adds up all frames."""
WORDS = 1 << 16
"""Number of words of 2 bytes."""


def event_layout(
    files: Sequence[File],
    n_frames: int,
    sig_shape: tuple[int, ...],
    decoder: EventDecoder,
    *,
    offset: Index,
    nbytes: Index,
    start: Index,
    stop: Index,
    state: Index | int = 0,
    events: Index | int = 0,
    file: Index | int = 0,
) -> Layout:
    """Lay out sparse pieces, each of which may add to whole frames.

    Parameters
    ----------
    files : sequence of File
    n_frames : int
    sig_shape : tuple of int
    decoder : EventDecoder
    offset, nbytes, start, stop : int64 arrays
        For each piece its position in the file and its length, its first frame and the frame after
        its last.
    state, events, file : int64 arrays, or one number for all pieces
        The number that the decoder needs, the number of events that it lists, and the index of the
        file.
    """
    numbers = np.zeros((len(offset), 1 + len(sig_shape)), np.int64)
    numbers[:, 0], numbers[:, 1] = state, events
    table = piece_table(
        axis_columns(start, (0,) * len(sig_shape)),
        axis_columns(np.maximum(stop - start, 0), sig_shape),
        offset,
        numbers,
        file=file,
        nbytes=nbytes,
    )
    return Layout(files, (n_frames,), sig_shape, table, [decoder])


def frames_shown(path: str, frames: Any, count: int) -> range:
    """Return the numbers of the frames that a user asks for, of ``count`` in the file.

    Parameters
    ----------
    path : str
        Path named in errors.
    frames : "sum" or slice
        All frames, which are added up, or some of them.
    count : int

    Raises
    ------
    DatasetError
        The value is another one, or a slice without any frame.
    """
    every = range(count)
    if isinstance(frames, str) and frames == SUM:
        return every
    try:
        some = every[frames] if isinstance(frames, slice) else range(0)
    except (TypeError, ValueError):
        some = range(0)
    if not some:
        expected = f'"{SUM}", or a slice with some of {count} frames'
        raise DatasetError("invalid frames", path=path, expected=expected, found=repr(frames))
    return some


def count_words(run: EventRun, fetch: Fetch) -> Index:
    """Count how often each word of 2 bytes occurs in some pieces."""
    kernel = function_at("dask_tiled.kernels.events:words_kernel")()
    numbers = np.zeros((2, WORDS), np.int64)
    for part, data in run.parts(fetch):
        kernel(data, part.offsets, part.sizes, numbers.reshape(-1))
    return numbers.sum(axis=0)


def add_words(run: EventRun, target: EventTarget, columns: Array, numbers: Index) -> None:
    """Add a number of each word to its column in one row of an output; -1 leaves words out."""
    some = np.flatnonzero((columns >= 0) & (numbers > 0))
    sums = np.zeros(columns.max() + 1, np.int64)
    np.add.at(sums, columns[some], numbers[some])
    row = target.out[target.places[0] :][: len(sums)]
    most = min(np.iinfo(row.dtype).max, np.iinfo(np.int64).max)
    if (sums > most - row.astype(np.int64)).any():
        overflow(run, target.out.dtype)
    row += sums.astype(row.dtype)


def overflow(run: EventRun, dtype: np.dtype) -> NoReturn:
    """Raise the error of a pixel that has more counts than its dtype can hold."""
    what, hint = "more counts in a pixel than its type can hold", 'Pass dtype="uint32".'
    raise DatasetError(what, path=run.file.path, found=dtype, hint=hint)
