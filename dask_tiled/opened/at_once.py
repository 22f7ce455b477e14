"""Arrays whose graphs of dask are built on demand, and reductions that run without one."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable
from contextvars import Context
from functools import cache, partial, wraps
from inspect import signature
from types import MethodType
from typing import Any, Self

import dask.array as da
import numpy as np
from dask import config, threaded
from dask.base import get_annotations
from dask.callbacks import Callback
from dask.highlevelgraph import HighLevelGraph
from numpy.lib.array_utils import normalize_axis_tuple

from dask_tiled.engine.reductions import MAX, MEAN, MIN, SUM, Reduction
from dask_tiled.graphs.aggregation import Ending, finished, reduced
from dask_tiled.graphs.results import concatenated
from dask_tiled.graphs.rewriting import optimize
from dask_tiled.graphs.schedulers import Get, get_here
from dask_tiled.model.indexing import Array
from dask_tiled.plans.last_steps import Contraction, LastStep, raw_step
from dask_tiled.plans.lowering import Known, known_pixels
from dask_tiled.plans.operands import Beside
from dask_tiled.plans.plan import in_fewer_chunks
from dask_tiled.plans.recipes import Recipes
from dask_tiled.plans.tasks import Kwargs
from dask_tiled.plans.tree import Read
from dask_tiled.tiling.bases import Chunks

ROWS = {"max": MAX, "mean": MEAN, "min": MIN, "sum": SUM}
"""Reductions, by method name."""
METHODS = {getattr(np, name): name for name in ROWS}
"""Method names, by NumPy function."""
ADDS = {"mean": "fc", "sum": "biufc"}
"""Methods that accept a dtype, and its kinds: dask adds means of integers, which wrap around."""
CHUNKS, RESULT, WEIGHTS, WHOLE = "chunks", "result", "weights", "whole"
"""Names of the results of chunks, of the chunks of the result, of weights, and of the result."""


def unobserved(scheduler: Any = None, **options: Any) -> Get | None:
    """Return the scheduler of ``compute(**options)`` if nothing observes the graph.

    None with callbacks, and where tasks do not run in threads of this process.
    """
    if Callback.active or options.keys() - {"num_workers", "pool"}:
        return None
    is_ours = config.get("array_optimize", None) is optimize
    get = get_here(scheduler) if is_ours else None
    return partial(get, **options) if get is threaded.get else get


class LateArray(da.Array):
    """A dask array whose name and graph are built on demand, as that is slow.

    Opened arrays are a subclass: dask combines two classes only if one inherits from the other.
    """

    __slots__ = ("_at_once", "_graph", "_is_named", "_make")

    _graph: HighLevelGraph | None
    _is_named: bool
    _at_once: Callable[[Get], Any] | None
    """Computes the array; None after items have been assigned to it."""
    _make: Callable[[], da.Array]
    """Builds the dask array, once."""

    def __new__(  # noqa: D102 - as in dask's class
        cls,
        chunks: Chunks,
        dtype: np.dtype,
        make: Callable[[], da.Array],
        at_once: Callable[[Get], Any],
    ) -> Self:
        self = object.__new__(cls)
        self._begin()
        self._make, self._at_once = cache(make), at_once
        self._chunks, self._meta = chunks, np.empty((0,) * len(chunks), dtype)
        return self

    def _begin(self) -> None:
        self._graph = self._cached_keys = self._at_once = None
        self._is_named = False

    @property  # type: ignore[misc]
    def name(self) -> str:
        """Name of the array; arrays with equal names are equal."""
        if not self._is_named:
            self._name = self._make_name()
        name: str = super().name
        return name

    @property
    def _name(self) -> str:
        return self.name

    @_name.setter
    def _name(self, name: str) -> None:
        self._is_named = True
        vars(da.Array)["_name"].fset(self, name)

    @property
    def dask(self) -> HighLevelGraph:
        """Graph of the array."""
        if self._graph is None:
            self._graph = self._make_graph()
        return self._graph

    @dask.setter
    def dask(self, graph: HighLevelGraph) -> None:
        # dask sets a graph when items are assigned: then this becomes a plain array.
        self._graph = graph
        self._become_plain()

    def _make_name(self) -> str:
        name: str = self._make().name
        return name

    def _make_graph(self) -> HighLevelGraph:
        return self._make().dask

    def _become_plain(self) -> None:
        self._at_once = None

    def compute(self, **options: Any) -> Any:
        """Compute the array as dask does, without a graph if nothing would observe it."""
        if self._at_once is not None and (get := unobserved(**options)) is not None:
            return self._at_once(get)
        return super().compute(**options)  # type: ignore[no-untyped-call]

    def __reduce__(self) -> tuple[Any, ...]:
        arr: Any = super() if self._at_once is None else self._make()
        reduced: tuple[Any, ...] = arr.__reduce__()
        return reduced


class Reducing:
    """Descriptor of a reducing method whose result builds a graph only if something observes it."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name
        self._method = method = getattr(da.Array, name)
        self._signature = signature(method)

        @wraps(method)
        def reduce(arr: Any, *args: Any, **kwargs: Any) -> da.Array:
            result = self._reduced(arr, args, kwargs)
            made: da.Array = method(arr, *args, **kwargs) if result is None else result
            return made

        self._reduce = reduce

    def __get__(self, arr: Any, _: type | None = None) -> Callable[..., da.Array]:
        return self._reduce if arr is None else MethodType(self._reduce, arr)

    def _reduced(self, arr: Any, args: Any, kwargs: Any) -> da.Array | None:
        """Return the reduction if it needs no graph of dask; None to leave it to dask."""
        if _needs_graph(arr):
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
        typed = dtype if self._name in ADDS else None
        if typed is not None and (typed.kind not in ADDS[self._name] or not typed.isnative):
            return None
        step = _step_of(self._name, axes, typed)
        assert isinstance(step.done, Reduction)  # noqa: S101 - for the type checker
        ending = Ending(step.done, bool(given.get("keepdims")), typed, 0)
        chunks, dtype = ending.chunks(arr.chunks), ending.dtype or arr.dtype
        make = lambda arr: self._method(arr, *args, **kwargs)  # noqa: E731
        return _late(arr, chunks, dtype, make, partial(_reduced, _pixels(arr), step, ending, ()))


def weighted(
    arr: Any,
    weights: Array,
    make: Callable[[da.Array], da.Array],
    last: Callable[[Array], Array] = np.asarray,
) -> da.Array:
    """Return ``last(sums)`` for the sums of all frames weighted by n masks, in the masks' dtype.

    ``make(arr)`` builds the same with a graph of dask, and is called if a graph is needed.
    """
    nav_ndim = arr.ndim - weights.ndim + 1
    sig = tuple(range(nav_ndim, arr.ndim))
    whole = bool(sig) and all(len(arr.chunks[axis]) == 1 for axis in sig)
    if not whole or _needs_graph(arr) or arr.description.nav_ndim != nav_ndim:
        return make(arr)
    pixels, ndim = _pixels(arr), weights.ndim
    beside = Beside(WEIGHTS, ((), *map(pixels.recipe.view.spans, sig)), (1,) * ndim, (None,) * ndim)
    step = LastStep(Contraction(beside, sig), partial(_products, axes=sig))
    ending = Ending(Reduction(SUM, sig, None), keepdims=False, dtype=weights.dtype, ddof=0)
    sums = partial(_reduced, pixels, step, ending, (weights,))
    meta = last(np.empty((0,) * nav_ndim + weights.shape[:1], weights.dtype))
    chunks = (*arr.chunks[:nav_ndim], meta.shape[-1:])
    return _late(arr, chunks, meta.dtype, make, lambda get: last(sums(get)))


def _products(pixels: Array, weights: Array, axes: tuple[int, ...]) -> Array:
    """Sum the weighted pixels of every frame of a chunk, as dask's ``tensordot`` does."""
    sums = np.tensordot(pixels, weights, (axes, range(1, weights.ndim)))
    return np.expand_dims(sums, axes)


def _needs_graph(arr: Any) -> bool:
    """Return whether a graph is observed, or needed: for changed, empty or unknown chunks."""
    observed = get_annotations() or len(config.get("array_plugins", ())) > 1
    known = all(map(all, arr.chunks)) and not math.isnan(sum(map(sum, arr.chunks)))
    return bool(arr.description is None or observed or not known)


def _pixels(arr: Any) -> Known:
    """Return the pixels of an opened array."""
    of: Kwargs = {"name": CHUNKS, "chunks": arr.chunks, "dtype": arr.dtype, "annotations": {}}
    source, grid = arr._source, arr._grid  # noqa: SLF001 - of this package
    return known_pixels(Read(**of, source=source, grid=grid, description=None))


def _late(
    arr: Any,
    chunks: Chunks,
    dtype: np.dtype,
    make: Callable[[da.Array], da.Array],
    at_once: Callable[[Get], Any],
) -> LateArray:
    """Return the array of ``make(arr)``, which is called only if a graph is needed."""
    copy, values = arr.__reduce__()  # assignment to the array must not change the result
    made = lambda: make(copy(*values))  # noqa: E731
    # Without annotations that came later.
    return LateArray(chunks, dtype, lambda: Context().run(made), at_once)


def _is_plain(axes: Any) -> bool:
    """Return whether axes are in a form that dask accepts: an integer, several, or None for all."""
    some = axes if isinstance(axes, (tuple, list)) else () if axes is None else (axes,)
    return all(isinstance(axis, (int, np.integer)) and type(axis) is not bool for axis in some)


def _reduced(
    pixels: Known, step: LastStep, ending: Ending, operands: tuple[Array, ...], get: Get
) -> Any:
    """Reduce an array, in the chunks that the graph would use."""
    part, gone = pixels.with_recipe(step=step), len(ending.reduction.axes)
    further = tuple((n,) for x in operands for n in x.shape[: x.ndim - gone])
    shape = ending.chunks(part.chunks + further)
    if math.prod(map(len, part.chunks)) > 1:
        (part,) = in_fewer_chunks({CHUNKS: part}, {CHUNKS} if shape else ()).values()
    recipes, chunks = Recipes([part.recipe], part.grid), part.chunks + further
    if math.prod(map(len, chunks)) == 1:
        state: Any
        (state,) = recipes.make((0,) * len(chunks), None, *operands)
        count = math.prod(part.grid.shape[axis] for axis in ending.reduction.axes)
        return finished(ending, count, state)
    made = reduced(CHUNKS, recipes, chunks, *operands)
    ends = [*ending.tasks(RESULT, CHUNKS, chunks, made)]
    if not shape:
        return get(made | {task.key: task for task in ends}, (RESULT,))
    layers = concatenated(WHOLE, ends, RESULT, ending.chunks(chunks))
    return get(ChainMap(made, *layers.values()), WHOLE)


@cache
def _step_of(name: str, axes: tuple[int, ...], dtype: np.dtype | None) -> LastStep:
    """Return the step of a reduction by its method's name."""
    return raw_step(Reduction(ROWS[name], axes, dtype))


@cache
def _dtype_of(name: str, pixel: np.dtype, asked: Any) -> np.dtype | None:
    """Return the dtype that dask chooses for a reduction; None for pixels that are no numbers."""
    if pixel.kind not in "biufc":
        return None
    if asked is not None:
        return np.dtype(asked)
    found: np.dtype = getattr(np.zeros(1, pixel), name)().dtype
    return found
