"""Last steps of a computation of pixels: first steps of reductions, jobs and contractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from dask_tiled.engine import reductions as table
from dask_tiled.engine.accumulators import Bins
from dask_tiled.engine.expressions import astype
from dask_tiled.engine.reductions import Aggregation, Reduction
from dask_tiled.model.indexing import Array
from dask_tiled.plans.operands import Beside
from dask_tiled.plans.tasks import ChunkJob, Function, Kwargs


class Contraction(NamedTuple):
    """Weighted sums over the pixels of each frame; the weights may have further axes."""

    weights: Beside
    axes: tuple[int, ...]
    """Axes of the pixels that are summed."""


class LastStep(NamedTuple):
    """The last operation on the pixels of a chunk: first step of a reduction, or a job."""

    done: Reduction | ChunkJob | Contraction
    plain: Function
    """The function of the layer, called with the pixels of a chunk; a job also gets the chunk's
    number, a contraction the chunk of weights."""
    as_dask: Function | None = None
    """``as_dask(reduced, shape, dtype)`` converts to the result of dask's function, for a chunk of
    a shape, in a dtype. Bins also accept memory, ``out``."""
    steps: LaterSteps | None = None
    """Later steps of a reduction."""
    keeps_integers: bool = False
    """Whether integers keep the dtype of their accumulator, which may be narrow."""

    def raw(self) -> LastStep:
        """Return the step with the engine's own results: sums of floats in double precision."""
        assert isinstance(self.done, Reduction)  # noqa: S101 - for the type checker
        return raw_step(self.done)


def raw_step(reduction: Reduction) -> LastStep:
    """Return the step of a reduction with the engine's own results."""
    dtype = reduction.dtype
    if dtype is not None and dtype.kind in "fc":
        dtype = np.result_type(dtype, np.float64)
    reduction = replace(reduction, dtype=dtype)
    return LastStep(reduction, reduction.whole, keeps_integers=True)


class LaterSteps(NamedTuple):
    """dask's steps of a reduction, after its chunk function."""

    row: Aggregation
    """Equivalent row of the engine."""
    last: Function
    between: Function | None = None
    """Combines results before the last step; None if the last function does."""
    skipping: Aggregation | None = None
    """Row that skips NaN, if dask's arguments ask for that."""
    as_dask: Function | None = None
    """``as_dask(reduced, shape, dtype)`` converts the engine's result for a chunk of a shape to
    that of the chunk function, in a dtype; None if both are equal."""


def applied_before(row: Aggregation) -> list[tuple[Function, Kwargs]]:
    """Return the functions that transform pixels before a row reduces them, in order."""
    to_double = {"astype_dtype": np.dtype(np.float64)}
    return [] if row.before is None else [(astype, to_double), (row.before, {})]


BINNINGS: dict[Function, Aggregation] = {
    np.sum: table.SUM,
    np.prod: table.PROD,
    np.min: table.MIN,
    np.max: table.MAX,
    np.mean: table.MEAN,
    np.any: table.ANY,
    np.all: table.ALL,
}


def binning_of(function: Function, kwargs: Kwargs, ndim: int) -> LastStep | None:
    """Match a function of every second of ``2 * ndim`` axes; None without an equivalent."""
    row = BINNINGS.get(function)
    if row is None or kwargs:
        return None
    axes = tuple(range(1, 2 * ndim, 2))
    plain = partial(function, axis=axes)
    reduction = Reduction(row, axes, None, dtype_of=partial(_dtype_of, function))
    return LastStep(reduction, plain, partial(_binned, row))


def _dtype_of(function: Function, pixel: np.dtype) -> np.dtype:
    return function(np.ones(1, pixel)).dtype


def _binned(
    row: Aggregation,
    result: Array,
    shape: tuple[int, ...],
    dtype: np.dtype,
    out: Array | None = None,
) -> Array:
    result = result.reshape(shape[::2])
    if out is None:
        out = np.empty(result.shape, dtype)
    result = row.finish(result, math.prod(shape[1::2]), 0, out)
    if result is not out:
        np.copyto(out, result, casting="unsafe")
    return out


def histogram_of(bins: Bins, ndim: int) -> LastStep:
    """Return the step of dask's histogram of a chunk; narrow integers are counted by value."""
    done = Reduction(table.HISTOGRAM, tuple(range(ndim)), None, bins)
    return LastStep(done, partial(_histogram, bins), _counted)


def histogram_over(bins: Bins, ndim: int) -> LastStep:
    """Return the step of a histogram of a chunk whose result keeps all axes, with length 1."""
    step = histogram_of(bins, ndim)
    return step._replace(plain=partial(_counted_whole, bins, ndim), as_dask=_counted_over)


def _histogram(bins: Bins, pixels: Array) -> Array:
    return np.histogram(pixels, *bins)[0][np.newaxis]


def _counted(found: Array, *_: object) -> Array:
    return found[np.newaxis]


def _counted_over(found: Array, shape: tuple[int, ...], _: object) -> Array:
    return found.reshape((1,) * len(shape) + found.shape)


def _counted_whole(bins: Bins, ndim: int, pixels: Array) -> Array:
    return _counted_over(np.histogram(pixels, *bins)[0], (1,) * ndim, None)


def added(products: Array, gone: tuple[int, ...], order: tuple[int, ...]) -> Array:
    """Sum products over some axes, and transpose the result."""
    return products.sum(gone, dtype=products.dtype, keepdims=True).transpose(order)


def transposed(found: Array, _: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...]) -> Array:
    """Transpose the result; integer sums wrap around, and sums of booleans are booleans."""
    found = found if dtype.kind in "fc" else found.astype(dtype, copy=False)
    return found.transpose(order)


def swapped(pixels: Array, weights: Array, function: Callable[[Array, Array], Array]) -> Array:
    """Call a function with weights and pixels exchanged."""
    return function(weights, pixels)
