"""Dot products of several frames and several masks, whose sums stay in registers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dask_tiled.kernels.words import prefetch

FRAMES, MASKS, SIMD_BYTES = 2, 4, 32
"""Frames and masks multiplied at once, and bytes of a vector."""
with suppress(RuntimeError):  # the processor is unknown
    if binding.get_host_cpu_features().get("avx512f"):  # 32 registers of 64 bytes
        FRAMES, SIMD_BYTES = 6, 64
LANE = ir.IntType(32)


def product_type(weight: Any) -> Any:
    """Return the type of products: that of float weights, else a wider one.

    It is int32 for weights of 2 bytes, and int64 for other integer weights. Otherwise numba would
    promote to float64.
    """
    if isinstance(weight, types.Integer):
        return types.int32 if weight == types.int16 else types.int64
    return weight


def _vector(builder, row, j, lanes):
    """Load elements of a row, from number ``j`` on."""
    pointer = builder.gep(row, [j])
    kind = ir.VectorType(pointer.type.pointee, lanes)
    return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)


def _call(builder, name, *vectors):
    """Call a function of LLVM on vectors."""
    kind = vectors[0].type
    lane = (
        f"i{kind.element.width}" if isinstance(kind.element, ir.IntType) else _float(kind.element)
    )
    function = ir.FunctionType(kind, [kind] * len(vectors))
    called = f"llvm.{name}.v{kind.count}{lane}"
    return builder.call(cgutils.get_or_insert_function(builder.module, function, called), vectors)


def _float(kind):
    return "f32" if isinstance(kind, ir.FloatType) else "f64"


def _converted(builder, vector, kind, number):
    """Convert a vector of integers or floats, of numba's type ``number``."""
    have, want = vector.type.element, kind.element
    if have == want:
        return vector
    if isinstance(number, types.Float):
        return (builder.fpext if want == ir.DoubleType() else builder.fptrunc)(vector, kind)
    if not isinstance(want, ir.IntType):
        return (builder.sitofp if number.signed else builder.uitofp)(vector, kind)
    if have.width > want.width:
        return builder.trunc(vector, kind)
    return (builder.sext if number.signed else builder.zext)(vector, kind)


def _plus(builder, a, b):
    return builder.add(a, b) if isinstance(a.type.element, ir.IntType) else builder.fadd(a, b)


def _plus_product(builder, total, a, b):
    if isinstance(a.type.element, ir.IntType):
        return builder.add(total, builder.mul(a, b))
    return _call(builder, "fmuladd", a, b, total)


def _lane_sums(builder, vectors):
    """Return the sums of the lanes of each vector: halves are added, of two vectors at a time."""
    size = lanes = vectors[0].type.count
    count = len(vectors)
    while lanes > 1:
        lanes //= 2
        low = [2 * lanes * k + j for k in range(size // lanes) for j in range(lanes)]
        parts = [
            ir.Constant(ir.VectorType(LANE, size), [k + shift for k in low]) for shift in (0, lanes)
        ]
        vectors += vectors[-1:] * (len(vectors) % 2)
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [
            _plus(builder, *(builder.shuffle_vector(a, b, part) for part in parts))
            for a, b in pairs
        ]
    sums = [builder.extract_element(vector, LANE(k)) for vector in vectors for k in range(size)]
    return sums[:count]


@intrinsic(prefer_literal=True)
def multiply(
    typingctx,
    sums,
    data,
    offsets,
    start,
    stop,
    at,
    weights,
    m,
    first,
    count,
    ahead,
    pixels,
    reverse,
):
    """Set ``sums`` to the dot products of ``FRAMES`` frames and ``MASKS`` masks.

    They are frames ``start`` and following and masks ``m`` and following, the last of which are
    repeated; ``count`` pixels from byte ``at`` of a frame and from weight ``first`` of a mask on.
    As many bytes from each of the offsets ``ahead`` are prefetched meanwhile.
    """
    pixel, weight, kind = pixels.dtype, weights.dtype, product_type(weights.dtype)

    def codegen(context, builder, signature, args):
        sums, data, offsets, weights = (
            context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 1, 2, 6)
        )
        start, stop, at, m, first, count = (args[k] for k in (3, 4, 5, 7, 8, 9))
        number, byte = start.type, ir.IntType(8)

        def place(array, index, element):
            return builder.bitcast(builder.gep(array.data, [index]), element.as_pointer())

        def limited(index, k, size):
            index, last = builder.add(index, number(k)), builder.sub(size, number(1))
            return builder.select(builder.icmp_signed("<", index, last), index, last)

        have, factor, product = map(context.get_value_type, (pixel, weight, kind))
        masks, columns = cgutils.unpack_tuple(builder, weights.shape, 2)
        frames = [
            builder.load(builder.gep(offsets.data, [limited(start, k, stop)]))
            for k in range(FRAMES)
        ]
        frames = [place(data, builder.add(frame, at), have) for frame in frames]
        rows = [builder.mul(limited(m, k, masks), columns) for k in range(MASKS)]
        rows = [place(weights, builder.add(row, first), factor) for row in rows]
        lines = [place(data, line, have) for line in cgutils.unpack_tuple(builder, args[10])]

        done, totals = number(0), [ir.Constant(product, 0)] * (FRAMES * MASKS)
        widest = SIMD_BYTES * 8 // max(pixel.bitwidth, kind.bitwidth)
        for lanes in (widest, 4, 1) if widest > 8 else (widest, 1):
            these = ir.VectorType(product, lanes)
            zeros = ir.Constant(these, [0] * lanes)
            begins = [builder.insert_element(zeros, total, LANE(0)) for total in totals]
            places = [cgutils.alloca_once_value(builder, begin) for begin in begins]
            end = builder.and_(count, number(-lanes))
            with cgutils.for_range_slice(builder, done, end, number(lanes), inc=True) as (j, _):
                for line in lines if lanes == widest else ():
                    prefetch(builder, builder.bitcast(builder.gep(line, [j]), byte.as_pointer()))
                values = [_vector(builder, frame, j, lanes) for frame in frames]
                if reverse.literal_value:
                    values = [_call(builder, "bswap", value) for value in values]
                values = [_converted(builder, value, these, pixel) for value in values]
                for k, row in enumerate(rows):
                    factors = _converted(builder, _vector(builder, row, j, lanes), these, weight)
                    for value, sum_at in zip(values, places[k::MASKS], strict=True):
                        added = _plus_product(builder, builder.load(sum_at), value, factors)
                        builder.store(added, sum_at)
            done, totals = end, _lane_sums(builder, [builder.load(place) for place in places])
        for k, total in enumerate(totals):
            added = context.cast(builder, total, kind, signature.args[0].dtype)
            builder.store(added, builder.gep(sums.data, [number(k)]))
        return context.get_dummy_value()

    number = types.int64
    return types.void(
        sums,
        data,
        offsets,
        number,
        number,
        number,
        weights,
        number,
        number,
        number,
        ahead,
        pixels,
        reverse,
    ), codegen
