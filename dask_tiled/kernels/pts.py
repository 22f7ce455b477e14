"""The numba kernels of JEOL's streams of X-ray events: words of 2 bytes with 4 bits for the kind.

A word sets the line or the column of the beam, in 4096 steps, or is one count in a channel. A new
frame begins where the line falls. The state of a stream is frame, line and column in one number.
Layout facts: RosettaSciIO's reader, and real files.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import from_dtype, types

from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, compiled
from dask_tiled.kernels.words import inlined, inner, little16

LINE, COLUMN, COUNT = 0x9, 0x8, 0xB
BITS, STEPS = 12, 4096


@inlined
def _moved(state, kind, value):
    """Return the state after a word."""
    if kind == COLUMN:
        return (state & ~np.int64(STEPS - 1)) | value
    line = (state >> BITS) & (STEPS - 1)
    frame = (state >> (2 * BITS)) + (value < line)
    return (frame << (2 * BITS)) | (value << BITS) | (state & (STEPS - 1))


@inlined
def _pixel(state, side):
    """Return the number of the pixel in all frames."""
    y, x = (state >> BITS) & (STEPS - 1), state & (STEPS - 1)
    return ((state >> (2 * BITS)) * side + y * side // STEPS) * side + x * side // STEPS


def index_scan(data, state, nbytes, side, rows):
    """Index the pieces of a stream; return its state at the end.

    Parameters
    ----------
    data : array of uint8
    state, nbytes : int
        State before the data, and bytes of a piece.
    side : int
        Pixels along both axes of a frame.
    rows : int64 array of shape (pieces, 3)
        Output: state before each piece, its first pixel with a count, and the one after its last.
    """
    for k in range(rows.shape[0]):
        first, after = np.int64(1) << 62, np.int64(0)
        rows[k, 0] = state
        for at in range(k * nbytes, min((k + 1) * nbytes, data.size - 1), 2):
            word = np.int64(little16(data, at))
            kind = word >> BITS
            if kind == COUNT:
                pixel = _pixel(state, side)
                first, after = min(first, pixel), max(after, pixel + 1)
            elif kind in (LINE, COLUMN):
                state = _moved(state, kind, word & (STEPS - 1))
        rows[k, 1], rows[k, 2] = first, after
    return state


@inner
def _row(state, side, frames, first, rows):
    """Return the place of a pixel, -1 if it is left out."""
    area, number = side * side, (state >> (2 * BITS)) - frames[0]
    if number < 0 or number % frames[1] or number // frames[1] >= frames[2]:
        return np.int64(-1)
    frame = 0 if frames[3] else number // frames[1]
    row = _pixel(state, side) % area + area * frame - first
    return rows[row] if 0 <= row < rows.size else np.int64(-1)


def add_scan(data, places, sizes, states, side, frames, first, rows, columns, out, most):
    """Add the counts of pieces; return -1, or the position of one that its pixel cannot hold.

    Parameters
    ----------
    data : array of uint8
    places, sizes, states : int64 arrays
        Position, size and state of each piece.
    side : int
        Pixels along both axes of a frame.
    frames : int64 array
        Number of the first frame, distance and number of frames, and 1 if they are added up.
    first : int
        Pixel of the first row.
    rows, columns : int64 arrays
        Place of each pixel, and of each channel relative to it; -1 if left out.
    out : array of integers
    most : int
        The largest integer of its dtype, or of int64.
    """
    for k in range(places.size):
        state = states[k]
        row = _row(state, side, frames, first, rows)
        for at in range(places[k], places[k] + sizes[k] - 1, 2):
            word = np.int64(little16(data, at))
            kind, value = word >> BITS, word & (STEPS - 1)
            if kind in (LINE, COLUMN):
                state = _moved(state, kind, value)
                row = _row(state, side, frames, first, rows)
            elif kind == COUNT and row >= 0 and columns[value] >= 0:
                before = np.int64(out[row + columns[value]])
                if before >= most:
                    return at
                out[row + columns[value]] = before + 1
    return np.int64(-1)


@cache
def index_kernel() -> Any:
    """Compile :func:`index_scan`, once per process."""
    signature = types.int64(BYTES, *[NUMBER] * 3, types.int64[:, ::1])
    return compiled(f"{__name__}:index_scan", signature)


@cache
def add_kernel(dtype: np.dtype) -> Any:
    """Compile :func:`add_scan` for the dtype of an output."""
    fixed = types.Array(types.int64, 1, "C", readonly=True)
    out = types.Array(from_dtype(dtype), 1, "C")
    counted = NUMBER, fixed, NUMBER, fixed, fixed
    signature = types.int64(BYTES, *[NUMBERS] * 3, *counted, out, NUMBER)
    return compiled(f"{__name__}:add_scan", signature)
