"""Run tasks on the chunks of an array for their effects, with a progress bar."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import product

import dask.array as da
import numpy as np

from dask_tiled.array.tasks import Block, Key
from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.blocks.bars import progress_bar
from dask_tiled.blocks.completing import complete
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
) -> bool:
    consume(grid.box(block_id), held)
    return True  # the results of all tasks are kept until the last one is done


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
        return complete(done, [*sizes], beside, done=bar.update)


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

    def update(self, key: Key) -> None:
        """Count a finished task."""
        self.bar.update(self.sizes[key])

    def close(self) -> None:
        """Stop the clock and the bar."""
        self._closed.set()
        if self._clock.is_alive():
            self._clock.join()
        self.bar.close()
