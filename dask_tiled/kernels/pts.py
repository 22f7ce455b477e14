"""The numba kernels of JEOL's streams of X-ray events: words of 2 bytes with 4 bits for the kind.

A word sets the line or the column of the beam, in 4096 steps, or is one count in a channel. A new
frame begins where the line falls. Layout facts: RosettaSciIO's reader, and real files.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import from_dtype, types

from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, compiled
from dask_tiled.kernels.events import count
from dask_tiled.kernels.limits import SKIPPED_BYTES
from dask_tiled.kernels.words import inlined, inner, little16

LINE, COLUMN, COUNT = 0x9, 0x8, 0xB
BITS, STEPS = 12, 4096
OFFSET, FRAME, FIRST, LAST, BEFORE, AFTER = range(6)
"""Columns of the index: the offset of a piece, its frame, its first and its last line, and the
columns of the beam before and after it."""


@inlined
def _kind(data, at):
    return little16(data, at) >> np.uint16(BITS)


@inlined
def _value(data, at):
    return np.int64(little16(data, at)) & (STEPS - 1)


@inner
def _has_line(data, at):
    found = False
    for i in range(SKIPPED_BYTES // 2):
        found |= _kind(data, at + 2 * i) == LINE
    return found


@inner
def _column(data, first, stop, column):
    """Return the last column that a word sets, else the one before."""
    for at in range(stop - 2, first - 1, -2):
        if _kind(data, at) == COLUMN:
            return _value(data, at)
    return column


def index_scan(data, offset, nbytes, rows):
    """Index the pieces of a part of a stream; return how many end in it.

    Parameters
    ----------
    data : array of uint8
        Whole words.
    offset, nbytes : int
        Offset of the data in the file, and bytes of a piece; the last one of a frame has fewer.
    rows : int64 array of shape (pieces, 6)
        Output, with room for a piece for each word after the first row, a piece that has begun.
    """
    k, at, begin = np.int64(0), np.int64(0), np.int64(0)
    end, line = rows[0, OFFSET] + nbytes - offset, rows[0, LAST]
    while at < data.size:
        falls = _kind(data, at) == LINE and _value(data, at) < line
        if falls or at >= end:
            rows[k, LAST], rows[k, AFTER] = line, _column(data, begin, at, rows[k, AFTER])
            line = _value(data, at) if falls else line
            rows[k + 1, OFFSET], rows[k + 1, FRAME] = offset + at, rows[k, FRAME] + falls
            rows[k + 1, FIRST], rows[k + 1, BEFORE:] = line, rows[k, AFTER]
            k, begin, end = k + 1, at, at + nbytes
        if at + SKIPPED_BYTES <= min(end, data.size) and not _has_line(data, at):
            at += SKIPPED_BYTES
            continue
        line = _value(data, at) if _kind(data, at) == LINE else line
        at += 2
    rows[k, LAST], rows[k, AFTER] = line, _column(data, begin, at, rows[k, AFTER])
    return k


def add_scan(data, places, sizes, starts, states, shift, first, rows, words, by_pixel, out):
    """Add the counts of pieces; return -1, or the position of one with a count that does not fit.

    Parameters
    ----------
    data : array of uint8
    places, sizes, starts, states : int64 arrays
        Position, size, first pixel and state of each piece: line and column before it.
    shift : int
        Bits of the steps from a pixel to the next.
    first : int
        Pixel of the first row.
    rows : int64 array
        Place of each pixel; -1 if left out.
    words : int32 array
        Place of the channel of each word, relative to the pixel; -1 if left out.
    by_pixel : bool
        Whether all channels have the place 0.
    out : array of integers
    """
    stops = np.empty(sizes.max() // 2 + 1, np.int64)
    for k in range(places.size):
        at, length, ends = places[k], sizes[k] // 2, np.int64(0)
        y, x = (states[k] >> BITS) >> shift, (states[k] & (STEPS - 1)) >> shift
        corner, begin, wrong = starts[k] - first - (y << (BITS - shift)), np.int64(0), False
        for i in range(length):  # words that are no counts, found without a branch
            stops[np.uint64(ends)] = i
            ends += _kind(data, at + 2 * i) != COUNT
        stops[ends] = length
        for stop in stops[: ends + 1]:
            pixel, row = corner + (y << (BITS - shift)) + x, np.int64(-1)
            if 0 <= pixel < rows.size:
                row = rows[pixel]
            if row >= 0 and by_pixel:
                wrong |= count(out, row, stop - begin)
            elif row >= 0:
                for i in range(begin, stop):
                    column = np.int64(words[np.uint64(little16(data, at + 2 * i))])
                    wrong |= count(out, row + max(column, np.int64(0)), column >= 0)
            if stop < length:
                kind, value = _kind(data, at + 2 * stop), _value(data, at + 2 * stop) >> shift
                y = value if kind == LINE else y
                x = value if kind == COLUMN else x
            begin = stop + 1
        if wrong:
            return at
    return np.int64(-1)


@cache
def index_kernel() -> Any:
    """Compile :func:`index_scan`, once per process."""
    rows = types.int64[:, ::1]
    return compiled(f"{__name__}:index_scan", types.int64(BYTES, NUMBER, NUMBER, rows))


@cache
def add_kernel(dtype: np.dtype) -> Any:
    """Compile :func:`add_scan` for the dtype of an output."""
    fixed = types.Array(types.int64, 1, "C", readonly=True)
    words, out = (types.Array(from_dtype(one), 1, "C") for one in (np.dtype("i4"), dtype))
    numbers = *[NUMBERS] * 4, NUMBER, NUMBER, fixed, words, types.boolean
    return compiled(f"{__name__}:add_scan", types.int64(BYTES, *numbers, out))
