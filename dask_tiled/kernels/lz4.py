"""LZ4 blocks, decoded the way its authors do: copies go a little further than they have to.

Layout facts: the description of the block format of LZ4.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dask_tiled.kernels.words import byte, copy16, fill, inner, little16, little64, move, store64

SLACK = 16
"""Bytes behind the room for a block that copies may overwrite."""
TOO_LONG = np.int64(1 << 62)
LONG = 128
"""Bytes of a match that are worth calls."""
STEP = np.array([0, 8, 8, 9, 8, 10, 12, 14])
"""The least multiple of a distance that is no less than a word, by the distance."""
REPEAT = np.array([sum(1 << 8 * at for at in range(0, 8, k or 8)) for k in range(8)], np.uint64)
"""What repeats so many bytes in a word, which it is multiplied by."""


@inner
def _length(src, at, stop, length):
    """Read the bytes that prolong a length, and where they end; too long a one if they do not."""
    while at < stop:
        more = np.int64(byte(src, at))
        at += 1
        length += more
        if more != 255:
            return at, length
    return at, TOO_LONG


@inner
def _repeat(out, at, back, count):
    """Copy what stands ``back`` bytes before, which may be what is written meanwhile."""
    if back == 1:
        fill(out, at, count, byte(out, at - 1))
        return
    stop = at + count
    if count > LONG:  # each time twice as many
        start = at - back
        while at < stop:
            some = min(at - start, stop - at)
            move(out, at, out, start, some)
            at += some
        return
    if back < 8:
        word = little64(out, at - back) & (np.uint64(-1) >> np.uint64(64 - 8 * back))
        store64(out, at, word * REPEAT[back])
        at += 8
        back = STEP[back]
    while at < stop:
        store64(out, at, little64(out, at - back))
        at += 8


@njit
def unlz4(src, at, stop, out, size):
    """Decode the block in ``src[at:stop]``; return whether it makes ``size`` bytes.

    ``out`` has room for ``SLACK`` more; nothing is read outside of ``src`` and written elsewhere.
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
