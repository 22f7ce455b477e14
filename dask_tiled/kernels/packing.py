"""Encode Blosc 1 chunks with bit shuffle and LZ4, the default of exports.

Counts are small, so most bit planes are zero: they are neither made nor searched. In incompressible
data, the steps of the match search grow.
Layout facts: the descriptions of Blosc 1 chunks and of LZ4 blocks.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dask_tiled.kernels.decoding import BYTES, NUMBER, compiled
from dask_tiled.kernels.words import (
    byte,
    copy16,
    fill,
    inlined,
    inner,
    little32,
    little64,
    lowest_bit,
    move,
    store16,
    store32,
)

BLOCK_BYTES = 1 << 18
"""Largest block: it stays in the cache together with its output."""
FLAGS = 0x34
"""Bit shuffle, blocks not split into streams, and LZ4."""
HEADER = 16
REGISTER_BYTES, AT_ONCE, PLANES = 64, 4, 8
"""Registers of pixels shuffled at once, and planes written in a pass: with more, the lines of
their output would evict one another from the L1 cache."""
HASH_BITS, PRIME = 12, np.uint64(0x9E3779B185EBCA87)
SLACK = 16
"""Bytes after a block that copies may read."""
LAST_LITERALS, LAST_MATCH, FARTHEST = 5, 12, 65535
"""Literals that end a block, bytes at its end where no match begins, and the largest distance."""


@intrinsic
def _take_apart(typingctx, pixel, src, at, out, to, width, planes, count, groups):
    """Store ``count`` bit planes of groups of pixels; the inverse of bitshuffle's ``_join``.

    A plane is ``width`` bytes, ``planes`` lists the planes to store, ``pixel`` is of the pixel
    type.
    """
    bits = pixel.bitwidth

    def codegen(context, builder, signature, args):
        lanes = REGISTER_BYTES * 8 // bits
        number, row = ir.IntType(64), ir.VectorType(ir.IntType(bits), lanes)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
        source, target, numbers = (
            context.make_array(signature.args[k])(context, builder, args[k]).data for k in (1, 3, 6)
        )
        with cgutils.for_range(builder, args[8]) as group:
            first = builder.add(args[2], builder.mul(group.index, number(AT_ONCE * REGISTER_BYTES)))
            places = (builder.add(first, number(k * REGISTER_BYTES)) for k in range(AT_ONCE))
            words = (builder.gep(source, [place]) for place in places)
            rows = [builder.load(builder.bitcast(x, row.as_pointer()), align=1) for x in words]
            column = builder.add(args[4], builder.mul(group.index, number(AT_ONCE * lanes // 8)))
            with cgutils.for_range(builder, args[7]) as some:
                plane = builder.load(builder.gep(numbers, [some.index]))
                value = builder.shl(number(1), plane)
                value = builder.trunc(value, row.element) if bits < 64 else value
                one = builder.insert_element(
                    ir.Constant(row, ir.Undefined), value, ir.IntType(32)(0)
                )
                value = builder.shuffle_vector(one, one, everywhere)
                place = builder.add(column, builder.mul(plane, args[5]))
                for k, pixels in enumerate(rows):
                    found = builder.icmp_unsigned(
                        "!=", builder.and_(pixels, value), ir.Constant(row, [0] * lanes)
                    )
                    to = builder.gep(target, [builder.add(place, number(k * lanes // 8))])
                    to = builder.bitcast(to, ir.IntType(lanes).as_pointer())
                    builder.store(builder.bitcast(found, ir.IntType(lanes)), to, align=1)
        return context.get_dummy_value()

    arguments = pixel, src, types.int64, out, types.int64, types.int64, planes, types.int64
    return types.void(*arguments, types.int64), codegen


@inner
def _bits_of(src, at, nbytes, itemsize):
    """Return the union of the bits of all pixels; ``nbytes`` is a multiple of 8."""
    found = np.uint64(0)
    for k in range(nbytes // 8):
        found |= little64(src, at + 8 * k)
    width = 32
    while width >= 8 * itemsize:
        found |= found >> np.uint64(width)
        width //= 2
    return found


@inner
def _shuffle(src, at, count, itemsize, out, planes, found):
    """Store the nonzero bit planes of ``count`` pixels, a multiple of 8."""
    width, size = count // 8, AT_ONCE * REGISTER_BYTES
    groups = count * itemsize // size
    for first in range(0, found, PLANES):
        some = min(found - first, PLANES)
        these = planes[first:]
        if itemsize == 1:
            _take_apart(np.uint8(0), src, at, out, 0, width, these, some, groups)
        elif itemsize == 2:
            _take_apart(np.uint16(0), src, at, out, 0, width, these, some, groups)
        elif itemsize == 4:
            _take_apart(np.uint32(0), src, at, out, 0, width, these, some, groups)
        else:
            _take_apart(np.uint64(0), src, at, out, 0, width, these, some, groups)
    for column in range(groups * size // itemsize // 8, width):
        for i in range(found):
            part, bit = planes[i] // 8, np.uint8(planes[i] % 8)
            bits = np.uint8(0)
            for k in range(8):
                pixel = byte(src, at + (8 * column + k) * itemsize + part)
                bits |= ((pixel >> bit) & np.uint8(1)) << np.uint8(k)
            out[planes[i] * width + column] = bits


@inner
def _longer(out, to, length):
    """Store the continuation bytes of a length of 15 or more; return their end."""
    if length >= 15:
        length -= 15
        while length >= 255:
            out[to] = 255
            to += 1
            length -= 255
        out[to] = length
        to += 1
    return to


@inner
def _sequence(src, first, at, back, count, out, to):
    """Store the literals from ``first`` on, then a match of ``count`` bytes; return the end."""
    literals, more = at - first, count - 4
    out[to] = (min(literals, 15) << 4) | min(more, 15)
    to += 1
    if literals:
        if literals >= 15:
            to = _longer(out, to, literals)
            move(out, to, src, first, literals)
        else:
            copy16(out, to, src, first)
        to += literals
    store16(out, to, np.uint16(back))
    to += 2
    if more >= 15:
        to = _longer(out, to, more)
    return to


@inner
def _common(src, one, other, stop):
    """Count the equal bytes after two positions; ``other`` is the later one."""
    at = other
    while at + 8 <= stop:
        differ = little64(src, one) ^ little64(src, at)
        if differ:
            return at - other + (lowest_bit(differ) >> 3)
        one += 8
        at += 8
    while at < stop and byte(src, one) == byte(src, at):
        one += 1
        at += 1
    return at - other


@inner
def _slot(src, at):
    """Return the hash slot of the five bytes at a position."""
    return ((little64(src, at) << np.uint64(24)) * PRIME) >> np.uint64(64 - HASH_BITS)


@inner
def _matches(src, begin, stop, end, first, base, stride, table, out, to):
    """Encode ``src[begin:stop]`` with matches inside it; leave the remaining bytes as literals.

    ``end`` is the end of the block. ``base`` is added to the positions in the table, which only
    grow. Return the end of the output and the position of the first literal left.
    """
    at, last, longest = begin, min(stop - 5, end - LAST_MATCH), min(stop, end - LAST_LITERALS)
    step, tries = 1, stride << 6
    while at <= last:
        word = little32(src, at)
        slot = _slot(src, at)
        other = np.int64(table[slot]) - base
        table[slot] = at + base
        if other < begin or at - other > FARTHEST or little32(src, other) != word:
            at += step
            step = tries >> 6
            tries += 1
            continue
        while at > first and other > begin and byte(src, at - 1) == byte(src, other - 1):
            at -= 1
            other -= 1
        count = _common(src, other, at, longest)
        to = _sequence(src, first, at, at - other, count, out, to)
        at += count
        first, step, tries = at, 1, stride << 6
        if at <= last:
            table[_slot(src, at - 2)] = at - 2 + base
    return to, first


@inner
def _packed(src, size, found, planes, width, base, stride, table, out, to):
    """Encode a block of bit planes; unlisted ones are zero and not stored in ``src``.

    Return the end of the output.
    """
    first, at, one, some = np.int64(0), np.int64(0), np.int64(1), 0
    while at < size:
        stop = at
        while some < found and planes[some] * width == stop:  # search adjacent planes together
            stop += width
            some += 1
        to, first = _matches(src, at, stop, size, first, base, stride, table, out, to)
        at = stop
        stop = planes[some] * width if some < found else size
        if at < stop:
            src[at] = 0
            rest = LAST_LITERALS if stop == size else 0
            fill(src, stop - rest, rest, np.uint8(0))
            to = _sequence(src, first, at + 1, one, stop - at - 1 - rest, out, to)
            at, first = stop, stop - rest
    literals = size - first
    out[to] = min(literals, 15) << 4
    to = _longer(out, to + 1, literals)
    move(out, to, src, first, literals)
    return to + literals


@inlined
def _block(src, at, nbytes, itemsize, stride, base, table, planes, scratch, out, to):
    """Encode a block; return its end. If LZ4 makes it no smaller, store it uncompressed."""
    count = nbytes // itemsize
    if count % 8:  # Blosc does not shuffle such a block
        move(out, to, src, at, nbytes)
        return to + nbytes
    found, width = np.int64(0), count // 8
    bits = _bits_of(src, at, nbytes, itemsize)
    for plane in range(8 * itemsize):
        if bits >> np.uint64(plane) & np.uint64(1):
            planes[found] = plane
            found += 1
    _shuffle(src, at, count, itemsize, scratch, planes, found)
    end = to + nbytes
    if width > LAST_MATCH:
        end = _packed(scratch, nbytes, found, planes, width, base, stride, table, out, to)
    if end < to + nbytes:
        return end
    for plane in range(8 * itemsize):
        if not bits >> np.uint64(plane) & np.uint64(1):
            fill(scratch, plane * width, width, np.uint8(0))
    move(out, to, scratch, 0, nbytes)
    return to + nbytes


def pack(src, itemsize, stride, planes, table, scratch, out):
    """Encode a chunk; return its size. ``out`` must have room for the worst case.

    Parameters
    ----------
    src : array of uint8
        The pixels, at least some hundred.
    itemsize : int
        Bytes of a pixel: 1, 2, 4 or 8.
    stride : int
        Initial step of the match search in bytes: larger is faster, and finds fewer matches.
    planes, table, scratch : arrays of int64, int32 and uint8
        Scratch memory for plane numbers, the hash table (filled with positions out of reach) and a
        block. Allocating it in Python saves 0.4 s of compiling.
    out : array of uint8
    """
    group = AT_ONCE * REGISTER_BYTES
    size = src.size // -(-src.size // BLOCK_BYTES) // group * group
    count = -(-src.size // size)
    store32(out, 0, np.uint32(0x0102 | FLAGS << 16 | itemsize << 24))
    store32(out, 4, np.uint32(src.size))
    store32(out, 8, np.uint32(size))
    to = HEADER + 4 * count
    for k in range(count):
        at = k * size
        store32(out, HEADER + 4 * k, np.uint32(to))
        nbytes = min(size, src.size - at)
        end = _block(src, at, nbytes, itemsize, stride, at, table, planes, scratch, out, to + 4)
        store32(out, to, np.uint32(end - to - 4))
        to = end
    store32(out, 12, np.uint32(to))
    return to


@cache
def compiled_kernel() -> Any:
    """Compile :func:`pack`, and bind it to its scratch memory."""
    room = types.int64[::1], types.int32[::1], types.uint8[::1]
    signature = types.int64(BYTES, NUMBER, NUMBER, *room, types.uint8[::1])
    return partial(_pack, compiled(f"{__name__}:pack", signature))


def _pack(kernel: Any, src: Any, itemsize: int, stride: int, out: Any) -> int:
    planes, scratch = np.empty(64, np.int64), np.empty(BLOCK_BYTES + SLACK, np.uint8)
    table = np.full(1 << HASH_BITS, -FARTHEST - 1, np.int32)
    packed: int = kernel(src, itemsize, stride, planes, table, scratch, out)
    return packed
