"""Run a function on the chunks of an array for its effects, and show how far it is."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import product
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import DaskMethodsMixin, compute, get_scheduler, persist
from dask.callbacks import Callback
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.tasks import Block, Key
from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.blocks.bars import progress_bar
from dask_tiled.model.indexing import Array
from dask_tiled.tiling.bases import Grid

TICK = 1.0
"""Seconds after which a bar shows the time anew."""


def run_on_blocks(
    func: Callable[..., npt.NDArray[np.bool_]],
    arr: da.Array,
    *values: Any,
    beside: Sequence[da.Array] = (),
    name: str,
    wanted: Callable[[Block], bool] = lambda _: True,
    show: bool | None,
    title: str,
) -> list[Array]:
    """Call ``func(chunk, *values, grid, block_id)`` on the chunks of an array that are wanted.

    Parameters
    ----------
    func : callable
        Instead of the pixels of a chunk of an opened array it gets the source to read them from.
        What it returns, one value for each axis, is thrown away.
    beside : sequence of dask.array.Array
        What is computed in the same go, and returned.
    name : str
        Name of the tasks.
    wanted : callable
        Whether a chunk is; of the others nothing is computed. By default all are.
    show : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.
    title : str
        What the bar begins with.
    """
    done = _called(func, arr, values, name)
    return run_tasks(done, arr, *beside, wanted=wanted, show=show, title=title)


def _called(
    func: Callable[..., npt.NDArray[np.bool_]], arr: da.Array, values: tuple[Any, ...], name: str
) -> da.Array:
    """Return what a function makes of each chunk, of an opened array of what that is read from."""
    chunks = tuple((1,) * n for n in arr.numblocks)
    meta = np.empty((0,) * arr.ndim, dtype=bool)
    graph = arr.on_source(func, *values, name=name) if isinstance(arr, TiledArray) else None
    if graph is not None:
        return da.Array(graph, name, chunks, meta=meta)
    values = (*values, Grid.of(arr.chunks))
    return da.map_blocks(func, arr, *values, chunks=chunks, dtype=bool, meta=meta, name=name)


def run_tasks(
    done: da.Array,
    arr: da.Array,
    *beside: da.Array,
    wanted: Callable[[Block], bool] = lambda _: True,
    show: bool | None,
    title: str,
) -> list[Array]:
    """Run what is done with the chunks of an array that are wanted, and compute results beside it.

    Parameters
    ----------
    done : dask.array.Array
        It has a task for each chunk of ``arr``, whose result is thrown away.
    *beside : dask.array.Array
        What is computed in the same go, of chunks that are read once.

    Returns
    -------
    list of ndarray
        What was computed beside.
    """
    blocks = product(*map(range, arr.numblocks))
    sizes = {
        (done.name, *block): arr.dtype.itemsize * math.prod(map(_at, arr.chunks, block))
        for block in blocks
        if wanted(block)
    }
    if not sizes and not beside:
        return []
    with closing(_Bar(sizes, int(arr.nbytes), show=show, title=title)) as bar:
        return _run([_Tasks(done, list(sizes)), *beside], bar)


def _at(axis: tuple[int, ...], k: int) -> int:
    return int(axis[k])


class _Tasks(DaskMethodsMixin):
    """Some of the tasks of an array, as a collection of dask."""

    def __init__(self, of: da.Array, keys: list[Key], graph: Any = None) -> None:
        self.of = of
        self.keys = keys
        self.graph = of.dask if graph is None else graph

    __dask_scheduler__ = staticmethod(da.Array.__dask_scheduler__)

    @property
    def __dask_optimize__(self) -> Callable[..., Any]:
        optimize: Callable[..., Any] = self.of.__dask_optimize__  # that of the user, or ours
        return optimize

    def __dask_graph__(self) -> HighLevelGraph:
        return self.graph

    def __dask_keys__(self) -> list[Key]:
        return self.keys

    def __dask_layers__(self) -> tuple[str, ...]:
        return (self.of.name,)

    def __dask_postcompute__(self) -> tuple[Any, tuple[Any, ...]]:
        return list, ()

    def __dask_postpersist__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuilt, (self.of, self.keys)


def _rebuilt(graph: Any, of: da.Array, keys: list[Key], **_: Any) -> _Tasks:
    return _Tasks(of, keys, graph)


def _run(collections: list[Any], bar: _Bar) -> list[Array]:
    """Run tasks, and return what is computed beside them."""
    client = getattr(get_scheduler(), "__self__", None)
    if client is None or not hasattr(client, "scheduler_info"):
        with Callback(posttask=lambda key, *_: bar.update(key)):
            _, *beside = persist(*collections, traverse=False)
            return [*compute(*beside, traverse=False)]
    from distributed import as_completed, futures_of

    tasks, *beside = client.persist(collections)
    futures = futures_of([tasks, *beside])
    try:
        for future in as_completed(futures, loop=client.loop):
            future.result()  # raises what the task has raised
            bar.update(future.key)
        return [*compute(*beside, traverse=False)]
    finally:
        client.cancel(futures)


class _Bar:
    """How many bytes of pixels are done, of how many, and how fast."""

    def __init__(self, sizes: dict[Key, int], whole: int, *, show: bool | None, title: str) -> None:
        self.sizes = sizes
        self.bar = progress_bar(
            total=whole,
            initial=whole - sum(sizes.values()),
            desc=title,
            unit="B",
            unit_scale=True,
            disable=None if show is None else not show,
        )
        self._closed = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)
        if not self.bar.disable:
            self._clock.start()

    def _tick(self) -> None:
        """Let the time go on while nothing is done yet: the first chunk may have to be compiled."""
        while not self._closed.wait(TICK):
            self.bar.refresh()

    def update(self, key: Any) -> None:
        """Count a task that is done."""
        self.bar.update(self.sizes.get(key, 0))

    def close(self) -> None:
        """Leave the bar as it is."""
        self._closed.set()
        if self._clock.is_alive():
            self._clock.join()
        self.bar.close()
