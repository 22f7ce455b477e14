"""Decode LZ4 blocks as its authors do: copies may overshoot their end.

Layout facts: the description of the LZ4 block format.
"""

from __future__ import annotations

import numpy as np

from dask_tiled.kernels.jit import njit
from dask_tiled.kernels.limits import LONG_MATCH
from dask_tiled.kernels.words import byte, copy16, fill, inner, little16, little64, move, store64

SLACK = 16
"""Bytes after the output that copies may overwrite."""
TOO_LONG = np.int64(1 << 62)
STEP = np.array([0, 8, 8, 9, 8, 10, 12, 14])
"""For each match distance, its smallest multiple of at least a word (8 bytes)."""
REPEAT = np.array([sum(1 << 8 * at for at in range(0, 8, k or 8)) for k in range(8)], np.uint64)
"""For each match distance, the factor that repeats its bytes across a word."""


@inner
def _length(src, at, stop, length):
    """Read the continuation bytes of a length; return their end and the length.

    Without an end, the length is ``TOO_LONG``.
    """
    while at < stop:
        more = np.int64(byte(src, at))
        at += 1
        length += more
        if more != 255:
            return at, length
    return at, TOO_LONG


@inner
def _repeat(out, at, back, count):
    """Copy ``count`` bytes from ``back`` bytes before; source and target may overlap."""
    if back == 1:
        fill(out, at, count, byte(out, at - 1))
        return
    stop = at + count
    if count > LONG_MATCH:  # double the size of each copy
        start = at - back
        while at < stop:
            length = min(at - start, stop - at)
            move(out, at, out, start, length)
            at += length
        return
    if back < 8:
        word = little64(out, at - back) & (np.uint64(-1) >> np.uint64(64 - 8 * back))
        store64(out, at, word * REPEAT[back])
        at += 8
        back = STEP[back]
    while at < stop:
        store64(out, at, little64(out, at - back))
        at += 8


@njit()
def unlz4(src, at, stop, out, size):
    """Decode the block ``src[at:stop]``; return whether it yields ``size`` bytes.

    ``out`` has ``SLACK`` more bytes; no access goes beyond either array.
    """
    end, done = src.size, np.int64(0)
    while at < stop:
        token = np.int64(byte(src, at))
        at += 1
        count = token >> 4
        if count == 15:
            at, count = _length(src, at, stop, count)
        if count > min(stop - at, size - done):
            return False
        if count <= 16 and at + 16 <= end:
            copy16(out, done, src, at)
        else:
            move(out, done, src, at, count)
        at += count
        done += count
        if at == stop:
            return done == size
        if stop - at < 2:
            return False
        back, count = np.int64(little16(src, at)), token & 15
        at += 2
        if count == 15:
            at, count = _length(src, at, stop, count)
        count += 4
        if not 0 < back <= done or count > size - done:
            return False
        if back >= 16 and count <= 16:
            copy16(out, done, out, done - back)
        else:
            _repeat(out, done, back, count)
        done += count
    return False
