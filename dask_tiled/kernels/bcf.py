"""The numba kernels of Bruker's maps: lines of pixels, each a header and its pulses or counts.

Layout facts: RosettaSciIO's reader, and real files.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import from_dtype, types

from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, compiled
from dask_tiled.kernels.words import byte, inlined, inner, little16, little32, little64
from dask_tiled.model.indexing import Bytes, Index

HEADER = 22
"""Bytes before the data of a pixel: column, packing at 12, further pulses at 16, length at 18."""
PULSES_16, PULSES_12 = 0, 1
TRAILING = 4
"""Bytes after the counts of a pixel."""
MOST_BYTES = 1 << 20
"""Limit of the data of a pixel."""
AT, LEFT, LINE = range(3)
"""State of the index: next byte, pixels left in the line, and number of the next line."""


@inlined
def _sizes(data, at):
    """Return packing, number of pulses, and bytes of the data and of further pulses of a pixel."""
    packing, pulses = np.int64(little16(data, at + 12)), np.int64(little16(data, at + 16))
    return packing, pulses, np.int64(little32(data, at + 18)), 2 * pulses * (packing > PULSES_12)


def index_lines(data, width, starts, state):
    """Find the lines in a part of a map; return whether what is there is right.

    Parameters
    ----------
    data : array of uint8
    width : int
        Most pixels of a line.
    starts : int64 array
        Output: position of each line, relative to the data; in it, ``state[LINE]`` is the next.
    state : int64 array of 3 numbers
        ``state[AT]`` ends where more data are needed, which may be beyond them.
    """
    while state[LINE] < starts.size or state[LEFT] > 0:
        at = state[AT]
        if at + (HEADER if state[LEFT] else 4) > data.size:
            break
        if state[LEFT] == 0:
            state[LEFT] = little32(data, at)
            if state[LEFT] > width:
                return False
            starts[state[LINE]] = at
            state[LINE] += 1
            state[AT] += 4
        else:
            _, _, length, further = _sizes(data, at)
            if length > MOST_BYTES:
                return False
            state[AT] += HEADER + length + further
            state[LEFT] -= 1
    return True


@inlined
def _count(out, row, columns, channel, number, most):
    """Add counts to a channel; return whether there is no such channel, or no room for them."""
    if channel >= columns.size:
        return number > 0
    column = columns[channel]
    if row < 0 or column < 0:
        return False
    before = np.int64(out[row + column])
    if number < 0 or before > most - number:
        return True
    out[row + column] = before + number
    return False


@inlined
def _nibble(data, at, k):
    """Return a half byte of big-endian words of 16 bits stored in little-endian order."""
    pair = np.int64(byte(data, at + ((k >> 1) ^ 1)))
    return pair & 15 if k & 1 else pair >> 4


@inner
def _add_pulses(data, at, count, packing, row, columns, out, most):
    """Add pulses, a channel each of 12 or 16 bits; return whether one has no room."""
    for k in range(count):
        if packing == PULSES_12:
            channel = _nibble(data, at, 3 * k) << 8
            channel |= _nibble(data, at, 3 * k + 1) << 4 | _nibble(data, at, 3 * k + 2)
        else:
            channel = np.int64(little16(data, at + 2 * k))
        if _count(out, row, columns, channel, np.int64(1), most):
            return True
    return False


@inlined
def _number(data, at, size):
    if size == 1:
        return np.int64(byte(data, at))
    if size == 2:
        return np.int64(little16(data, at))
    return np.int64(little32(data, at)) if size == 4 else np.int64(little64(data, at))


@inner
def _add_counts(data, at, end, row, columns, out, most):
    """Add the counts of all channels, in runs that share an offset; return whether they fail."""
    channel = np.int64(0)
    while at < end:
        if at + 2 > end:
            return True
        size, count = np.int64(byte(data, at)), np.int64(byte(data, at + 1))
        at += 2
        if size == 0:  # a run without counts
            channel += count
            continue
        nbytes = (count + 1) >> 1 if size == 1 else count * (size >> 1)
        if size > 8 or size & (size - 1) or at + size + nbytes > end:
            return True
        offset = _number(data, at, size)
        at += size
        for k in range(count):
            if size == 1:
                pair = np.int64(byte(data, at + (k >> 1)))
                number = pair >> 4 if k & 1 else pair & 15
            else:
                number = _number(data, at + k * (size >> 1), size >> 1)
            if _count(out, row, columns, channel + k, number + offset, most):
                return True
        channel += count
        at += nbytes
    return False


def add_lines(data, at, lines, width, rows, columns, out, most):
    """Add the pixels of lines; return -1, or the position of a pixel that is wrong.

    Parameters
    ----------
    data : array of uint8
    at : int
        Position of the first line.
    lines, width : int
        Number of lines, and pixels of a line.
    rows, columns : int64 arrays
        Place of each pixel of the lines, and of each channel relative to it; -1 if left out.
    out : array of integers
    most : int
        The largest integer of its dtype, or of int64.
    """
    for line in range(lines):
        if at + 4 > data.size:
            return at
        left = np.int64(little32(data, at))
        at += 4
        for _ in range(left):
            if at + HEADER > data.size:
                return at
            packing, pulses, length, further = _sizes(data, at)
            column, start = np.int64(little32(data, at)), at + HEADER
            end = start + length
            if column >= width or end + further > data.size:
                return at
            row = rows[line * width + column]
            if packing > PULSES_12:
                wrong = _add_counts(data, start, end - TRAILING, row, columns, out, most)
                wrong |= _add_pulses(data, end, pulses, packing, row, columns, out, most)
            else:
                fit = length // 2 if packing == PULSES_16 else (length & -2) * 2 // 3
                wrong = pulses > fit
                if not wrong:
                    wrong = _add_pulses(data, start, pulses, packing, row, columns, out, most)
            if wrong:
                return at
            at = end + further
    return np.int64(-1)


class LineIndexer:
    """Finds the lines of a map, part by part."""

    def __init__(self, height: int, width: int, first: int) -> None:
        self._lines, self._width = np.zeros(height, np.int64), width
        self._state = np.array([first, 0, 0])
        self._rest, self._at = np.empty(0, np.uint8), 0

    def add(self, part: Bytes) -> bool:
        """Index the next part; return whether what is there is right."""
        data = np.concatenate([self._rest, part])
        before = int(self._state[LINE])
        if not index_kernel()(data, self._width, self._lines, self._state):
            return False
        self._lines[before : self._state[LINE]] += self._at
        done = min(int(self._state[AT]), len(data))
        self._rest, self._at = data[done:], self._at + done
        self._state[AT] -= done
        return True

    @property
    def missing(self) -> str:
        """What the map lacks, as text."""
        beyond, pixels, line = self._state.tolist()
        lines = len(self._lines) - line
        return f"{lines} lines and {pixels} pixels less" if lines or pixels or beyond else ""

    @property
    def starts(self) -> Index:
        """Positions of the lines, and of their end."""
        return np.append(self._lines, self._at)


@cache
def index_kernel() -> Any:
    """Compile :func:`index_lines`, once per process."""
    signature = types.boolean(BYTES, NUMBER, NUMBERS, NUMBERS)
    return compiled(f"{__name__}:index_lines", signature)


@cache
def add_kernel(dtype: np.dtype) -> Any:
    """Compile :func:`add_lines` for the dtype of an output."""
    fixed = types.Array(types.int64, 1, "C", readonly=True)
    out = types.Array(from_dtype(dtype), 1, "C")
    signature = types.int64(BYTES, *[NUMBER] * 3, fixed, fixed, out, NUMBER)
    return compiled(f"{__name__}:add_lines", signature)
