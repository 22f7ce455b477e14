"""Machine words at byte offsets, and operations on them that numba does not offer."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dask_tiled.kernels.jit import njit
from dask_tiled.kernels.limits import AHEAD, RUNS_AHEAD, SHORT_RUN

LINE_BYTES = 64
"""Bytes of a cache line."""

inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Decorator for long helpers: compiled without an entry point for Python."""
inlined = njit(inline="always")
"""Decorator for short helpers: inlined in their callers, which halves the compile time."""


def place_in(context, builder, signature, args, k, kind):
    """Return a pointer into array argument ``k``, at the byte offset in the next argument."""
    data = context.make_array(signature.args[k])(context, builder, args[k]).data
    return builder.bitcast(builder.gep(data, [args[k + 1]]), kind.as_pointer())


def bit_of(builder, row, plane):
    """Return a vector whose elements all have only the bit ``plane`` set."""
    value = builder.shl(plane.type(1), plane)
    value = builder.trunc(value, row.element) if row.element.width < 64 else value
    one = builder.insert_element(ir.Constant(row, ir.Undefined), value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), row.count), [0] * row.count)
    return builder.shuffle_vector(one, one, zeros)


def _loader(bits: int, *, big: bool) -> Any:
    """Build ``load(array, offset)``: one word at a byte offset, big- or little-endian."""

    @intrinsic
    def load(typingctx: Any, array: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = place_in(context, builder, signature, args, 0, ir.IntType(bits))
            word = builder.load(pointer, align=1)
            return builder.bswap(word) if big else word

        return getattr(types, f"uint{bits}")(array, types.int64), codegen

    return load


def _storer(bits: int) -> Any:
    """Build ``store(array, offset, word)``: one little-endian word at a byte offset."""

    @intrinsic
    def store(typingctx: Any, array: Any, offset: Any, word: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = place_in(context, builder, signature, args, 0, ir.IntType(bits))
            builder.store(args[2], pointer, align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64, getattr(types, f"uint{bits}")), codegen

    return store


byte, little16, little32, little64 = (_loader(bits, big=False) for bits in (8, 16, 32, 64))
big16, big32, big64 = (_loader(bits, big=True) for bits in (16, 32, 64))
store16, store32, store64 = (_storer(bits) for bits in (16, 32, 64))


@intrinsic
def view(typingctx, array, offset, count, kind):
    """View ``count`` elements from a byte offset; compiles faster than ``ndarray.view``.

    ``kind`` is the type of the elements, or an array of that type.
    """
    seen = types.Array(kind.dtype, 1, "C", readonly=not array.mutable)

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        made = context.make_array(seen)(context, builder)
        data_type = made.data.type
        place = builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [args[1]])
        size = context.get_constant(types.intp, context.get_abi_sizeof(data_type.pointee))
        made.data, made.nitems, made.itemsize = builder.bitcast(place, data_type), args[2], size
        made.shape, made.strides = (cgutils.pack_array(builder, [x]) for x in (args[2], size))
        made.meminfo = made.parent = cgutils.get_null_value(made.parent.type)
        return made._getvalue()  # noqa: SLF001 - numba documents it

    return seen(array, types.int64, types.int64, kind), codegen


@intrinsic
def matrix_at(typingctx, address, rows, columns, itemsize):
    """View memory at an address as a matrix, of bytes whatever the type of its elements."""
    seen = types.Array(types.uint8, 2, "C")

    def codegen(context, builder, signature, args):
        address, rows, columns, itemsize = args
        made = context.make_array(seen)(context, builder)
        made.data, made.itemsize = builder.inttoptr(address, made.data.type), itemsize
        made.nitems = builder.mul(rows, columns)
        made.shape = cgutils.pack_array(builder, [rows, columns])
        made.strides = cgutils.pack_array(builder, [builder.mul(columns, itemsize), itemsize])
        made.meminfo = made.parent = cgutils.get_null_value(made.parent.type)
        return made._getvalue()  # noqa: SLF001 - numba documents it

    return seen(*[types.int64] * 4), codegen


@intrinsic
def no_pixels(typingctx, itemsize):
    """Return an empty array of bytes, with the ``itemsize`` of pixels."""
    seen = types.Array(types.uint8, 1, "C")

    def codegen(context, builder, signature, args):
        made, (itemsize,) = context.make_array(seen)(context, builder), args
        made.data, made.itemsize = cgutils.get_null_value(made.data.type), itemsize
        made.nitems = itemsize.type(0)
        made.shape, made.strides = (
            cgutils.pack_array(builder, [x]) for x in (itemsize.type(0), itemsize)
        )
        made.meminfo = made.parent = cgutils.get_null_value(made.parent.type)
        return made._getvalue()  # noqa: SLF001 - numba documents it

    return seen(types.int64), codegen


@intrinsic
def move(typingctx, out, at, src, start, count):
    """Copy bytes from one array to another."""

    def codegen(context, builder, signature, args):
        target, source = (
            place_in(context, builder, signature, args, k, ir.IntType(8)) for k in (0, 2)
        )
        cgutils.raw_memcpy(builder, target, source, args[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, src, types.int64, types.int64), codegen


@intrinsic
def fill(typingctx, out, at, count, value):
    """Set bytes to one value."""

    def codegen(context, builder, signature, args):
        target = place_in(context, builder, signature, args, 0, ir.IntType(8))
        cgutils.memset(builder, target, args[2], args[3])
        return context.get_dummy_value()

    return types.void(out, types.int64, types.int64, types.uint8), codegen


@intrinsic
def copy16(typingctx, out, at, src, start):
    """Copy 16 bytes from one array to another, or within one where they do not overlap."""

    def codegen(context, builder, signature, args):
        line = ir.VectorType(ir.IntType(8), 16)
        target, source = (place_in(context, builder, signature, args, k, line) for k in (0, 2))
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(out, types.int64, src, types.int64), codegen


@intrinsic
def spread_bits(typingctx, out, at, word):
    """Store the 64 bits of a word as 64 bytes, the lowest bit first."""

    def codegen(context, builder, signature, args):
        lanes = builder.bitcast(args[2], ir.VectorType(ir.IntType(1), 64))
        row = ir.VectorType(ir.IntType(8), 64)
        pointer = place_in(context, builder, signature, args, 0, row)
        builder.store(builder.zext(lanes, row), pointer, align=1)
        return context.get_dummy_value()

    return types.void(out, types.int64, types.uint64), codegen


@intrinsic
def reverse_bits(typingctx, word):
    """Reverse the bits of a word."""

    def codegen(context, builder, signature, args):
        return builder.bitreverse(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def smaller(typingctx, a, b):
    """Return the smaller of two integers; numba's ``min`` is compiled for each pair of types."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.icmp_signed("<", *args), *args)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def lowest_bit(typingctx, word):
    """Return the index of the lowest bit set in a nonzero word."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.uint64), codegen


@intrinsic
def _reversed(typingctx, value):
    """Reverse the bytes of a number."""

    def codegen(context, builder, signature, values):
        if value.bitwidth == 8:
            return values[0]
        bits = builder.bitcast(values[0], ir.IntType(value.bitwidth))
        return builder.bitcast(builder.bswap(bits), values[0].type)

    return value(value), codegen


@inlined
def number(pixel, reverse):
    """Return the number that a pixel holds, in native or reversed byte order."""
    return _reversed(pixel) if reverse else pixel


def both_orders(make: Callable[..., Any]) -> tuple[Any, Any]:
    """Make a kernel for pixels in native byte order, and its twin for reversed byte order."""
    return make(reverse=False), make(reverse=True)


def prefetch(builder, place, locality=3):
    """Emit a prefetch of the cache line at a pointer; the least locality is 0."""
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), (byte, flag, flag, flag))
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(prefetch, [place, flag(0), flag(locality), flag(1)])  # read, data cache


def _fetch(builder, data, start, nbytes):
    """Prefetch bytes ``AHEAD`` of ``start``: hardware prefetch stops at the end of a page."""
    for line in range(0, nbytes, LINE_BYTES):
        prefetch(builder, builder.gep(data, [builder.add(start, start.type(AHEAD + line))]))


@intrinsic
def fetch(typingctx, src, at):
    """Prefetch the cache line of a byte; an offset out of bounds is harmless."""

    def codegen(context, builder, signature, args):
        prefetch(builder, place_in(context, builder, signature, args, 0, ir.IntType(8)))
        return context.get_dummy_value()

    return types.void(src, types.int64), codegen


@intrinsic
def look_ahead(typingctx, src, starts, r, nbytes):
    """Prefetch a short run ahead of run r: hardware does not predict runs that lie far apart."""

    def codegen(context, builder, signature, args):
        data, runs = (
            context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 1)
        )
        nbytes, run = args[3], builder.add(args[2], args[2].type(RUNS_AHEAD))
        is_there = builder.icmp_signed("<", run, cgutils.unpack_tuple(builder, runs.shape, 1)[0])
        is_short = builder.icmp_unsigned("<=", nbytes, nbytes.type(SHORT_RUN))
        with builder.if_then(builder.and_(is_there, is_short)):
            start = builder.load(builder.gep(runs.data, [run]))
            stop, step = builder.add(nbytes, nbytes.type(1)), nbytes.type(LINE_BYTES)
            with cgutils.for_range_slice(builder, nbytes.type(0), stop, step) as (at, _):
                prefetch(builder, builder.gep(data.data, [builder.add(start, at)]))
        return context.get_dummy_value()

    return types.void(src, starts, types.int64, types.int64), codegen


def _nibbles(builder, data, start):
    """Unpack 16 pixels of 12 bits from 24 bytes, as a vector."""
    byte, word, index = ir.IntType(8), ir.IntType(16), ir.IntType(32)
    row, lanes = ir.VectorType(byte, 16), ir.VectorType(word, 16)
    # Two loads of 16 bytes, of which 12 are used: one for each half of a register.
    halves = []
    for first in (0, 8):
        pointer = builder.gep(data, [builder.add(start, start.type(first))])
        halves.append(builder.load(builder.bitcast(pointer, row.as_pointer()), align=1))
    # Pixels 2 k and 2 k + 1 share three bytes from 3 k on; the middle one is in both.
    pairs = [3 * (lane // 2) + lane % 2 + part for lane in range(8) for part in (0, 1)]
    pairs += [16 + 4 + at for at in pairs]
    both = builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(index, 32), pairs))
    both = builder.bitcast(both, lanes)
    even = builder.and_(both, ir.Constant(lanes, [0x0FFF] * 16))
    odd = builder.lshr(both, ir.Constant(lanes, [4] * 16))
    blend = [lane + 16 * (lane % 2) for lane in range(16)]
    return builder.shuffle_vector(even, odd, ir.Constant(ir.VectorType(index, 16), blend))


@intrinsic
def spread_nibbles(typingctx, out, at, src, start):
    """Store 16 pixels of 12 bits, packed into 24 bytes from the lowest bit on, as 16-bit words."""

    def codegen(context, builder, signature, args):
        source = context.make_array(signature.args[2])(context, builder, args[2]).data
        pixels = _nibbles(builder, source, args[3])
        place = place_in(context, builder, signature, args, 0, pixels.type)
        builder.store(pixels, place, align=1)
        return context.get_dummy_value()

    return types.void(out, types.int64, src, types.int64), codegen


@intrinsic
def sum_nibbles(typingctx, src, start):
    """Sum 256 pixels of 12 bits, packed into 384 bytes: as many as fit 16-bit lanes."""

    def codegen(context, builder, signature, args):
        source = context.make_array(signature.args[0])(context, builder, args[0]).data
        _fetch(builder, source, args[1], 384)
        rows = (builder.add(args[1], args[1].type(24 * row)) for row in range(16))
        total = reduce(builder.add, (_nibbles(builder, source, row) for row in rows))
        wide = builder.zext(total, ir.VectorType(ir.IntType(64), 16))
        lanes = (builder.extract_element(wide, ir.IntType(32)(lane)) for lane in range(16))
        return reduce(builder.add, lanes)

    return types.uint64(src, types.int64), codegen


@intrinsic
def add_nibbles(typingctx, results, first, src, starts, further):
    """Add 16 pixels of 12 bits of several frames to the integers from ``first`` on.

    The pixels of a frame are packed into 24 bytes, ``further`` bytes after its start. They are
    added in registers, of at most 16 frames, as many as fit 16-bit lanes.
    """

    def codegen(context, builder, signature, args):
        out, data, begins = (
            context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 2, 3)
        )
        lanes = ir.VectorType(ir.IntType(16), 16)
        total = cgutils.alloca_once_value(builder, ir.Constant(lanes, [0] * 16))
        frames = cgutils.unpack_tuple(builder, begins.shape, 1)[0]
        with cgutils.for_range(builder, frames) as loop:
            start = builder.load(builder.gep(begins.data, [loop.index]))
            here = builder.add(start, args[4])
            _fetch(builder, data.data, here, 24)
            pixels = _nibbles(builder, data.data, here)
            builder.store(builder.add(builder.load(total), pixels), total)
        wide = ir.VectorType(out.data.type.pointee, 16)
        place = builder.bitcast(builder.gep(out.data, [args[1]]), wide.as_pointer())
        old, new = builder.load(place, align=1), builder.zext(builder.load(total), wide)
        builder.store(builder.add(old, new), place, align=1)
        return context.get_dummy_value()

    return types.void(results, types.int64, src, starts, types.int64), codegen
