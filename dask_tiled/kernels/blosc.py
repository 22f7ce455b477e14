"""Decode Blosc 1 chunks compressed by LZ4, with or without shuffled bytes or bits.

Layout facts: the source of Blosc 1, and its description of the chunk format.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from dask_tiled.kernels.bitshuffle import unshuffle
from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, compiled
from dask_tiled.kernels.lz4 import SLACK, unlz4
from dask_tiled.kernels.words import byte, inner, little32, move, store16, store32

SIGNATURE = types.int64(BYTES, NUMBERS, NUMBERS, types.uint8[::1], NUMBERS, NUMBER)
HEADER, VERSION, LZ4 = 16, 2, 1
OF_BYTES, STORED, OF_BITS, ONE_STREAM = 1, 2, 4, 16
"""Flags: byte shuffle, uncompressed chunk, bit shuffle, blocks not split into streams."""
MOST_STREAMS, LEAST_STREAM = 16, 128


@inner
def _join(src, count, itemsize, out, at):
    """Join the byte planes of ``count`` pixels."""
    if itemsize == 2:
        for k in range(count):
            high = np.uint16(byte(src, count + k)) << np.uint16(8)
            store16(out, at + 2 * k, np.uint16(byte(src, k)) | high)
    elif itemsize == 4:
        for k in range(count):
            word = np.uint32(byte(src, k)) | np.uint32(byte(src, count + k)) << np.uint32(8)
            word |= np.uint32(byte(src, 2 * count + k)) << np.uint32(16)
            word |= np.uint32(byte(src, 3 * count + k)) << np.uint32(24)
            store32(out, at + 4 * k, word)
    else:
        for part in range(itemsize):
            for k in range(count):
                out[at + k * itemsize + part] = byte(src, part * count + k)


@inner
def _unpacked(src, at, stop, streams, out, size):
    """Decompress the streams of a block, each after its length; return whether all are valid."""
    each = size // streams
    for k in range(streams):
        if stop - at < 4:
            return False
        end = at + 4 + np.int64(little32(src, at))
        if end > stop:
            return False
        if end - at - 4 == each:
            move(out, k * each, src, at + 4, each)
        elif not unlz4(src, at + 4, end, out[k * each :], each):
            return False
        at = end
    return True


@inner
def _shuffled(src, size, flags, itemsize, out, at, planes):
    """Unshuffle the pixels of a block; return whether its size allows that."""
    count, done = size // itemsize, np.int64(0)
    if flags & OF_BYTES and itemsize > 1:
        _join(src, count, itemsize, out, at)
        done = count * itemsize
    elif flags & OF_BITS:
        if count % 8 or count == 0:
            return False
        unshuffle(src, 0, count, out, at, itemsize, planes)
        done = count * itemsize
    move(out, at + done, src, done, size - done)
    return True


@inner
def _chunk(src, at, stop, out, to, nbytes, scratch, planes):
    """Decode a chunk; return whether it is valid, compressed by LZ4 and of ``nbytes`` bytes."""
    flags, itemsize = np.int64(byte(src, at + 2)), np.int64(byte(src, at + 3))
    block, packed = np.int64(little32(src, at + 8)), np.int64(little32(src, at + 12))
    fits = np.int64(little32(src, at + 4)) == nbytes and packed <= stop - at
    if flags & STORED:
        fits = fits and packed == HEADER + nbytes
        move(out, to, src, at + HEADER, nbytes if fits else 0)
        return fits
    blocks = (nbytes - 1) // max(block, 1) + 1
    fits = fits and flags >> 5 == LZ4 and itemsize > 0 and 0 < block <= nbytes
    if not fits or packed < HEADER + 4 * blocks:
        return False
    is_split = not flags & ONE_STREAM and itemsize <= MOST_STREAMS
    is_split = is_split and block // itemsize >= LEAST_STREAM
    for k in range(blocks):
        first, start = k * block, at + np.int64(little32(src, at + HEADER + 4 * k))
        size = min(block, nbytes - first)
        streams = itemsize if is_split and size == block else 1
        done = size % streams == 0
        done = done and _unpacked(src, start, at + packed, streams, scratch, size)
        if not done or not _shuffled(scratch, size, flags, itemsize, out, to + first, planes):
            return False
    return True


def unblosc(src, starts, sizes, out, dests, nbytes):
    """Decode chunks; return the number decoded before the first damaged or unsupported one.

    Parameters
    ----------
    src : array of uint8
    starts, sizes : int64 arrays
        Offset in ``src`` and size in bytes of each chunk.
    out : array of uint8
    dests : int64 array
        Offset in ``out`` of the pixels of each chunk.
    nbytes : int
        Decoded bytes of a chunk.
    """
    scratch, planes = np.empty(SLACK, np.uint8), np.empty(64, np.int64)
    for k in range(starts.size):
        at, stop = starts[k], starts[k] + sizes[k]
        if stop - at < HEADER or byte(src, at) != VERSION:
            return k
        room = min(np.int64(little32(src, at + 8)), nbytes) + SLACK
        if room > scratch.size:
            scratch = np.empty(room, np.uint8)
        if not _chunk(src, at, stop, out, dests[k], nbytes, scratch, planes):
            return k
    return starts.size


@cache
def compiled_kernel() -> Any:
    """Compile :func:`unblosc`, once per process."""
    return compiled(f"{__name__}:unblosc", SIGNATURE)
