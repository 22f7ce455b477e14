"""Encode Blosc 1 chunks with bit shuffle and LZ4, the default of exports.

Counts are small, so most bit planes are zero: they are neither made nor searched. In incompressible
data, the steps of the match search grow.
Layout facts: the descriptions of Blosc 1 chunks and of LZ4 blocks.
"""

from __future__ import annotations

from functools import cache, partial
from struct import pack_into
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dask_tiled.kernels.decoding import BYTES, NUMBER, compiled
from dask_tiled.kernels.limits import COMPRESSED_BYTES
from dask_tiled.kernels.words import (
    bit_of,
    byte,
    copy16,
    fill,
    inner,
    little32,
    little64,
    lowest_bit,
    move,
    place_in,
    smaller,
    store16,
    store32,
)

FLAGS = 0x34
"""Bit shuffle, blocks not split into streams, and LZ4."""
HEADER = 16
REGISTER_BYTES, AT_ONCE, PLANES = 64, 4, 8
"""Registers of pixels shuffled at once, and planes written in a pass: with more, the lines of
their output would evict one another from the L1 cache."""
GROUP = AT_ONCE * REGISTER_BYTES
HASH_BITS, PRIME = 12, 0x9E3779B185EBCA87
SLACK = 16
"""Bytes after a block that copies may read."""
LAST_LITERALS, LAST_MATCH, FARTHEST = 5, 12, 65535
"""Literals that end a block, bytes at its end where no match begins, and the largest distance."""


@intrinsic
def _shuffle(typingctx, src, at, groups, itemsize, out, width, planes, count):
    """Store ``count`` bit planes of groups of pixels; the inverse of bitshuffle's ``_join``.

    A plane is ``width`` bytes, and ``planes`` lists their numbers.
    """

    def codegen(context, builder, signature, args):
        number = ir.IntType(64)
        source, target, numbers = (
            context.make_array(signature.args[k])(context, builder, args[k]).data for k in (0, 4, 6)
        )
        _, at, groups, size, _, width, _, count = args
        for nbytes in (1, 2, 4, 8):
            lanes = REGISTER_BYTES // nbytes
            row = ir.VectorType(ir.IntType(8 * nbytes), lanes)
            with (
                builder.if_then(builder.icmp_signed("==", size, number(nbytes))),
                cgutils.for_range_slice(builder, number(0), count, number(PLANES)) as (k, _),
                cgutils.for_range(builder, groups) as group,
            ):
                first = builder.add(at, builder.mul(group.index, number(GROUP)))
                places = (builder.add(first, number(k * REGISTER_BYTES)) for k in range(AT_ONCE))
                words = (builder.gep(source, [place]) for place in places)
                rows = [builder.load(builder.bitcast(x, row.as_pointer()), align=1) for x in words]
                column = builder.mul(group.index, number(AT_ONCE * lanes // 8))
                left = builder.sub(count, k)
                fewer = builder.icmp_signed("<", left, number(PLANES))
                with cgutils.for_range(
                    builder, builder.select(fewer, left, number(PLANES))
                ) as entry:
                    plane = builder.load(builder.gep(numbers, [builder.add(k, entry.index)]))
                    place = builder.add(column, builder.mul(plane, width))
                    _store_plane(builder, rows, plane, target, place)
        return context.get_dummy_value()

    numbers = types.int64, types.int64, types.int64
    return types.void(src, *numbers, out, types.int64, planes, types.int64), codegen


def _store_plane(builder, rows, plane, target, place):
    """Store one bit of all pixels of adjacent rows."""
    row = rows[0].type
    value = bit_of(builder, row, plane)
    for k, pixels in enumerate(rows):
        found = builder.and_(pixels, value)
        found = builder.icmp_unsigned("!=", found, ir.Constant(row, [0] * row.count))
        to = builder.gep(target, [builder.add(place, place.type(k * row.count // 8))])
        to = builder.bitcast(to, ir.IntType(row.count).as_pointer())
        builder.store(builder.bitcast(found, ir.IntType(row.count)), to, align=1)


@inner
def _longer(out, to, length):
    """Store the continuation bytes of a length of 15 or more; return their end."""
    if length >= 15:
        length -= 15
        whole = length // 255
        fill(out, to, whole, np.uint8(255))
        to += whole + 1
        out[to - 1] = length - 255 * whole
    return to


@inner
def _sequence(src, first, at, back, count, out, to):
    """Store the literals from ``first`` on, then a match of ``count`` bytes; return the end."""
    literals, more = at - first, count - 4
    out[to] = (smaller(literals, 15) << 4) | smaller(more, 15)
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
    for at in range(other, stop, 8):
        differ = little64(src, one + at - other) ^ little64(src, at)
        if differ:
            return smaller(at + (lowest_bit(differ) >> 3), stop) - other
    return stop - other


@intrinsic
def _slot(typingctx, src, at):
    """Return the hash slot of the five bytes at a position."""

    def codegen(context, builder, signature, args):
        number = ir.IntType(64)
        word = builder.load(place_in(context, builder, signature, args, 0, number), align=1)
        mixed = builder.mul(builder.shl(word, number(24)), number(PRIME))
        return builder.lshr(mixed, number(64 - HASH_BITS))

    return types.int64(src, types.int64), codegen


@inner
def _matches(src, begin, stop, end, first, base, stride, table, out, to):
    """Encode ``src[begin:stop]`` with matches inside it; leave the remaining bytes as literals.

    ``end`` is the end of the block. ``base`` is added to the positions in the table, which only
    grow. Return the end of the output and the position of the first literal left.
    """
    last, longest = smaller(stop - 5, end - LAST_MATCH), smaller(stop, end - LAST_LITERALS)
    at, step, tries = begin, 1, stride << 6
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
def _packed(src, size, count, planes, width, base, stride, table, out, to):
    """Encode a block of bit planes; unlisted ones are zero and not stored in ``src``.

    Return the end of the output.
    """
    first, at, back, k = np.int64(0), np.int64(0), np.int64(1), 0
    while at < size:
        stop = at
        while k < count and planes[k] * width == stop:  # search adjacent planes together
            stop += width
            k += 1
        to, first = _matches(src, at, stop, size, first, base, stride, table, out, to)
        at = stop
        stop = planes[k] * width if k < count else size
        if at < stop:
            src[at] = 0
            rest = LAST_LITERALS if stop == size else 0
            fill(src, stop - rest, rest, np.uint8(0))
            to = _sequence(src, first, at + 1, back, stop - at - 1 - rest, out, to)
            at, first = stop, stop - rest
    literals = size - first
    out[to] = smaller(literals, 15) << 4
    to = _longer(out, to + 1, literals)
    move(out, to, src, first, literals)
    return to + literals


def pack(src, itemsize, lanes, stride, size, tail, planes, table, scratch, out):
    """Encode the blocks of a chunk after its header; return the end.

    Parameters
    ----------
    src : array of uint8
        The pixels, at least some hundred.
    itemsize : int
        Bytes of a pixel: 1, 2, 4 or 8.
    lanes : uint64
        The lowest bit of each pixel in a word.
    stride : int
        Initial step of the match search in bytes: larger is faster, and finds fewer matches.
    size : int
        Bytes of a block; the last one may be smaller.
    tail : array of uint8
        All bit planes of the last pixels, those that fill no group.
    planes, table, scratch : arrays of int64, int32 and uint8
        Scratch memory for plane numbers, the hash table (filled with positions out of reach) and a
        block. They are allocated in Python, as that need not be compiled.
    out : array of uint8
        Must have room for the worst case.
    """
    to, start = HEADER + 4 * -(-src.size // size), HEADER
    for at in range(0, src.size, size):
        store32(out, start, to)
        start += 4
        to += 4
        nbytes = smaller(size, src.size - at)
        end = to + nbytes
        count = nbytes // itemsize
        if count % 8:  # Blosc does not shuffle such a block
            move(out, to, src, at, nbytes)
        else:
            bits = np.uint64(0)  # of all pixels
            for k in range(at, at + nbytes, 8):
                bits |= little64(src, k)
            nonzero, zeros, width = np.int64(0), np.int64(64), count // 8
            for plane in range(8 * itemsize):
                if bits & lanes << np.uint64(plane):
                    planes[nonzero] = plane
                    nonzero += 1
                else:
                    zeros -= 1
                    planes[zeros] = plane
            groups = nbytes // GROUP
            left = width - groups * (GROUP // 8 // itemsize)
            _shuffle(src, at, groups, itemsize, scratch, width, planes, nonzero)
            for k in range(nonzero):
                move(scratch, (planes[k] + 1) * width - left, tail, planes[k] * left, left)
            if width > LAST_MATCH:
                end = _packed(scratch, nbytes, nonzero, planes, width, at, stride, table, out, to)
            if end >= to + nbytes:  # LZ4 makes it no smaller: store it uncompressed
                end = to + nbytes
                for k in range(zeros, 64):
                    fill(scratch, planes[k] * width, width, np.uint8(0))
                move(out, to, scratch, 0, nbytes)
        store32(out, to - 4, end - to)
        to = end
    return to


@cache
def compiled_kernel() -> Any:
    """Compile :func:`pack`, and bind it to its scratch memory."""
    room = types.int64[::1], types.int32[::1], types.uint8[::1]
    signature = types.int64(
        BYTES, NUMBER, types.uint64, NUMBER, NUMBER, BYTES, *room, types.uint8[::1]
    )
    return partial(_pack, compiled(f"{__name__}:pack", signature))


def _pack(kernel: Any, src: Any, itemsize: int, stride: int, out: Any) -> int:
    """Encode a chunk; return its size."""
    size = src.size // -(-src.size // COMPRESSED_BYTES) // GROUP * GROUP
    planes, scratch = np.empty(64, np.int64), np.empty(COMPRESSED_BYTES + SLACK, np.uint8)
    table = np.full(1 << HASH_BITS, -FARTHEST - 1, np.int32)
    tail = src[src.size // GROUP * GROUP :]
    if tail.size:
        bits = np.unpackbits(tail.reshape(-1, itemsize), axis=1, bitorder="little")
        tail = np.packbits(bits, axis=0, bitorder="little").ravel("F")
    lanes = ((1 << 64) - 1) // ((1 << 8 * itemsize) - 1)
    packed: int = kernel(src, itemsize, lanes, stride, size, tail, planes, table, scratch, out)
    pack_into("<4I", out, 0, 0x0102 | FLAGS << 16 | itemsize << 24, src.size, size, packed)
    return packed
