"""Table of reductions, one row each.

``steps`` reduces a chunk in vectors, or else ``whole`` does; ``combine`` and ``finish`` turn the
results of all chunks into the final one. Dask's functions are unknown here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import NamedTuple

import numpy as np

from dask_tiled.engine import accumulators
from dask_tiled.engine.accumulators import Bins, Fused, neutral, placed
from dask_tiled.engine.expressions import Step
from dask_tiled.engine.limits import NARROW_FRAMES
from dask_tiled.engine.vectors import Collect, Vectors
from dask_tiled.model.indexing import Array

NARROW = {np.dtype("u4"), np.dtype("i4")}
"""Accumulator dtypes of pixels of 2 bytes."""


@dataclass(frozen=True)
class Reduction:
    """A reduction of a chunk along some axes.

    Graphs contain it, and some schedulers turn named tuples in graphs into plain ones.
    """

    row: Aggregation
    axes: tuple[int, ...]
    dtype: np.dtype | None
    """Dtype of the result; None for that of the pixels."""
    bins: Bins = (10, None)
    dtype_of: Callable[[np.dtype], np.dtype] | None = None
    """Returns the result dtype for a pixel dtype."""
    merge: Callable[[Sequence[Array], tuple[int, ...]], Array] | None = None
    """``merge(results, axes)`` combines states of a user, which then lack the axes."""

    def of(self, pixel: np.dtype) -> Reduction:
        """Return the equivalent reduction of pixels of a dtype."""
        row = self.row.of_whole if pixel.kind in "biu" else None
        dtype = self.dtype if self.dtype_of is None else self.dtype_of(pixel)
        return replace(self, row=row or self.row, dtype=dtype)

    def casts_first(self, pixel: np.dtype) -> bool:
        """Return whether pixels of a dtype are cast before they are reduced."""
        wanted = self.dtype
        if wanted is None or self.row.of_truth:
            return False
        return wanted.kind in "biu" if pixel.kind in "fc" else wanted.kind == "b" != pixel.kind

    def steps(self, vectors: Vectors, last: Step) -> Collect:
        """Append the steps that accumulate the last step of a program."""
        return self.row.steps(vectors, last, self)

    @property
    def is_ufunc(self) -> bool:
        """Whether ``whole`` is the ``reduce`` of a ufunc, without a mask of NaN."""
        return self.row.whole is _reduce and not self.row.skips

    def whole(self, pixels: Array) -> Array:
        """Reduce a whole chunk with NumPy."""
        return self.row.whole(self, pixels)


def _accumulate(vectors: Vectors, last: Step, reduction: Reduction) -> Collect:
    row, dtype = reduction.row, reduction.dtype
    skips, counts, fused = row.skips, row.counts, row.fused
    return accumulators.accumulate(
        vectors, last, row.ufunc, dtype, fused=fused, skips=skips, counts=counts
    )


def _truths(vectors: Vectors, last: Step, reduction: Reduction) -> Collect:
    return accumulators.truths(vectors, last, reduction.row.ufunc)


def _reduce(reduction: Reduction, pixels: Array) -> Array:
    """Reduce pixels by the ufunc of a row."""
    row, axes, dtype, ufunc = reduction.row, reduction.axes, reduction.dtype, reduction.row.ufunc
    if not pixels.size:
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(pixels.shape))
        dtype = dtype or pixels.dtype
        return np.full(shape, neutral(ufunc, dtype), dtype)
    where = ~np.isnan(pixels) if row.skips else True
    dtype = None if row.of_truth else dtype
    return ufunc.reduce(pixels, axes, dtype, keepdims=True, where=where)


def _combine(reduction: Reduction, pixels: int, results: Sequence[Array]) -> Array:
    """Combine results by the ufunc of a row, in the requested dtype.

    Sums in 4 bytes keep their dtype if the sum of all ``pixels`` fits: NumPy adds them twice as
    fast.
    """
    ufunc, dtype = reduction.row.ufunc, reduction.dtype
    total, *others = results
    types = {x.dtype for x in results}
    if ufunc is np.add and pixels <= NARROW_FRAMES and types <= NARROW and len(types) == 1:
        dtype = None
    for number, block in enumerate(others):
        own = total if number and isinstance(total, np.ndarray) else None
        total = ufunc(total, block, out=own, dtype=dtype, casting="unsafe")
    return total if dtype is None else total.astype(dtype, copy=False)


def _as_found(found: Array, *_: object) -> Array:
    return found


def _mean(found: Array, pixels: float, _: float, out: Array | None) -> Array:
    return np.divide(found, pixels, out=out)


def _mean_of_numbers(found: Array, *_: object) -> Array:
    return found[..., 0] / found[..., 1]


def _count_and_sum(
    reduction: Reduction, pixels: Array
) -> tuple[Array, Array, Callable[[Array], Array]]:
    """Return the number of valid pixels, their sum, and the function that sums in the same way."""
    numbers = ~np.isnan(pixels) if reduction.row.skips else np.ones((1,) * pixels.ndim, bool)
    add = partial(np.sum, axis=reduction.axes, keepdims=True, where=numbers)
    return add(np.ones_like(pixels.real)), add(pixels), add


def _reduce_numbers(reduction: Reduction, pixels: Array) -> Array:
    numbers = ~np.isnan(pixels)
    with np.errstate(all="ignore"):
        exact = np.where(numbers, pixels, 0).astype(reduction.dtype)  # NaN has no integer value
        total, count = (x.sum(reduction.axes, exact.dtype, keepdims=True) for x in (exact, numbers))
        return np.stack([total, count], axis=-1)


def _reduce_moments(reduction: Reduction, pixels: Array) -> Array:
    exact = pixels.astype(np.result_type(pixels, np.float64))
    with np.errstate(all="ignore"):
        count, total, add = _count_and_sum(reduction, exact)
        mean = total.real / np.maximum(count, 1)  # dask expects a real mean
        squares = add(abs(exact - mean) ** 2)
    return np.stack([count, mean, squares], axis=-1)


def _moments(vectors: Vectors, last: Step, reduction: Reduction) -> Collect:
    row = reduction.row
    return accumulators.moments(vectors, last, skips=row.skips)


def _combine_moments(_: Reduction, __: int, results: Sequence[Array]) -> Array:
    """Combine number, mean and spread of several parts, after Chan, Golub and LeVeque."""
    n, mean, squares = np.moveaxis(results[0], -1, 0)
    with np.errstate(all="ignore"):  # infinite pixels have no spread
        for other in results[1:]:
            m, centre, spread = np.moveaxis(other, -1, 0)
            before, n = n, n + m
            step = (centre - mean) * (m / np.maximum(n, 1))
            squares = squares + spread + (centre - mean) * step * before
            mean = mean + step
    return np.stack([n, mean, squares], axis=-1)


def _variance(found: Array, _: float, ddof: float, __: Array | None) -> Array:
    return found[..., 2] / np.maximum(found[..., 0] - ddof, 0)


def _places(vectors: Vectors, last: Step, reduction: Reduction) -> Collect:
    row = reduction.row
    return accumulators.places(vectors, last, row.ufunc, reduction.axes)


def _find(function: Callable[..., Array], reduction: Reduction, pixels: Array) -> Array:
    """Return extreme pixels and their positions, found by a NumPy function along one axis."""
    axes, ufunc = reduction.axes, reduction.row.ufunc
    if not pixels.size:
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(pixels.shape))
        return placed(np.zeros(shape, pixels.dtype), np.zeros(shape, np.int64))
    lines = np.moveaxis(pixels, axes, range(-len(axes), 0))
    lines = lines.reshape(*lines.shape[: -len(axes)], -1)
    found = np.expand_dims(function(lines, -1, keepdims=True)[..., 0], axes)
    return placed(ufunc.reduce(pixels, axes, keepdims=True), found)


def _combine_places(reduction: Reduction, _: int, results: Sequence[Array]) -> Array:
    """Return the best of several pixels and its position; of equal pixels, the first."""
    from dask_tiled.kernels.primitives import is_better

    least = reduction.row.ufunc is np.minimum

    def better(these: Array, others: Array) -> Array:
        earlier = others["place"] < these["place"]
        wins = is_better.py_func(others["value"], these["value"], earlier, least=least)
        return np.where(wins, others, these)

    return reduce(better, results)


def _combine_states(reduction: Reduction, _: int, results: Sequence[Array]) -> Array:
    assert reduction.merge is not None  # noqa: S101 - for the type checker
    return np.expand_dims(reduction.merge(results, reduction.axes), reduction.axes)


def _place(found: Array, *_: object) -> Array:
    return found["place"].astype(np.int64, copy=False)


def _counts(vectors: Vectors, last: Step, reduction: Reduction) -> Collect:
    return accumulators.counts(vectors, last, reduction.bins)


def _histogram(reduction: Reduction, pixels: Array) -> Array:
    return np.histogram(pixels, *reduction.bins)[0]


class Packed(NamedTuple):
    """Kernels of packed pixels, 16 of 12 bits in 24 bytes, which are not unpacked into memory."""

    frames: str
    """Function of :mod:`dask_tiled.kernels.folds`, for results by frame."""
    pixels: str
    """Function of :mod:`dask_tiled.kernels.fused_folds`, for results by pixel."""


@dataclass(frozen=True, eq=False)
class Aggregation:
    """A row of the table. It pickles by name."""

    name: str
    """In upper case, the name of the row in this module."""
    ufunc: np.ufunc = np.add
    """Ufunc that combines two results."""
    before: np.ufunc | None = None
    """Ufunc applied first to real pixels, in double precision; the row reduces its results."""
    whole: Callable[[Reduction, Array], Array] = _reduce
    """Reduces a chunk with NumPy; reduced axes have length 1."""
    steps: Callable[[Vectors, Step, Reduction], Collect] = _accumulate
    """Appends the equivalent steps on vectors; returns the function that collects the result."""
    combine: Callable[[Reduction, int, Sequence[Array]], Array] | None = _combine
    """``combine(reduction, pixels, results)`` merges the results of chunks, which have ``pixels``
    pixels in all; None keeps them side by side."""
    finish: Callable[[Array, float, float, Array | None], Array] = _as_found
    """``finish(result, pixels, ddof, out)`` computes the final value from the merged result, in the
    memory ``out`` if it needs any."""
    of_whole: Aggregation | None = field(default=None, repr=False)
    """Row for pixels that are never NaN, if it differs."""
    fused: tuple[Fused, ...] = ()
    """Primitives of the last step and the reduction, which are faster than two."""
    packed: Packed | None = None
    """Kernels for integers, which are faster than unpacking."""
    skips: bool = False
    """Whether NaN is skipped."""
    counts: bool = False
    """Whether the result of a chunk includes the number of pixels, along a further axis."""
    of_truth: bool = False
    """Whether pixels count as booleans, whatever their dtype."""
    finds_place: bool = False
    """Whether the result of a chunk holds pixels and their positions."""
    has_own_type: bool = False
    """Whether the row fixes the dtype of a chunk's result."""

    def __reduce__(self) -> str:
        return self.name.upper()

    @property
    def is_ufunc(self) -> bool:
        """Whether the reduction only applies the ufunc to all pixels."""
        return self.steps is _accumulate and not self.skips


SUM = Aggregation(
    "sum",
    np.add,
    fused=(accumulators.dot, accumulators.roots, accumulators.selected),
    packed=Packed("sum_packed_frames", "add_packed"),
)
PROD = Aggregation("prod", np.multiply)
MIN = Aggregation("min", np.minimum)
MAX = Aggregation("max", np.maximum)
ANY = Aggregation("any", np.logical_or, steps=_truths, of_truth=True)
ALL = Aggregation("all", np.logical_and, steps=_truths, of_truth=True)
MEAN = replace(SUM, name="mean", finish=_mean)
NANSUM = replace(SUM, name="nansum", skips=True, of_whole=SUM)
NANPROD = replace(PROD, name="nanprod", skips=True, of_whole=PROD)
NANMIN = Aggregation("nanmin", np.fmin, of_whole=MIN)
NANMAX = Aggregation("nanmax", np.fmax, of_whole=MAX)
NANMEAN = replace(
    NANSUM,
    name="nanmean",
    whole=_reduce_numbers,
    finish=_mean_of_numbers,
    counts=True,
    of_whole=MEAN,
)
MOMENTS = Aggregation(
    "moments",
    whole=_reduce_moments,
    steps=_moments,
    combine=_combine_moments,
    finish=_variance,
    has_own_type=True,
)
"""Number, mean and spread along a further axis; finished as the variance."""
NANMOMENTS = replace(MOMENTS, name="nanmoments", skips=True, of_whole=MOMENTS)
ARGMIN = Aggregation(
    "argmin",
    np.minimum,
    whole=partial(_find, np.argmin),
    steps=_places,
    combine=_combine_places,
    finish=_place,
    finds_place=True,
    has_own_type=True,
)
"""Positions are counted in C order of the reduced axes, in the order in which they are passed."""
ARGMAX = replace(ARGMIN, name="argmax", ufunc=np.maximum, whole=partial(_find, np.argmax))
HISTOGRAM = Aggregation(
    "histogram", whole=_histogram, steps=_counts, combine=None, has_own_type=True
)
"""The reduction of all axes."""
STATES = Aggregation("states", combine=_combine_states, has_own_type=True)
"""States that functions of a user make of tiles, and combine."""
