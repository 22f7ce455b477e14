"""Run tasks on the chunks of an array for their effects, with a progress bar."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import product
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import DaskMethodsMixin, compute, persist
from dask.callbacks import Callback
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.dask_graph.schedulers import cluster, scheduler
from dask_tiled.array.tasks import Block, Key
from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.blocks.bars import progress_bar
from dask_tiled.model.indexing import Array, Box
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Grid

TICK = 1.0
"""Seconds between updates of the clock."""


def run_on_blocks(
    consume: Callable[[Box, Array | Source], None],
    arr: da.Array,
    *,
    beside: Sequence[da.Array] = (),
    name: str,
    wanted: Callable[[Block], bool] = lambda _: True,
    show: bool | None,
    title: str,
) -> list[Array]:
    """Call a function with the box and the pixels of every chunk of an array.

    Parameters
    ----------
    consume : callable
        Called with the box of a chunk and its pixels; for an opened array with the source to read
        them from.
    beside : sequence of dask.array.Array
        Arrays to compute in the same graph, and to return.
    name : str
        Name of the tasks.
    wanted : callable
        Whether to compute a chunk; by default all are computed.
    show : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.
    title : str
        Label of the bar.
    """
    chunks = tuple((1,) * n for n in arr.numblocks)
    meta = np.empty((0,) * arr.ndim, dtype=bool)
    func = partial(_consume, consume)
    graph = arr.on_source(func, name=name) if isinstance(arr, TiledArray) else None
    if graph is not None:
        done = da.Array(graph, name, chunks, meta=meta)
    else:
        grid = Grid.of(arr.chunks)
        done = da.map_blocks(func, arr, grid, chunks=chunks, dtype=bool, meta=meta, name=name)
    return run_tasks(done, arr, *beside, wanted=wanted, show=show, title=title)


def _consume(
    consume: Callable[[Box, Array | Source], None],
    held: Array | Source,
    grid: Grid,
    block_id: Block,
) -> npt.NDArray[np.bool_]:
    consume(grid.box(block_id), held)
    return np.ones((1,) * len(block_id), dtype=bool)


def run_tasks(
    done: da.Array,
    arr: da.Array,
    *beside: da.Array,
    wanted: Callable[[Block], bool] = lambda _: True,
    show: bool | None,
    title: str,
) -> list[Array]:
    """Run a task for every chunk of an array for its effects, and compute results as well.

    Parameters
    ----------
    done : dask.array.Array
        An array with one task for each chunk of ``arr``; its values are dropped.
    *beside : dask.array.Array
        Arrays to compute in the same graph, so that chunks are read once.

    Returns
    -------
    list of ndarray
        The values of ``beside``.
    """
    sizes = {
        (done.name, *block): arr.dtype.itemsize
        * math.prod(int(axis[k]) for axis, k in zip(arr.chunks, block, strict=True))
        for block in product(*map(range, arr.numblocks))
        if wanted(block)
    }
    if not sizes and not beside:
        return []
    with closing(_Bar(sizes, int(arr.nbytes), show=show, title=title)) as bar:
        return _run([_Tasks(done, list(sizes)), *beside], bar)


class _Tasks(DaskMethodsMixin):
    """Some of the tasks of an array, as a collection of dask."""

    def __init__(self, of: da.Array, keys: list[Key], graph: Any = None) -> None:
        self.of = of
        self.keys = keys
        self.graph = of.dask if graph is None else graph

    __dask_scheduler__ = staticmethod(da.Array.__dask_scheduler__)

    @property
    def __dask_optimize__(self) -> Callable[..., Any]:
        # It is set by the user, or the package's own.
        optimize: Callable[..., Any] = self.of.__dask_optimize__
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
    """Run the tasks, the first collection, and return the values of the others."""
    client = cluster()
    if client is None:
        options: Any = {"traverse": False, "scheduler": scheduler()}
        with Callback(posttask=lambda key, *_: bar.update(key)):
            _, *beside = persist(*collections, **options)
            return [*compute(*beside, **options)]
    from distributed import as_completed, futures_of

    tasks, *beside = client.persist(collections)
    futures = futures_of([tasks, *beside])
    try:
        for future in as_completed(futures, loop=client.loop):
            future.result()  # raises the error of the task
            bar.update(future.key)
        return [*compute(*beside, traverse=False)]
    finally:
        client.cancel(futures)


class _Bar:
    """A progress bar in bytes of pixels."""

    def __init__(self, sizes: dict[Key, int], whole: int, *, show: bool | None, title: str) -> None:
        self.sizes = sizes
        self.bar = progress_bar(
            total=whole, initial=whole - sum(sizes.values()), desc=title, show=show
        )
        self._closed = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)
        if not self.bar.disable:
            self._clock.start()

    def _tick(self) -> None:
        """Refresh the elapsed time, also before the first chunk: numba may be compiling."""
        while not self._closed.wait(TICK):
            self.bar.refresh()

    def update(self, key: Any) -> None:
        """Count a finished task."""
        self.bar.update(self.sizes.get(key, 0))

    def close(self) -> None:
        """Stop the clock and the bar."""
        self._closed.set()
        if self._clock.is_alive():
            self._clock.join()
        self.bar.close()
