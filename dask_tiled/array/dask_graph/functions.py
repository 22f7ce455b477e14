"""Translation of dask's chunk functions to operations of the engine."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.array.dask_graph.names import (
    Task,
    TaskRef,
    apply,
    chunk,
    einsumfuncs,
    methodcaller,
    reductions,
    routines,
)
from dask_tiled.array.operands import Beside
from dask_tiled.array.tasks import ChunkJob, Function, Key, Kwargs, Label, Tasks
from dask_tiled.engine import reductions as table
from dask_tiled.engine.accumulators import Bins
from dask_tiled.engine.expressions import Call, Cast, Pixels, Select, call, call_operator
from dask_tiled.engine.reductions import Aggregation, Reduction
from dask_tiled.model.indexing import Array

OPERATORS = {
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"),
        *("lshift", "rshift", "lt", "le", "eq", "ne", "ge", "gt", "neg", "pos", "abs", "invert"),
    )
}

ELEMENTWISE = [np.real, np.imag, np.angle, np.isclose, reductions._sqrt]  # noqa: SLF001
"""Elementwise functions without a kernel in the engine."""


def is_of_numpy(function: Any) -> bool:
    """Return whether a function returns NumPy arrays; those of other libraries may not."""
    functions = [function.first, *function.funcs] if hasattr(function, "funcs") else [function]
    names = []
    for one in functions:
        inner = one.func if isinstance(one, partial) else one
        names.append(getattr(inner, "__module__", None) or type(inner).__module__)
    known = "numpy", "dask", "dask_tiled", "operator", "_operator", "builtins"
    other = "numpy.ma", "dask.array.ma"
    return all(x.split(".")[0] in known and not x.startswith(other) for x in names)


def is_elementwise(function: Function, kwargs: Kwargs) -> bool:
    """Return whether a chunk function is elementwise."""
    if function is chunk.astype:
        return kwargs.keys() == {"astype_dtype"}
    if function is np.round:
        return kwargs.keys() <= {"decimals"}
    known = function in OPERATORS or function in MADE_OF
    return not kwargs and (known or isinstance(function, np.ufunc))


def node_of(function: Function, kwargs: Kwargs, operands: Sequence[object]) -> Pixels | None:
    """Build the expression of an elementwise function; None if the engine has none."""
    if isinstance(function, np.ufunc):
        return call(function, operands)
    if function in MADE_OF:
        make, count = MADE_OF[function]
        return make(*operands, **kwargs) if len(operands) == count else None
    return call_operator(function, operands)


def _converted(pixels: Pixels, astype_dtype: npt.DTypeLike) -> Pixels | None:
    dtype = np.dtype(astype_dtype)
    return pixels if pixels.dtype == dtype else call(Cast(dtype), [pixels])


def _rounded(pixels: Pixels, decimals: int = 0) -> Pixels | None:
    is_whole = pixels.dtype.kind in "iu"
    if is_whole and decimals >= 0:
        return pixels
    known = is_whole or pixels.dtype.kind == "f"
    if not known or abs(decimals) > np.finfo(np.float64).precision:
        return None
    if not decimals:
        return call(np.rint, [pixels])
    steps = [np.multiply, np.true_divide][:: 1 if decimals > 0 else -1]
    found: Pixels | None = pixels
    for ufunc in (steps[0], np.rint, steps[1]):
        found = found and call(ufunc, [found, 10.0 ** abs(int(decimals))][: ufunc.nin])
    return found and _converted(found, pixels.dtype)


def _finite(pixels: Pixels) -> Pixels | None:
    if pixels.dtype.kind in "iu":
        return pixels
    if pixels.dtype.kind != "f":
        return None
    limits = np.finfo(pixels.dtype)
    numbers = _select(call(np.isnan, [pixels]), pixels.dtype.type(0), pixels)
    return _clip(numbers, limits.min, limits.max)


def _select(*operands: object) -> Call | None:
    return call(Select(), operands)


def _clip(pixels: Pixels | None, low: object, high: object) -> Pixels | None:
    found = pixels
    for ufunc, limit in ((np.maximum, low), (np.minimum, high)):
        found = found if limit is None or found is None else call(ufunc, [found, limit])
    return found


MADE_OF: dict[Function, tuple[Callable[..., Pixels | None], int]] = {
    chunk.astype: (_converted, 1),
    np.where: (_select, 3),
    np.clip: (_clip, 3),
    np.round: (_rounded, 1),
    np.nan_to_num: (_finite, 1),
}
"""Functions composed of ufuncs: how to build them, and their number of operands."""


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
    steps: Steps | None = None
    """Later steps of a reduction."""

    def raw(self) -> LastStep:
        """Return the step with the engine's own results: sums of floats in double precision."""
        assert isinstance(self.done, Reduction)  # noqa: S101 - for the type checker
        dtype = self.done.dtype
        if dtype is not None and dtype.kind in "fc":
            dtype = np.result_type(dtype, np.float64)
        reduction = replace(self.done, dtype=dtype)
        return LastStep(reduction, reduction.whole, _added_up)


def _added_up(found: Array, _: tuple[int, ...], dtype: np.dtype) -> Array:
    """Keep integers in their narrow accumulator dtype."""
    as_found = found.dtype.kind in "iu" and dtype.kind != "b"
    return found if as_found else found.astype(dtype, copy=False)


class Steps(NamedTuple):
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


def _count_and_total(total: Array, shape: tuple[int, ...], dtype: np.dtype) -> dict[str, Array]:
    total = total.astype(dtype, copy=False)
    if total.ndim > len(shape):
        return {"n": total[..., 1], "total": total[..., 0]}
    count = math.prod(n for n, left in zip(shape, total.shape, strict=True) if n != left)
    return {"n": np.full(total.shape, count, total.dtype), "total": total}


def _moments(moments: Array, *_: object) -> dict[str, Array]:
    count, mean, squares = moments[..., 0], moments[..., 1], moments[..., 2:]
    with np.errstate(all="ignore"):
        return {"total": mean * count, "n": count.astype(np.int64), "M": squares}


NANMIN, NANMAX = reductions._nanmin_skip, reductions._nanmax_skip  # noqa: SLF001 - called by dask
REDUCTIONS: dict[Function, Steps] = {
    chunk.sum: Steps(table.SUM, np.sum),
    chunk.prod: Steps(table.PROD, np.prod),
    chunk.nansum: Steps(table.NANSUM, np.sum),
    chunk.nanprod: Steps(table.NANPROD, np.prod),
    chunk.any: Steps(table.ANY, np.any),
    chunk.all: Steps(table.ALL, np.all),
    reductions.chunk_min: Steps(table.MIN, np.min, reductions.chunk_min),
    reductions.chunk_max: Steps(table.MAX, np.max, reductions.chunk_max),
    NANMIN: Steps(table.NANMIN, NANMIN),
    NANMAX: Steps(table.NANMAX, NANMAX),
    reductions.mean_chunk: Steps(
        table.MEAN, reductions.mean_agg, reductions.mean_combine, table.NANMEAN, _count_and_total
    ),
    reductions.moment_chunk: Steps(
        table.MOMENTS, reductions.moment_agg, reductions.moment_combine, table.NANMOMENTS, _moments
    ),
}
"""Steps by chunk function."""
FINDERS = {
    (chunk.max, chunk.argmax): Steps(table.ARGMAX, reductions.arg_agg, reductions.arg_combine),
    (chunk.min, chunk.argmin): Steps(table.ARGMIN, reductions.arg_agg, reductions.arg_combine),
}
"""Steps of argmin and argmax, by the arguments of dask's ``arg_chunk``."""


def reduction_of(function: Function, kwargs: Kwargs, pixel: np.dtype | None) -> LastStep | None:
    """Match the first step of a reduction; None for another chunk function."""
    plain = partial(function, **kwargs)
    given = dict(plain.keywords)
    axes, dtype = given.pop("axis", None), given.pop("dtype", None)
    steps = REDUCTIONS.get(plain.func)
    if steps is None or plain.args or not given.pop("keepdims", None):
        return None
    complex_too = given.pop("implicit_complex_dtype", None)
    if complex_too or given.pop("order", 2) != 2 or not isinstance(axes, tuple):
        return None
    row: Aggregation | None = steps.row
    skipping = given.pop("sum", None), given.pop("numel", None)
    if skipping == (chunk.nansum, reductions.nannumel):
        row = steps.skipping
    elif skipping != (None, None):
        row = None
    if row is None or given or len({*axes}) < len(axes):  # NumPy refuses repeated axes
        return None
    dtype = np.dtype(bool) if row.of_truth else dtype and np.dtype(dtype)
    if row.before is not None:
        if pixel is None or pixel.kind not in "biuf":
            return None
        dtype = np.dtype(np.float64)
    adds = row.ufunc in (np.add, np.multiply)
    # Sums of means in integers wrap around: dask adds them.
    kinds = "fc" if plain.func is reductions.mean_chunk else "biufc"
    other = dtype is not None and (dtype.kind not in kinds or not dtype.isnative)
    if other or (adds and dtype is None) or (row.has_own_type and dtype.kind == "c"):
        return None
    step = LastStep(Reduction(row, axes, dtype), plain, steps.as_dask, steps)
    return step if row.before is None else step._replace(plain=partial(_reduced, step))


def _reduced(step: LastStep, pixels: Array) -> Array | dict[str, Array]:
    """Return the result of dask's function, applied to transformed pixels."""
    assert isinstance(step.done, Reduction)  # noqa: S101 - for the type checker
    found, dtype = step.done.whole(pixels), step.done.dtype or pixels.dtype
    return step.as_dask(found, pixels.shape, dtype) if step.as_dask else found


BINNINGS: dict[Function, Aggregation] = {
    np.sum: table.SUM,
    np.prod: table.PROD,
    np.min: table.MIN,
    np.max: table.MAX,
    np.mean: table.MEAN,
    np.any: table.ANY,
    np.all: table.ALL,
}


class Coarsening(NamedTuple):
    """Arguments of ``chunk.coarsen``, and the layer ``of`` the binned chunks."""

    of: str
    reduction: Function
    axes: dict[int, int]
    trim_excess: bool
    kwargs: Kwargs


def coarsening_of(tasks: Tasks) -> Coarsening | None:
    """Match tasks that bin all chunks of a layer in the same way; None for others."""
    first = next(iter(tasks.values()))
    if not isinstance(first, tuple) or first[:2] != (apply, chunk.coarsen) or len(first) != 4:
        return None
    _, _, (reduction, (of, *_), axes, trim_excess), kwargs = first
    for (_, *place), task in tasks.items():
        if task != (apply, chunk.coarsen, [reduction, (of, *place), axes, trim_excess], kwargs):
            return None
    return Coarsening(of, reduction, axes, trim_excess, kwargs)


def reshaping_of(task: object) -> tuple[Key, tuple[int, ...]] | None:
    """Match a task that reshapes a chunk: return its key and shape, or None."""
    if not isinstance(task, Task) or not isinstance(task.func, methodcaller):
        return None
    if task.func.method != "reshape" or len(task.args) != 2 or task.kwargs:
        return None
    chunk_of, shape = task.args
    return (chunk_of.key, shape) if isinstance(chunk_of, TaskRef) else None


def applied_before(row: Aggregation) -> list[tuple[Function, Kwargs]]:
    """Return the functions that transform pixels before a row reduces them, in order."""
    to_double = {"astype_dtype": np.dtype(np.float64)}
    return [] if row.before is None else [(chunk.astype, to_double), (row.before, {})]


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
    found: Array,
    shape: tuple[int, ...],
    dtype: np.dtype,
    out: Array | None = None,
) -> Array:
    found = found.reshape(shape[::2])
    if out is None:
        out = np.empty(found.shape, dtype)
    found = row.finish(found, math.prod(shape[1::2]), 0, out)
    if found is not out:
        np.copyto(out, found, casting="unsafe")
    return out


def histogram_of(bins: Bins, ndim: int) -> LastStep:
    """Return the step of dask's histogram of a chunk; narrow integers are counted by value."""
    done = Reduction(table.HISTOGRAM, tuple(range(ndim)), None, bins)
    plain = partial(routines._block_hist, bins_range=bins)  # noqa: SLF001 - called by dask
    return LastStep(done, plain, _counted)


def histogram_over(bins: Bins, ndim: int) -> LastStep:
    """Return the step of a histogram of a chunk whose result keeps all axes, with length 1."""
    step = histogram_of(bins, ndim)
    return step._replace(plain=partial(_counted_whole, bins, ndim), as_dask=_counted_over)


def places_of(task: object) -> LastStep | None:
    """Match the first step of argmin or argmax; None for another task."""
    if not isinstance(task, tuple) or not isinstance(task[0], partial) or len(task) != 4:
        return None
    steps = FINDERS.get(task[0].args) if task[0].func is reductions.arg_chunk else None
    return LastStep(Reduction(steps.row, task[2], None), task[0], None, steps) if steps else None


def _counted(found: Array, *_: object) -> Array:
    return found[np.newaxis]


def _counted_over(found: Array, shape: tuple[int, ...], _: object) -> Array:
    return found.reshape((1,) * len(shape) + found.shape)


def _counted_whole(bins: Bins, ndim: int, pixels: Array) -> Array:
    return _counted_over(np.histogram(pixels, *bins)[0], (1,) * ndim, None)


def contracted_labels(
    function: Function, kwargs: Kwargs, first: Sequence[Label], out: Sequence[Label]
) -> Sequence[Label] | None:
    """Return the labels along which a function of two chunks sums products; None for others.

    ``first`` are the labels of its first operand; ``out`` are those of its results, in which these
    axes have length 1.
    """
    if function is routines._tensordot and not kwargs["is_sparse"]:  # noqa: SLF001 - called by dask
        return [first[axis] for axis in kwargs["axes"][0]]
    if function is einsumfuncs.chunk_einsum and kwargs["kernel_dtype"] is None:
        return out[len(out) - kwargs["ncontract_inds"] :]
    return out[-2:-1] if function is routines._matmul else None  # noqa: SLF001


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
