"""Deferred dask arrays: graphs are built on demand, or never."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Self

import dask.array as da
import numpy as np
from dask import config, threaded
from dask.callbacks import Callback
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.rewriting import optimize
from dask_tiled.graphs.schedulers import Get, get_here
from dask_tiled.tiling.bases import Chunks


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
