"""What dask's functions of chunks do, in the words of the engine."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

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
from dask_tiled.array.tasks import ChunkJob
from dask_tiled.engine import reductions as table
from dask_tiled.engine.expressions import Call, Cast, Select, as_scalar, call, call_operator
from dask_tiled.engine.reductions import Aggregation, Reduction

OPERATORS = {
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"),
        *("lshift", "rshift", "lt", "le", "eq", "ne", "ge", "gt", "neg", "pos", "abs", "invert"),
    )
}

ELEMENTWISE = [np.real, np.imag, np.angle, np.isclose, reductions._sqrt]  # noqa: SLF001
"""Functions that make a pixel of a pixel, and that the engine has not."""


def is_of_numpy(function: Any) -> bool:
    """Return whether a function makes arrays of NumPy: those of others may make anything."""
    functions = [function.first, *function.funcs] if hasattr(function, "funcs") else [function]
    names = []
    for one in functions:
        inner = one.func if isinstance(one, partial) else one
        names.append(getattr(inner, "__module__", None) or type(inner).__module__)
    known = "numpy", "dask", "dask_tiled", "operator", "_operator", "builtins"
    other = "numpy.ma", "dask.array.ma"
    return all(x.split(".")[0] in known and not x.startswith(other) for x in names)


def is_elementwise(function: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function of chunks makes a pixel of one pixel of each operand."""
    if function is chunk.astype:
        return kwargs.keys() == {"astype_dtype"}
    if function is np.round:
        return kwargs.keys() <= {"decimals"}
    known = function in OPERATORS or function in MADE_OF
    return not kwargs and (known or isinstance(function, np.ufunc))


def node_of(function: Any, kwargs: Mapping[str, Any], operands: Sequence[Any]) -> Any:
    """Make the expression of such a function of others; None where the engine has none."""
    if isinstance(function, np.ufunc):
        return call(function, operands)
    if function is chunk.astype:
        dtype = np.dtype(kwargs["astype_dtype"])
        return operands[0] if operands[0].dtype == dtype else call(Cast(dtype), operands)
    if function in MADE_OF:
        make, count = MADE_OF[function]
        return make(*operands, **kwargs) if len(operands) == count else None
    return call_operator(function, operands)


def _rounded(pixels: Any, decimals: int = 0) -> Any:
    if pixels.dtype.kind in "iu" and decimals >= 0:
        return pixels
    if pixels.dtype.kind != "f" or abs(decimals) > np.finfo(np.float64).precision:
        return None
    if not decimals:
        return call(np.rint, [pixels])
    steps = [np.multiply, np.true_divide][:: 1 if decimals > 0 else -1]
    found: Any = pixels
    for ufunc in (steps[0], np.rint, steps[1]):
        found = found and call(ufunc, [found, 10.0 ** abs(int(decimals))][: ufunc.nin])
    return found


def _finite(pixels: Any) -> Any:
    if pixels.dtype.kind in "iu":
        return pixels
    if pixels.dtype.kind != "f":
        return None
    limits = np.finfo(pixels.dtype)
    numbers = _select(call(np.isnan, [pixels]), pixels.dtype.type(0), pixels)
    return _clip(numbers, limits.min, limits.max)


def _select(condition: Any, these: Any, others: Any) -> Call | None:
    values: list[Any] = [x if hasattr(x, "dtype") else as_scalar(x) for x in (these, others)]
    if any(x is None for x in values):
        return None
    dtype = np.result_type(*(x.dtype if hasattr(x, "dtype") else x for x in values))
    return Call(Select(), (condition, *values), dtype)


def _clip(pixels: Any, low: Any, high: Any) -> Any:
    found = pixels
    for ufunc, limit in ((np.maximum, low), (np.minimum, high)):
        found = found if limit is None or found is None else call(ufunc, [found, limit])
    return found


MADE_OF: dict[Any, tuple[Callable[..., Any], int]] = {
    np.where: (_select, 3),
    np.clip: (_clip, 3),
    np.round: (_rounded, 1),
    np.nan_to_num: (_finite, 1),
}
"""Functions that are made of ufuncs: how, and of so many operands."""


class Contraction(NamedTuple):
    """Sums of the pixels of each frame, weighted by an array beside that may have further axes."""

    weights: Any


class Step(NamedTuple):
    """What is made of the pixels of a chunk in the end: the first step of a reduction, or a job."""

    done: Reduction | ChunkJob | Contraction
    plain: Callable[..., Any]
    """The function of the layer, of the pixels of a chunk; of a job, and of the chunk's number; of
    a contraction, and of the chunk of the weights."""
    finish: Callable[..., Any] | None = None
    """``finish(reduced, shape, dtype)`` makes what dask's function returns: of a chunk of a shape,
    in a type. What makes bins takes memory for these, ``out``."""

    def raw(self) -> Step:
        """Leave the results of the engine as they are: sums of floats in double precision."""
        assert isinstance(self.done, Reduction)  # noqa: S101 - for the type checker
        dtype = self.done.dtype
        if dtype is not None and dtype.kind in "fc":
            dtype = np.result_type(dtype, np.float64)
        reduction = self.done._replace(dtype=dtype)
        return Step(reduction, reduction.whole, _added_up)


def _added_up(found: Any, _: tuple[int, ...], dtype: np.dtype) -> Any:
    """Leave whole numbers in the few bytes that they were added up in."""
    as_found = found.dtype.kind in "iu" and dtype.kind != "b"
    return found if as_found else found.astype(dtype, copy=False)


ROWS: dict[Any, Aggregation] = {
    chunk.sum: table.SUM,
    chunk.prod: table.PROD,
    chunk.nansum: table.NANSUM,
    chunk.nanprod: table.NANPROD,
    chunk.any: table.ANY,
    chunk.all: table.ALL,
    reductions.chunk_min: table.MIN,
    reductions.chunk_max: table.MAX,
    reductions._nanmin_skip: table.NANMIN,  # noqa: SLF001 - what dask calls
    reductions._nanmax_skip: table.NANMAX,  # noqa: SLF001
    reductions.mean_chunk: table.MEAN,
    reductions.moment_chunk: table.MOMENTS,
}
"""Rows of the table of reductions, by the functions of chunks that begin them."""
SKIPPING = {table.MEAN: table.NANMEAN, table.MOMENTS: table.NANMOMENTS}
"""Rows that leave out NaN, as dask's arguments say."""


def reduction_of(function: Any, kwargs: Mapping[str, Any]) -> Step | None:
    """Read a function of chunks as the first step of a reduction; None if it is none."""
    plain = partial(function, **kwargs)
    given = dict(plain.keywords)
    row = ROWS.get(plain.func)
    axes, dtype = given.pop("axis", None), given.pop("dtype", None)
    if row is None or plain.args or not given.pop("keepdims", None):
        return None
    complex_too = given.pop("implicit_complex_dtype", None)
    if complex_too or given.pop("order", 2) != 2 or not isinstance(axes, tuple):
        return None
    skipping = given.pop("sum", None), given.pop("numel", None)
    if skipping == (chunk.nansum, reductions.nannumel):
        row = SKIPPING.get(row)
    elif skipping != (None, None):
        row = None
    if row is None or given:
        return None
    dtype = bool if row.of_truth else dtype
    adds = row.ufunc in (np.add, np.multiply)
    is_complex = plain.func is reductions.moment_chunk and np.dtype(dtype).kind == "c"
    if (adds and dtype is None) or is_complex:
        return None
    finish: Any = {reductions.mean_chunk: partial(_mean, axes), reductions.moment_chunk: _moments}
    finish = finish.get(plain.func)
    return Step(Reduction(row, axes, None if dtype is None else np.dtype(dtype)), plain, finish)


FINDERS = {(chunk.max, chunk.argmax): table.ARGMAX, (chunk.min, chunk.argmin): table.ARGMIN}
BINNINGS: dict[Any, Aggregation] = {
    np.sum: table.SUM,
    np.prod: table.PROD,
    np.min: table.MIN,
    np.max: table.MAX,
    np.mean: table.MEAN,
    np.any: table.ANY,
    np.all: table.ALL,
}


class Coarsening(NamedTuple):
    """What dask passes to ``chunk.coarsen``, and the layer ``of`` which chunks are binned."""

    of: str
    reduction: Callable[..., Any]
    axes: dict[int, int]
    trim_excess: bool
    kwargs: Mapping[str, Any]


def coarsening_of(tasks: Mapping[Any, Any]) -> Coarsening | None:
    """Read tasks that bin chunk after chunk of a layer in the same way; None for others."""
    first = next(iter(tasks.values()))
    if not isinstance(first, tuple) or first[:2] != (apply, chunk.coarsen) or len(first) != 4:
        return None
    _, _, (reduction, (of, *_), axes, trim_excess), kwargs = first
    for (_, *place), task in tasks.items():
        if task != (apply, chunk.coarsen, [reduction, (of, *place), axes, trim_excess], kwargs):
            return None
    return Coarsening(of, reduction, axes, trim_excess, kwargs)


def reshaping_of(task: Any) -> tuple[Any, Any] | None:
    """Read the key of a chunk, and the shape that a task shows it in; None for other tasks."""
    if not isinstance(task, Task) or not isinstance(task.func, methodcaller):
        return None
    if task.func.method != "reshape" or len(task.args) != 2 or task.kwargs:
        return None
    chunk_of, shape = task.args
    return (chunk_of.key, shape) if isinstance(chunk_of, TaskRef) else None


def binning_of(function: Any, kwargs: Mapping[str, Any], ndim: int) -> Step | None:
    """Read what is made of every other of twice ``ndim`` axes; None if the engine cannot."""
    row = BINNINGS.get(function)
    if row is None or kwargs:
        return None
    axes = tuple(range(1, 2 * ndim, 2))
    plain = partial(function, axis=axes)
    reduction = Reduction(row, axes, None, dtype_of=partial(_dtype_of, function))
    return Step(reduction, plain, partial(_binned, row))


def _dtype_of(function: Callable[..., Any], pixel: np.dtype) -> np.dtype:
    dtype: np.dtype = function(np.ones(1, pixel)).dtype
    return dtype


def _binned(
    row: Aggregation, found: Any, shape: tuple[int, ...], dtype: Any, out: Any = None
) -> Any:
    found = found.reshape(shape[::2])
    if out is None:
        out = np.empty(found.shape, dtype)
    found = row.finish(found, math.prod(shape[1::2]), 0, out)
    if found is not out:
        np.copyto(out, found, casting="unsafe")
    return out


def histogram_of(bins: Any, ndim: int) -> Step:
    """Read how dask puts the pixels of a chunk into bins, perhaps by how often each occurs."""
    done = Reduction(table.HISTOGRAM, tuple(range(ndim)), None, bins)
    plain = partial(routines._block_hist, bins_range=bins)  # noqa: SLF001 - what dask calls
    return Step(done, plain, _counted)


def places_of(task: Any) -> Step | None:
    """Read a task of dask as the first step of what finds places; None if it is none."""
    if not isinstance(task, tuple) or not isinstance(task[0], partial) or len(task) != 4:
        return None
    row = FINDERS.get(task[0].args) if task[0].func is reductions.arg_chunk else None
    return Step(Reduction(row, task[2], None), task[0]) if row else None


def _counted(found: Any, *_: Any) -> Any:
    return found[np.newaxis]


def _mean(axes: tuple[int, ...], total: Any, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    total = total.astype(dtype, copy=False)
    if total.ndim > len(shape):
        return {"n": total[..., 1], "total": total[..., 0]}
    count = math.prod(shape[axis] for axis in axes)
    return {"n": np.full(total.shape, count, total.dtype), "total": total}


def _moments(moments: Any, *_: Any) -> dict[str, Any]:
    count, mean, squares = moments[..., 0], moments[..., 1], moments[..., 2:]
    with np.errstate(all="ignore"):
        return {"total": mean * count, "n": count.astype(np.int64), "M": squares}


def contracted(
    function: Any, kwargs: Mapping[str, Any], first: Sequence[Any], out: Sequence[Any]
) -> Sequence[Any] | None:
    """List the labels along which a function of two chunks adds up products; None for others.

    ``first`` are those of its first operand, ``out`` of its results, which have length 1 there.
    """
    if function is routines._tensordot and not kwargs["is_sparse"]:  # noqa: SLF001 - what dask calls
        return [first[axis] for axis in kwargs["axes"][0]]
    if function is einsumfuncs.chunk_einsum and kwargs["kernel_dtype"] is None:
        return out[len(out) - kwargs["ncontract_inds"] :]
    return out[-2:-1] if function is routines._matmul else None  # noqa: SLF001


def added(products: Any, gone: tuple[int, ...], order: tuple[int, ...]) -> Any:
    """Add up products over some axes, and show the others in their order."""
    return products.sum(gone, dtype=products.dtype, keepdims=True).transpose(order)


def transposed(found: Any, _: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...]) -> Any:
    """Show axes in another order; sums of whole numbers overflow, and those of truths are true."""
    found = found if dtype.kind in "fc" else found.astype(dtype, copy=False)
    return found.transpose(order)


def swapped(pixels: Any, weights: Any, function: Callable[..., Any]) -> Any:
    """Call a function of weights and pixels."""
    return function(weights, pixels)
