"""Decode bitshuffled chunks, with or without LZ4, as detectors write them to HDF5.

Counts are small, so most bit planes are zero: only the others are joined.
Layout facts: the source of the HDF5 filter of bitshuffle.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, compiled
from dask_tiled.kernels.lz4 import SLACK, unlz4
from dask_tiled.kernels.words import big32, big64, bit_of, byte, inner, little64, move

SIGNATURE = types.int64(BYTES, NUMBERS, NUMBERS, NUMBER, NUMBER, types.uint8[::1], NUMBERS, NUMBER)
HEADER = 12
"""Header of a chunk: its decoded size (8 bytes), then that of a block (4 bytes), big-endian."""
REGISTER_BITS, AT_ONCE = 256, 4
"""Width of a vector register, and how many registers are joined at once."""


@intrinsic
def _join(typingctx, pixel, out, at, src, start, width, planes, count, groups):
    """Store the pixels of ``groups`` groups, joined from their ``count`` nonzero planes.

    A plane is ``width`` bytes, ``planes`` lists the nonzero planes, ``pixel`` is of the pixel type.
    """
    bits = pixel.bitwidth

    def codegen(context, builder, signature, args):
        lanes = REGISTER_BITS // bits
        number, row = ir.IntType(64), ir.VectorType(ir.IntType(bits), lanes)
        source, target, numbers = (
            context.make_array(signature.args[k])(context, builder, args[k]).data for k in (3, 1, 6)
        )
        sums = [cgutils.alloca_once(builder, row) for _ in range(AT_ONCE)]
        with cgutils.for_range(builder, args[8]) as group:
            for total in sums:
                builder.store(ir.Constant(row, [0] * lanes), total)
            first = builder.mul(group.index, number(AT_ONCE * lanes // 8))
            with cgutils.for_range(builder, args[7]) as entry:
                plane = builder.load(builder.gep(numbers, [entry.index]))
                place = builder.add(args[4], builder.add(builder.mul(plane, args[5]), first))
                value = bit_of(builder, row, plane)
                for k, total in enumerate(sums):
                    word = builder.gep(source, [builder.add(place, number(k * lanes // 8))])
                    word = builder.bitcast(word, ir.IntType(lanes).as_pointer())
                    mask = builder.bitcast(
                        builder.load(word, align=1), ir.VectorType(ir.IntType(1), lanes)
                    )
                    set_bits = builder.and_(builder.sext(mask, row), value)
                    builder.store(builder.or_(builder.load(total), set_bits), total)
            size = REGISTER_BITS // 8
            place = builder.add(args[2], builder.mul(group.index, number(AT_ONCE * size)))
            for k, total in enumerate(sums):
                to = builder.gep(target, [builder.add(place, number(k * size))])
                builder.store(builder.load(total), builder.bitcast(to, row.as_pointer()), align=1)
        return context.get_dummy_value()

    arguments = pixel, out, types.int64, src, types.int64, types.int64, planes, types.int64
    return types.void(*arguments, types.int64), codegen


@inner
def _is_zero(src, at, count):
    """Return whether ``count`` bytes are all zero."""
    words, bits = count // 8, np.uint64(0)
    for first in range(0, words, 16):
        for k in range(first, min(first + 16, words)):
            bits |= little64(src, at + 8 * k)
        if bits:
            return False
    for k in range(8 * words, count):
        bits |= np.uint64(byte(src, at + k))
    return bits == 0


@inner
def _columns(src, start, width, first, out, at, itemsize):
    """Join the bits of pixels, 8 pixels at a time, from byte ``first`` of the planes on."""
    for column in range(first, width):
        for part in range(itemsize):
            bits = np.uint64(0)
            for k in range(8):
                plane = np.uint64(byte(src, start + (8 * part + k) * width + column))
                bits |= plane << np.uint64(8 * k)
            # transpose an 8x8 bit matrix: swap bits, then squares of 2 and of 4
            swap = (bits ^ (bits >> np.uint64(7))) & np.uint64(0x00AA00AA00AA00AA)
            bits ^= swap ^ (swap << np.uint64(7))
            swap = (bits ^ (bits >> np.uint64(14))) & np.uint64(0x0000CCCC0000CCCC)
            bits ^= swap ^ (swap << np.uint64(14))
            swap = (bits ^ (bits >> np.uint64(28))) & np.uint64(0x00000000F0F0F0F0)
            bits ^= swap ^ (swap << np.uint64(28))
            for k in range(8):
                out[at + (8 * column + k) * itemsize + part] = bits >> np.uint64(8 * k)


@inner
def unshuffle(src, start, count, out, at, itemsize, planes):
    """Join the bit planes of ``count`` pixels, a multiple of 8."""
    width, first = count // 8, np.int64(0)
    if itemsize in (1, 2, 4):
        nonzero = 0
        for plane in range(8 * itemsize):
            if not _is_zero(src, start + plane * width, width):
                planes[nonzero] = plane
                nonzero += 1
        groups = width * 8 * itemsize // (AT_ONCE * REGISTER_BITS // 8)
        if itemsize == 1:
            _join(np.uint8(0), out, at, src, start, width, planes, nonzero, groups)
        elif itemsize == 2:
            _join(np.uint16(0), out, at, src, start, width, planes, nonzero, groups)
        else:
            _join(np.uint32(0), out, at, src, start, width, planes, nonzero, groups)
        first = groups * (AT_ONCE * REGISTER_BITS // 8) // (8 * itemsize)
    _columns(src, start, width, first, out, at, itemsize)


@inner
def _packed_block(src, at, stop, out, size):
    """Decompress the block after its 4-byte length; return its end, or -1 if it is damaged."""
    if stop - at < 4:
        return np.int64(-1)
    end = at + 4 + np.int64(big32(src, at))
    done = end <= stop and unlz4(src, at + 4, end, out, size)
    return end if done else np.int64(-1)


@inner
def _chunk(src, at, stop, itemsize, block, out, to, nbytes, scratch, planes):
    """Decode a chunk; return whether it has ``nbytes`` decoded bytes."""
    packed = block == 0
    if packed and stop - at >= HEADER and big64(src, at) == nbytes:
        block = np.int64(big32(src, at + 8)) // itemsize
        at += HEADER
    count = nbytes // itemsize
    whole = count - count % 8
    if block < 8 or block % 8 or nbytes % itemsize or (stop - at < nbytes and not packed):
        return False
    for first in range(0, whole, block):
        pixels = min(block, whole - first)
        place = to + first * itemsize
        if packed:
            at = _packed_block(src, at, stop, scratch, pixels * itemsize)
            if at < 0:
                return False
            unshuffle(scratch, 0, pixels, out, place, itemsize, planes)
        else:
            unshuffle(src, at, pixels, out, place, itemsize, planes)
            at += pixels * itemsize
    rest = (count - whole) * itemsize
    if stop - at < rest:
        return False
    move(out, to + whole * itemsize, src, at, rest)
    return True


def unbitshuffle(src, starts, sizes, itemsize, block, out, dests, nbytes):
    """Decode chunks; return the number decoded before the first damaged one.

    Parameters
    ----------
    src : array of uint8
    starts, sizes : int64 arrays
        Offset in ``src`` and size in bytes of each chunk.
    itemsize : int
        Bytes of a pixel.
    block : int
        Pixels of a block; 0 for chunks compressed by LZ4, whose header holds the block size.
    out : array of uint8
    dests : int64 array
        Offset in ``out`` of the pixels of each chunk.
    nbytes : int
        Decoded bytes of a chunk.
    """
    scratch, planes = np.empty(SLACK, np.uint8), np.empty(64, np.int64)
    for k in range(starts.size):
        start, to = starts[k], dests[k]
        if block == 0 and sizes[k] >= HEADER:
            room = min(np.int64(big32(src, start + 8)), nbytes) + SLACK
            if room > scratch.size:
                scratch = np.empty(room, np.uint8)
        if not _chunk(
            src, start, start + sizes[k], itemsize, block, out, to, nbytes, scratch, planes
        ):
            return k
    return starts.size


@cache
def compiled_kernel() -> Any:
    """Compile :func:`unbitshuffle`, once per process."""
    return compiled(f"{__name__}:unbitshuffle", SIGNATURE)
