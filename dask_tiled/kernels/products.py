"""Dot products of several frames and several masks, whose sums stay in registers."""

from __future__ import annotations

from contextlib import suppress
from functools import reduce
from typing import Any, NamedTuple

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dask_tiled.kernels.jit import CONFIG
from dask_tiled.kernels.words import prefetch

FRAMES, MASKS, SIMD_BYTES = 2, 4, 32
"""Frames multiplied by several masks at once, most masks, and bytes of a vector."""
PAIRS_OF: str | None = None
"""Function of LLVM that adds pairs of products of 2 bytes; None if there is no instruction."""
with suppress(RuntimeError):  # the processor is unknown
    known = {} if CONFIG.CPU_NAME else binding.get_host_cpu_features()
    if known.get("avx2"):
        PAIRS_OF = "x86.avx2.pmadd.wd"
    if known.get("avx512f"):  # 32 registers of 64 bytes
        FRAMES, SIMD_BYTES = 6, 64
        PAIRS_OF = "x86.avx512.pmaddw.d.512" if known.get("avx512bw") else None
PAIRS_PIXELS = SIMD_BYTES // 4 * 128
"""Maximum number of pixels that are summed in 4 bytes, 128 in each lane of a vector."""
MOST_IN_PAIRS = 511
"""Greatest weight of 2 bytes: 128 products of it and 2 bytes fit into 4 bytes."""
SHIFT = 1 << 15
"""Subtracted from unsigned pixels of 2 bytes if weights have 2 bytes: both are signed then."""
LANE = ir.IntType(32)
OUTER = 2
"""Locality of prefetches: into the L2 cache, as the L1 cache holds the masks of a block."""


def product_type(weight: Any) -> Any:
    """Return the type of sums of some products: that of float weights, else int64."""
    return types.int64 if isinstance(weight, types.Integer) else weight


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


def _plus_pairs(builder, total, a, b):
    """Add products of 2 bytes to sums of 4 bytes, two to each if there are several."""
    lanes = total.type.count
    if PAIRS_OF is not None and lanes == SIMD_BYTES // 4:
        called = ir.FunctionType(total.type, [a.type, b.type])
        called = cgutils.get_or_insert_function(builder.module, called, f"llvm.{PAIRS_OF}")
        return builder.add(total, builder.call(called, [a, b]))
    for first in range(0, a.type.count, lanes):
        half = ir.Constant(ir.VectorType(LANE, lanes), [*range(first, first + lanes)])
        halves = (builder.shuffle_vector(x, x, half) for x in (a, b))
        total = builder.add(total, builder.mul(*(builder.sext(x, total.type) for x in halves)))
    return total


def _paired(builder, vector, _, number):
    """Convert pixels of 1 or 2 bytes to signed numbers of 2 bytes, less ``SHIFT`` if need be."""
    words = ir.VectorType(ir.IntType(16), vector.type.count)
    if number.bitwidth < 16:
        return (builder.sext if number.signed else builder.zext)(vector, words)
    if number.signed:
        return vector
    return builder.xor(vector, ir.Constant(words, [SHIFT] * words.count))


def _widened(builder, vector):
    """Return sums of 8 bytes of the two halves of a vector, or of its only element."""
    lanes = max(1, vector.type.count // 2)
    halves = []
    for first in range(0, vector.type.count, lanes):
        half = ir.Constant(ir.VectorType(LANE, lanes), [*range(first, first + lanes)])
        half = builder.shuffle_vector(vector, vector, half)
        halves.append(builder.sext(half, ir.VectorType(ir.IntType(64), lanes)))
    return reduce(builder.add, halves)


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


def _overlapping(builder, j, high, lanes):
    """Return the first pixel of a vector that ends at ``high``, and which lanes are new."""
    last = builder.sub(high, high.type(lanes))
    first = builder.select(builder.icmp_signed("<", j, last), j, last)
    numbers = ir.Constant(ir.VectorType(LANE, lanes), [*range(lanes)])
    done = builder.insert_element(numbers, builder.trunc(builder.sub(j, first), LANE), LANE(0))
    done = builder.shuffle_vector(done, done, ir.Constant(numbers.type, [0] * lanes))
    return first, builder.icmp_signed(">=", numbers, done)


def _only(builder, lanes, vector):
    """Return a vector that is 0 in the other lanes."""
    zeros = ir.Constant(vector.type, [0] * vector.type.count)
    return vector if lanes is None else builder.select(lanes, vector, zeros)


class _Products(NamedTuple):
    """Products of frames and masks; all is code in LLVM's language."""

    builder: Any
    frames: list[Any]
    """Addresses of the first pixels."""
    rows: list[Any]
    """Addresses of the first weights."""
    lines: list[Any]
    """Addresses of what is prefetched."""
    pixel: Any
    weight: Any
    reverse: bool
    overlap: bool
    """Whether the last vector may begin in the one before, which takes less than single pixels."""

    def widest(self) -> int:
        """Return the pixels of the widest vector."""
        if self.weight == types.int16:
            return SIMD_BYTES // 2
        return SIMD_BYTES * 8 // max(self.pixel.bitwidth, product_type(self.weight).bitwidth)

    def bounds(self, done: Any, count: Any, lanes: int) -> tuple[Any, Any]:
        """Return the pixels from ``done`` on that vectors hold; the last ones may overlap."""
        if not self.overlap:
            return done, self.builder.and_(count, count.type(-lanes))
        enough = self.builder.icmp_signed(">=", self.builder.sub(count, done), done.type(lanes))
        return done, self.builder.select(enough, count, done)

    def accumulate(self, begins: list[Any], bounds: tuple[Any, Any], lanes: int) -> list[Any]:
        """Add products of the pixels in some bounds, a vector at a time; return the sums."""
        builder, in_pairs = self.builder, self.weight == types.int16
        places = [cgutils.alloca_once_value(builder, begin) for begin in begins]
        (low, high), kind = bounds, begins[0].type
        with cgutils.for_range_slice(builder, low, high, low.type(lanes), inc=True) as (j, _):
            for line in self.lines if lanes == self.widest() else ():
                place = builder.bitcast(builder.gep(line, [j]), ir.IntType(8).as_pointer())
                prefetch(builder, place, locality=OUTER)
            at, new = _overlapping(builder, j, high, lanes) if self.overlap else (j, None)
            values = [_vector(builder, frame, at, lanes) for frame in self.frames]
            if self.reverse:
                values = [_call(builder, "bswap", value) for value in values]
            convert, plus = (_paired, _plus_pairs) if in_pairs else (_converted, _plus_product)
            values = [convert(builder, value, kind, self.pixel) for value in values]
            for k, row in enumerate(self.rows):
                factors = _vector(builder, row, at, lanes)
                if not in_pairs:
                    factors = _converted(builder, factors, kind, self.weight)
                for value, sum_at in zip(values, places[k :: len(self.rows)], strict=True):
                    both = (_only(builder, new, x) for x in (value, factors))
                    builder.store(plus(builder, builder.load(sum_at), *both), sum_at)
        return [builder.load(place) for place in places]

    def added(self, totals: list[Any], bounds: tuple[Any, Any], lanes: int) -> list[Any]:
        """Return totals, and further products added in their type."""
        zeros = ir.Constant(ir.VectorType(totals[0].type, lanes), [0] * lanes)
        begins = [self.builder.insert_element(zeros, total, LANE(0)) for total in totals]
        return _lane_sums(self.builder, self.accumulate(begins, bounds, lanes))

    def added_in_parts(self, totals: list[Any], bounds: tuple[Any, Any], lanes: int) -> list[Any]:
        """Return totals, and sums of further products in 4 bytes, of the pixels that fit."""
        builder, kind = self.builder, ir.VectorType(LANE, max(1, lanes // 2))
        zeros = ir.Constant(kind, [0] * kind.count)
        sums = [cgutils.alloca_once_value(builder, _widened(builder, zeros)) for _ in totals]
        (low, high), step = bounds, bounds[0].type(PAIRS_PIXELS)
        with cgutils.for_range_slice(builder, low, high, step, inc=True) as (first, _):
            last = builder.add(first, step)
            last = builder.select(builder.icmp_signed("<", last, high), last, high)
            vectors = self.accumulate([zeros] * len(totals), (first, last), lanes)
            for place, vector in zip(sums, vectors, strict=True):
                more = _widened(builder, vector)
                builder.store(builder.add(builder.load(place), more), place)
        parts = _lane_sums(builder, [builder.load(place) for place in sums])
        return [builder.add(*both) for both in zip(totals, parts, strict=True)]


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
    at_once,
    few,
):
    """Set ``sums`` to the dot products of ``at_once`` frames and a ``few`` masks, both constants.

    They are frames ``start`` and following and masks ``m`` and following, the last of which are
    repeated; ``count`` pixels from byte ``at`` of a frame and from weight ``first`` of a mask on.
    As many bytes from each of the offsets ``ahead`` are prefetched meanwhile.

    With weights of 2 bytes, at most ``MOST_IN_PAIRS``, pixels have 1 or 2 bytes, and ``SHIFT`` is
    subtracted from unsigned ones of 2.
    """
    pixel, weight, kind = pixels.dtype, weights.dtype, product_type(weights.dtype)

    def codegen(context, builder, signature, args):
        sums, data, offsets, weights = (
            context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 1, 2, 6)
        )
        start, stop, at, m, first, count = (args[k] for k in (3, 4, 5, 7, 8, 9))
        number = start.type

        def place(array, index, element):
            return builder.bitcast(builder.gep(array.data, [index]), element.as_pointer())

        def limited(index, k, size):
            index, last = builder.add(index, number(k)), builder.sub(size, number(1))
            return builder.select(builder.icmp_signed("<", index, last), index, last)

        have, factor, product = map(context.get_value_type, (pixel, weight, kind))
        masks, columns = cgutils.unpack_tuple(builder, weights.shape, 2)
        frames = [
            builder.load(builder.gep(offsets.data, [limited(start, k, stop)]))
            for k in range(at_once.literal_value)
        ]
        frames = [place(data, builder.add(frame, at), have) for frame in frames]
        rows = [builder.mul(limited(m, k, masks), columns) for k in range(few.literal_value)]
        rows = [place(weights, builder.add(row, first), factor) for row in rows]
        lines = [place(data, line, have) for line in cgutils.unpack_tuple(builder, args[10])]

        backwards, is_one = reverse.literal_value, at_once.literal_value == 1
        products = _Products(builder, frames, rows, lines, pixel, weight, backwards, is_one)
        add = products.added_in_parts if weight == types.int16 else products.added
        widest, done = products.widest(), number(0)
        totals = [ir.Constant(product, 0)] * (len(frames) * len(rows))
        for lanes in (widest, 4, 1) if widest > 8 else (widest, 1):
            bounds = products.bounds(done, count, lanes)
            totals, (_, done) = add(totals, bounds, lanes), bounds
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
        at_once,
        few,
    ), codegen
