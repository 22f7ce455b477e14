"""Accumulating steps of reductions, appended to the steps of a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dask_tiled.engine.expressions import Cast, Register, Step
from dask_tiled.engine.folding import are_narrow, can_fold
from dask_tiled.engine.limits import (
    MOST_AT_ONCE,
    MOST_BINS,
    MOST_COUNTED,
    MOST_GROUP,
    MOST_IN_WORDS,
    MOST_STEPS,
)
from dask_tiled.engine.vectors import (
    Collect,
    NoPrimitive,
    Room,
    Totals,
    Value,
    Vectors,
    pixel_type,
)
from dask_tiled.model.indexing import Array

Bins = tuple[int | Array, tuple[float, float] | None]
"""Bins and range, as in ``numpy.histogram``."""

IN_SHORT_GROUPS = f"along axes or bins of {MOST_GROUP} pixels or fewer"
"""Where several groups of pixels, each of which is reduced, lie in a row of a vector."""
EXTREMES: dict[np.ufunc, np.ufunc] = {np.logical_or: np.maximum, np.logical_and: np.minimum}
"""Logical ufuncs, and the extreme that determines their result."""
OPPOSITE: dict[np.ufunc, np.ufunc] = {np.logical_or: np.logical_and, np.logical_and: np.logical_or}
BELOW: dict[np.ufunc, Callable[[Any], int]] = {
    np.greater: math.floor,
    np.greater_equal: lambda number: math.ceil(number) - 1,
    np.less: lambda number: math.ceil(number) - 1,
    np.less_equal: math.floor,
}
"""Returns the largest integer on the lower side of a comparison with a number."""
MIRRORED: dict[np.ufunc, np.ufunc] = {
    np.greater: np.less,
    np.greater_equal: np.less_equal,
    np.less: np.greater,
    np.less_equal: np.greater_equal,
}
OF_ZERO: dict[np.ufunc, np.ufunc] = {np.not_equal: np.greater, np.equal: np.less_equal}
"""Comparisons of unsigned integers with 0, and equal thresholds: ``x != 0`` is ``x > 0``."""
OF_FRAMES = {np.add: "add_frames", np.minimum: "min_frames", np.maximum: "max_frames"}
"""Primitives that accumulate each pixel of several frames."""
OF_ROWS = {np.minimum: "min_row", np.maximum: "max_row"}
"""Primitives that accumulate a row of integers."""


def neutral(ufunc: np.ufunc, dtype: np.dtype) -> float:
    """Return the neutral element of a ufunc for a dtype; raise NoPrimitive if it has none."""
    if ufunc.identity is not None:
        return int(ufunc.identity)
    least = ufunc in (np.minimum, np.fmin)
    if dtype.kind == "f":
        return np.nan if ufunc in (np.fmin, np.fmax) else np.inf if least else -np.inf
    if dtype.kind == "b":
        return least
    if dtype.kind not in "iu":
        raise NoPrimitive(f"no kernel for {ufunc.__name__} of {dtype} pixels")
    limits = np.iinfo(dtype)
    return limits.max if least else limits.min


def sum_dtype(pixel: np.dtype, dtype: np.dtype) -> np.dtype:
    """Return the accumulator dtype for a sum of pixels in ``dtype``; raise NoPrimitive if none."""
    if pixel.kind in "biu" and (dtype.kind in "iu" or pixel.itemsize <= 4):
        return np.dtype("i8" if pixel.kind == "i" else "u8")
    if pixel.kind == "c" != dtype.kind:
        raise NoPrimitive(f"no kernel for sums of complex pixels as {dtype}")
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


Fused = Callable[[Vectors, Step, Value], bool]
"""Appends a primitive that also computes the last step; returns whether there is one."""


def accumulate(
    vectors: Vectors,
    last: Step,
    ufunc: np.ufunc,
    dtype: np.dtype | None,
    *,
    fused: Iterable[Fused],
    skips: bool,
    counts: bool,
) -> Collect:
    """Accumulate all pixels with a ufunc; ``skips`` leaves out NaN.

    ``counts`` appends an axis with the number of pixels that are not NaN.
    """
    dtype = last.to.dtype if dtype is None else dtype
    adds = ufunc is np.add
    if adds:
        dtype = sum_dtype(last.to.dtype, dtype)
        narrow = vectors.has_rows(vectors.kept) and are_narrow(last.to.dtype, vectors.reduced)
        dtype = np.dtype(f"{dtype.kind}4") if narrow and dtype.kind in "iu" else dtype
    if counts and vectors.group > 1:
        raise NoPrimitive(f"no kernel for nanmean {IN_SHORT_GROUPS}")
    results = vectors.room((1 + counts, *vectors.left), dtype, neutral(ufunc, dtype))
    out, *number = vectors.outputs(results)
    if skips or not any(append(vectors, last, out) for append in fused):
        value = vectors.step(last)
        if skips:
            for count in number:
                _count_numbers(vectors, value, count)
            value = _without_nan(vectors, value, neutral(ufunc, dtype))
        _append(vectors, ufunc, value if adds else vectors.cast(value, dtype), out, results)
    at = results.number
    return lambda own: np.moveaxis(own[at], 0, -1) if counts else own[at][0, ...]


def truths(vectors: Vectors, last: Step, ufunc: np.ufunc) -> Collect:
    """Accumulate whether any pixel is true, or all are, by the extreme that determines it."""
    threshold, limit, above = _threshold(last), 0, True
    if threshold is not None:
        (pixels,), (limit, above) = last.registers, threshold
        value = vectors.value(pixels)
    elif last.to.dtype.kind == "u":
        value = vectors.step(last)
    else:  # NaN and negative numbers are true
        value = vectors.cast(vectors.step(last), np.dtype(bool))
    if value.dtype.kind != "b" or vectors.takes_whole(value):
        ufunc = EXTREMES[ufunc if above else OPPOSITE[ufunc]]
    results = vectors.room((1, *vectors.left), value.dtype, neutral(ufunc, value.dtype))
    (out,) = vectors.outputs(results)
    _append(vectors, ufunc, value, out, results)
    return lambda own: (own[results.number][0, ...] > limit) == above


def _without_nan(vectors: Vectors, value: Value, neutral: float) -> Value:
    """Replace NaN by the neutral element."""
    chosen = vectors.register("chosen", value.dtype)
    others = vectors.value(neutral, value.dtype, dense=True)
    vectors.own("select", [_truth(vectors, np.isnan, value), others, value], chosen)
    return chosen


def _append(vectors: Vectors, ufunc: np.ufunc, value: Value, out: Value, results: Room) -> None:
    """Append the step that accumulates pixels, by the fastest primitive."""
    if vectors.takes_whole(value):
        initial, exact = neutral(ufunc, results.dtype), results.dtype.kind in "iu"
        vectors.totals = Totals(results, initial, adds=ufunc is np.add and exact)
    if vectors.group > 1:
        _reduce_groups(vectors, ufunc, value, out)
    elif ufunc in OF_FRAMES and vectors.takes_frames(value):
        vectors.of_frames(OF_FRAMES[ufunc], value, results, out)
    elif ufunc is np.add:
        _add_up(vectors, value, out)
    elif ufunc in OF_ROWS and value.dtype.kind in "biu" and not out.is_dense:
        vectors.own(OF_ROWS[ufunc], [value], out)
    else:
        vectors.loop(ufunc, [out, value], out)


def dot(vectors: Vectors, last: Step, out: Value) -> bool:
    """Add products with weights to one sum without storing them."""
    factors, rows = last.factors, vectors.has_rows(vectors.kept)
    if rows or factors is None or not last.to.dtype.kind == out.dtype.kind == "f":
        return False
    weights = vectors.value(factors[1], last.to.dtype)
    if weights.is_dense:
        vectors.own("add_products", [vectors.value(factors[0]), weights], out)
    return weights.is_dense


def roots(vectors: Vectors, last: Step, out: Value) -> bool:
    """Add square roots of integers, each to its own sum, without storing them.

    Floats, which have twice the bytes and are not decoded, take longer so.
    """
    pixels, dtype, rows = last.operands[0], last.to.dtype, vectors.has_rows(vectors.kept)
    if last.function is not np.sqrt or not isinstance(pixels, Register) or not rows:
        return False
    if vectors.group > 1:
        return False
    known = pixels.dtype.kind in "iu" and can_fold(dtype) and out.dtype.kind == "f"
    if known:
        types = pixels.dtype, dtype, pixels.dtype
        vectors.primitive("add_each_root", [vectors.value(pixels)], out, types=types)
    return known


def selected(vectors: Vectors, last: Step, out: Value) -> bool:
    """Count the integers that a comparison with a number selects, without storing its results."""
    threshold = _threshold(last)
    if threshold is None or vectors.group > 1 or vectors.has_rows(vectors.kept):
        return False
    (pixels,), (limit, above) = last.registers, threshold
    fits = np.iinfo(pixels.dtype).min <= limit <= np.iinfo(pixels.dtype).max
    if fits:
        values = vectors.value(pixels), vectors.fixed(np.full(1, limit, pixels.dtype))
        vectors.own("count_above" if above else "count_below", [*values], out)
    return fits


def _threshold(step: Step) -> tuple[int, bool] | None:
    """Match a comparison of integers with a number.

    Returns the greatest integer on its lower side, and whether greater ones are true; else None.
    """
    function, operands, (pixels, *more) = step.function, step.operands, [*step.registers, None]
    if more != [None] or pixels is None or pixels.dtype.kind not in "iu":
        return None
    if isinstance(function, Cast):
        return (0, True) if step.to.dtype.kind == "b" and pixels.dtype.kind == "u" else None
    if pixels.dtype.itemsize > 4 or not isinstance(function, np.ufunc):  # may not compare exactly
        return None
    if len(operands) == 2 and operands[1] is pixels:
        function, operands = MIRRORED.get(function, function), operands[::-1]
    if pixels.dtype.kind == "u" and operands[1:] == (0,):
        function = OF_ZERO.get(function, function)
    try:
        limit = BELOW[function](operands[1])
    except (KeyError, TypeError, ValueError, OverflowError):  # an array, a complex number or NaN
        return None
    return limit, function in (np.greater, np.greater_equal)


def _reduce_groups(vectors: Vectors, ufunc: np.ufunc, value: Value, out: Value) -> None:
    """Reduce groups of neighbouring pixels: the first of each group, then the second, and so on."""
    group = vectors.group
    if ufunc is np.add:
        size = vectors.value(group, np.dtype(np.int64))
        vectors.primitive("add_groups", [value, size], out, group=group)
        return
    mode, base, *others, step = value.place
    for k in range(group):
        member = value._replace(place=(mode, base + k * step, *others, step * group))
        vectors.loop(ufunc, [out, member], out, group)


def _add_up(vectors: Vectors, value: Value, out: Value) -> None:
    if out.dtype.kind == "c":
        vectors.loop(np.add, [out, vectors.cast(value, out.dtype)], out)
        return
    in_words = value.dtype.kind in "bu" and value.dtype.itemsize <= MOST_IN_WORDS
    row = "add_words" if in_words else "add_row"
    vectors.own("add_each" if out.is_dense else row, [value], out)


def _count_numbers(vectors: Vectors, value: Value, out: Value) -> None:
    numbers = _truth(vectors, np.logical_not, _truth(vectors, np.isnan, value))
    _add_up(vectors, numbers, out)


def _truth(vectors: Vectors, ufunc: np.ufunc, value: Value) -> Value:
    found = vectors.register(ufunc.__name__, np.dtype(bool))
    vectors.loop(ufunc, [value], found)
    return found


def moments(vectors: Vectors, last: Step, *, skips: bool) -> Collect:
    """Accumulate number, mean and spread (sum of squared deviations) along a new last axis.

    The kernel sums the differences from one pixel, and their squares.
    """
    if vectors.group > 1:
        raise NoPrimitive(f"no kernel for var and std {IN_SHORT_GROUPS}")
    shape = 3 + skips, *vectors.left
    initial = np.zeros((3 + skips, *[1] * len(vectors.left)))
    initial[0] = np.nan
    results = vectors.room(shape, initial.dtype, initial)
    shift, total, squares, *number = vectors.outputs(results)
    value = vectors.step(last)
    for out in number:
        _count_numbers(vectors, value, out)
    if vectors.takes_frames(value) and not skips:
        vectors.totals = Totals(results, initial, adds=False)
        vectors.of_frames("moments_frames", value, results, shift)
    else:
        kind = f"{'nan' * skips}moments_{'each' if shift.is_dense else 'row'}"
        vectors.primitive(kind, [value, shift, total], squares)
    pixels = None if skips else vectors.reduced
    return lambda own: about_the_mean(own[results.number], pixels)


def about_the_mean(results: Array, pixels: int | None = None) -> Array:
    """Convert the sums of differences from a value to number, mean and spread, along a last axis.

    The number of ``pixels`` is the fourth of the results if it is not given.
    """
    count = results[3, ...] if pixels is None else pixels
    shift, total, squares = (results[k, ...] for k in range(3))
    with np.errstate(all="ignore"):  # infinite pixels have no spread; other spreads may overflow
        total /= np.maximum(count, 1)
        fits = np.isfinite(squares) | ~np.isfinite(total)
        np.subtract(squares, count * total * total, out=squares, where=fits)
        total += np.where(np.equal(count, 0), 0, shift)
    shift[...] = count
    return np.moveaxis(results[:3], 0, -1)


def places(vectors: Vectors, last: Step, ufunc: np.ufunc, gone: tuple[int, ...]) -> Collect:
    """Accumulate the least or greatest pixel and its first position.

    The search runs within each row, or over several rows pixel by pixel. Positions are counted in C
    order of the axes ``gone``.
    """
    if vectors.group > 1:
        raise NoPrimitive(f"no kernel for argmin and argmax {IN_SHORT_GROUPS}")
    dtype, first, kept, sizes = last.to.dtype, vectors.first, vectors.kept, vectors.shape
    by_row = not vectors.has_rows(kept)
    if by_row:
        kept = (True,) * first + kept[first:]
    shape = [n if k else 1 for n, k in zip(sizes, kept, strict=True)]
    axes = range(first, len(kept)) if by_row else range(first)
    limit = math.prod(sizes[axis] for axis in axes)
    along = _places_along(axes, sizes, gone)
    if by_row and (np.diff(along.ravel()) < 0).any():
        raise NoPrimitive("positions along a transposed row")
    along = along.astype(np.min_scalar_type(max(limit, 256)))
    results = vectors.room(shape, dtype, neutral(ufunc, dtype))
    positions = vectors.room(shape, along.dtype, limit)
    value = vectors.step(last)
    best, place = vectors.array(results, kept), vectors.array(positions, kept)
    where = vectors.array(along, tuple(n > 1 for n in along.shape))
    kind = f"arg{'min' if ufunc is np.minimum else 'max'}_{'row' if by_row else 'each'}"
    if by_row and dtype.kind in "biu" and vectors.vector <= MOST_AT_ONCE:
        kind += "_of_whole"
    vectors.primitive(kind, [value, where, best], place)

    rest = [axis for axis, n in enumerate(shape) if n > 1 and axis in gone]

    def collect(own: Sequence[Array]) -> Array:
        extremes, where = own[results.number], own[positions.number]
        if not rest:
            return placed(extremes, where)
        whole = where + _places_along(rest, sizes, gone)
        return placed(*first_place(ufunc, extremes, whole, tuple(rest)))

    return collect


def _places_along(axes: Iterable[int], shape: tuple[int, ...], gone: tuple[int, ...]) -> Array:
    """Return the contribution of some axes to C-order positions along the axes ``gone``."""
    sizes = [shape[axis] for axis in gone]
    found = np.zeros((1,) * len(shape), np.int64)
    for k, axis in enumerate(gone):
        if axis in axes:
            along = np.arange(sizes[k]) * math.prod(sizes[k + 1 :])
            found = found + along.reshape([-1 if x == axis else 1 for x in range(found.ndim)])
    return found


def first_place(
    ufunc: np.ufunc, values: Array, where: Array, axes: tuple[int, ...]
) -> tuple[Array, Array]:
    """Return the extreme pixels along some axes, and the first position of each."""
    best = ufunc.reduce(values, axes, keepdims=True)
    hits = (values == best) | np.not_equal(values, values)  # NaN precedes all other pixels
    return best, np.where(hits, where, np.iinfo(where.dtype).max).min(axes, keepdims=True)


def placed(values: Array, where: Array) -> Array:
    """Return pixels and positions as one structured array."""
    found = np.empty(values.shape, [("value", values.dtype), ("place", where.dtype)])
    found["value"], found["place"] = values, where
    return found


def counts(vectors: Vectors, last: Step, bins: Bins) -> Collect:
    """Count the pixels in each bin; narrow integers are counted by value first."""
    dtype, (number, limits) = last.to.dtype, bins
    if dtype.kind in "biu" and dtype.itemsize <= MOST_COUNTED:
        tables = vectors.room((4, 256**dtype.itemsize), np.dtype(np.int64), 0)
        vectors.own("count", [vectors.step(last)], vectors.whole(tables))

        def collect(own: Sequence[Array]) -> Array:
            total = own[tables.number].sum(axis=0)
            (occurring,) = np.nonzero(total)
            values = occurring.astype(f"u{dtype.itemsize}").view(pixel_type(dtype))
            return np.histogram(values, number, limits, weights=total[occurring])[0]

        return collect
    edges, scale = _edges(bins, pixel_type(dtype))
    results = vectors.room((len(edges) - 1,), np.dtype(np.int64), 0)
    beside = [vectors.fixed(np.array([len(edges) - 1, scale])), vectors.fixed(edges)]
    vectors.own("bins", [vectors.step(last), *beside], vectors.whole(results))
    return lambda own: own[results.number]


def _edges(bins: Bins, dtype: np.dtype) -> tuple[Array, float]:
    """Return the edges of bins, and the approximate number of bins per unit."""
    try:
        _, edges = np.histogram(np.zeros(1, dtype), *bins)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise NoPrimitive(f"numpy refuses bins {bins} of {dtype} pixels") from error
    number, (first, last) = len(edges) - 1, edges[[0, -1]].astype(float)
    scale = number / (last - first) if last > first else math.nan
    numbers = np.arange(number + 1)
    known = edges.dtype.kind in "iuf" and 0 < number <= MOST_BINS and math.isfinite(scale)
    exact = max(abs(first), abs(last)) < 1 << np.finfo(float).nmant
    if not known or not exact or (abs((edges - first) * scale - numbers) > MOST_STEPS).any():
        raise NoPrimitive("no kernel for uneven bins, or more than 65,536")
    return edges.astype(float), scale
