"""Reductions that run without a graph of dask, if nothing observes it."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable
from contextvars import Context
from functools import cache, partial, wraps
from inspect import signature
from types import MethodType
from typing import Any

import dask.array as da
import numpy as np
from dask import config
from dask.base import get_annotations
from numpy.lib.array_utils import normalize_axis_tuple

from dask_tiled.array.dask_graph.aggregation import Ending, finished, reduced
from dask_tiled.array.dask_graph.functions import LastStep, reduction_of
from dask_tiled.array.dask_graph.names import chunk, reductions
from dask_tiled.array.dask_graph.results import concatenated
from dask_tiled.array.dask_graph.schedulers import Get
from dask_tiled.array.deferred import LateArray
from dask_tiled.array.lowering import known_pixels
from dask_tiled.array.plan import in_fewer_chunks
from dask_tiled.array.recipes import Recipes
from dask_tiled.array.tasks import Function, Kwargs
from dask_tiled.array.tree import Read
from dask_tiled.engine.reductions import Reduction

FIRST_STEPS: dict[str, Function] = {
    "max": reductions.chunk_max,
    "mean": reductions.mean_chunk,
    "min": reductions.chunk_min,
    "sum": chunk.sum,
}
"""First steps of dask's reductions, by method name."""
METHODS = {getattr(np, name): name for name in FIRST_STEPS}
"""Method names, by NumPy function."""
ADDS = {"mean", "sum"}
"""Methods that accept a dtype."""
CHUNKS, RESULT, WHOLE = "chunks", "result", "whole"
"""Names of the results of chunks, of the chunks of the result, and of the result."""


class Reducing:
    """Descriptor of a reducing method whose result builds a graph only if something observes it."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name
        self._method = method = getattr(da.Array, name)
        self._signature = signature(method)

        @wraps(method)
        def reduce(arr: Any, *args: Any, **kwargs: Any) -> da.Array:
            found = self._reduced(arr, args, kwargs)
            made: da.Array = method(arr, *args, **kwargs) if found is None else found
            return made

        self._reduce = reduce

    def __get__(self, arr: Any, _: type | None = None) -> Callable[..., da.Array]:
        return self._reduce if arr is None else MethodType(self._reduce, arr)

    def _reduced(self, arr: Any, args: Any, kwargs: Any) -> da.Array | None:
        """Return the reduction if it needs no graph of dask; None to leave it to dask."""
        observed = get_annotations() or len(config.get("array_plugins", ())) > 1  # need a graph
        if arr.description is None or observed or not all(map(all, arr.chunks)):
            return None
        try:
            given = self._signature.bind(arr, *args, **kwargs).arguments
            axes = given.get("axis")
            if not _is_plain(axes) or type(given.get("keepdims", False)) is not bool:
                return None
            axes = normalize_axis_tuple(range(arr.ndim) if axes is None else axes, arr.ndim)
            dtype = _dtype_of(self._name, arr.dtype, given.get("dtype"))
        except (TypeError, ValueError):  # dask reports the error
            return None
        if not axes or dtype is None or {"split_every", "out"} & given.keys():
            return None
        first, asked = FIRST_STEPS[self._name], {"axis": axes, "keepdims": True}
        typed = {"dtype": dtype} if self._name in ADDS else {}
        step = reduction_of(first, asked | typed, arr.dtype)
        if step is None:
            return None
        step = step.raw()
        assert isinstance(step.done, Reduction)  # noqa: S101 - for the type checker
        ending = Ending(step.done, bool(given.get("keepdims")), typed.get("dtype"), 0)
        kept = [k for k in range(arr.ndim) if ending.keepdims or k not in axes]
        chunks = tuple((1,) if k in axes else arr.chunks[k] for k in kept)
        of: Kwargs = {"name": CHUNKS, "chunks": arr.chunks, "dtype": arr.dtype, "annotations": {}}
        source, grid = arr._source, arr._grid  # noqa: SLF001 - of this package
        read = Read(**of, source=source, grid=grid, description=None)
        copy, values = arr.__reduce__()  # assignment to the array must not change the result
        made = lambda: self._method(copy(*values), *args, **kwargs)  # noqa: E731
        make = lambda: Context().run(made)  # noqa: E731 - without annotations that came later
        at_once = partial(_reduced, read, step, ending)
        return LateArray(chunks, ending.dtype or arr.dtype, make, at_once)


def _is_plain(axes: Any) -> bool:
    """Return whether axes are in a form that dask accepts: an integer, several, or None for all."""
    some = axes if isinstance(axes, (tuple, list)) else () if axes is None else (axes,)
    return all(isinstance(axis, (int, np.integer)) and type(axis) is not bool for axis in some)


def _reduced(read: Read, step: LastStep, ending: Ending, get: Get) -> Any:
    """Reduce an array, in the chunks that the graph would use."""
    part = known_pixels(read).but(step=step)
    shape = ending.chunks(part.chunks)
    if math.prod(map(len, part.chunks)) > 1:
        (part,) = in_fewer_chunks({CHUNKS: part}, {CHUNKS} if shape else ()).values()
    recipes, chunks = Recipes([part.recipe], part.grid), part.chunks
    if math.prod(map(len, chunks)) == 1:
        found: Any
        (found,) = recipes.make((0,) * len(chunks), None)
        pixels = math.prod(part.grid.shape[axis] for axis in ending.reduction.axes)
        return finished(ending, pixels, found)
    made = reduced(CHUNKS, recipes, chunks)
    ends = [*ending.tasks(RESULT, CHUNKS, chunks, made)]
    if not shape:
        return get(made | {task.key: task for task in ends}, (RESULT,))
    layers = concatenated(WHOLE, ends, RESULT, ending.chunks(chunks))
    return get(ChainMap(made, *layers.values()), WHOLE)


@cache
def _dtype_of(name: str, pixel: np.dtype, asked: Any) -> np.dtype | None:
    """Return the dtype that dask chooses for a reduction; None for pixels that are no numbers."""
    if pixel.kind not in "biufc":
        return None
    if asked is not None:
        return np.dtype(asked)
    found: np.dtype = getattr(np.zeros(1, pixel), name)().dtype
    return found
