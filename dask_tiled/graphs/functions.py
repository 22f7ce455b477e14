"""Translation of dask's chunk functions to operations of the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.engine import reductions as table
from dask_tiled.engine.expressions import OPERATORS
from dask_tiled.engine.reductions import Aggregation, Reduction
from dask_tiled.graphs.names import (
    Task,
    TaskRef,
    apply,
    chunk,
    einsumfuncs,
    methodcaller,
    reductions,
    routines,
)
from dask_tiled.model.indexing import Array
from dask_tiled.plans.last_steps import LastStep, LaterSteps
from dask_tiled.plans.tasks import Function, Key, Kwargs, Label, Tasks

ELEMENTWISE_OF_DASK = [np.real, np.imag, np.angle, np.isclose, reductions._sqrt]  # noqa: SLF001
"""Elementwise functions that the engine lacks: dask computes them, with the axes of the pixels."""

KNOWN = {
    *("sum", "prod", "any", "all", "min", "max", "chunk_min", "chunk_max"),
    *("cumsum", "cumsum_merge", "cumprod", "cumprod_merge", "full_like"),
    *("astype", "where", "clip", "round", "around", "sqrt", "imag", "real"),
    *("stack", "concatenate", "concatenate2", "concatenate3", "concatenate_axes"),
    *("concatenate_shaped", "finalize", "arange", "broadcast_trick_inner"),
    *(function.__name__.strip("_") for function in OPERATORS),
}
"""Functions of NumPy and dask that need no memory besides their results, as tests check."""


def is_known(function: Any) -> bool:
    """Return whether a function, like ufuncs, needs no memory besides its result."""
    inner = function.func if type(function) is partial else function
    name = str(getattr(inner, "method", getattr(inner, "__name__", ""))).strip("_")
    return isinstance(inner, np.ufunc) or (name in KNOWN and is_of_numpy(inner))


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
REDUCTIONS: dict[Function, LaterSteps] = {
    chunk.sum: LaterSteps(table.SUM, np.sum),
    chunk.prod: LaterSteps(table.PROD, np.prod),
    chunk.nansum: LaterSteps(table.NANSUM, np.sum),
    chunk.nanprod: LaterSteps(table.NANPROD, np.prod),
    chunk.any: LaterSteps(table.ANY, np.any),
    chunk.all: LaterSteps(table.ALL, np.all),
    reductions.chunk_min: LaterSteps(table.MIN, np.min, reductions.chunk_min),
    reductions.chunk_max: LaterSteps(table.MAX, np.max, reductions.chunk_max),
    NANMIN: LaterSteps(table.NANMIN, NANMIN),
    NANMAX: LaterSteps(table.NANMAX, NANMAX),
    reductions.mean_chunk: LaterSteps(
        table.MEAN, reductions.mean_agg, reductions.mean_combine, table.NANMEAN, _count_and_total
    ),
    reductions.moment_chunk: LaterSteps(
        table.MOMENTS, reductions.moment_agg, reductions.moment_combine, table.NANMOMENTS, _moments
    ),
}
"""LaterSteps by chunk function."""
FINDERS = {
    (chunk.max, chunk.argmax): LaterSteps(table.ARGMAX, reductions.arg_agg, reductions.arg_combine),
    (chunk.min, chunk.argmin): LaterSteps(table.ARGMIN, reductions.arg_agg, reductions.arg_combine),
}
"""LaterSteps of argmin and argmax, by the arguments of dask's ``arg_chunk``."""


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


def places_of(task: object) -> LastStep | None:
    """Match the first step of argmin or argmax; None for another task."""
    if not isinstance(task, tuple) or not isinstance(task[0], partial) or len(task) != 4:
        return None
    steps = FINDERS.get(task[0].args) if task[0].func is reductions.arg_chunk else None
    return LastStep(Reduction(steps.row, task[2], None), task[0], None, steps) if steps else None


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
