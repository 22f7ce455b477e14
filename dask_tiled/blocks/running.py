"""Run tasks on the chunks of an array for their effects, with a progress bar."""

from __future__ import annotations

import math
import threading
from collections import ChainMap
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import product

import dask.array as da
import numpy as np

from dask_tiled.blocks.alignment import merged_blocks
from dask_tiled.blocks.bars import on_block, progress_bar
from dask_tiled.blocks.completing import complete
from dask_tiled.model.indexing import Array, Box
from dask_tiled.opened.tiled_array import TiledArray, read_once
from dask_tiled.plans.tasks import Block, Key
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Grid

TICK = 1.0
"""Seconds between updates of the clock."""


Consume = Callable[[Box, Array | Source], None]
"""A function of the box of a block, and its pixels or the source to read them from."""
Run = tuple[da.Array, da.Array, Sequence[Block]]
"""Tasks, the array with a chunk for each of them, and the chunks to run."""


def run_on_blocks(
    consume: Consume,
    arr: da.Array,
    chunks: Chunks | None = None,
    *,
    beside: Sequence[da.Array] = (),
    name: str,
    wanted: Callable[[Block], bool] | None = None,
    show: bool | None,
    title: str,
) -> list[Array]:
    """Call a function with the box and the pixels of every chunk of an array, which is read once.

    If an opened array has many chunks, a task takes several in turn.

    Parameters
    ----------
    consume : callable
        Called with the box of a chunk and its pixels; for an opened array with the source to read
        them from.
    chunks : tuple of tuple of int, optional
        Other chunks than those of the array.
    beside : sequence of dask.array.Array
        Arrays to compute in the same graph, and to return.
    name : str
        Name of the tasks.
    wanted : callable, optional
        Whether to compute a chunk; by default all are computed.
    show : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.
    title : str
        Label of the bar.
    """
    arr = read_once(arr, chunks)
    if isinstance(arr, TiledArray) and arr.description is not None:
        runs = _merged(consume, arr, name, wanted)
    else:
        func, grid = partial(_consume, consume), Grid.of(arr.chunks)
        ones, meta = _ones(arr), np.empty((0,) * arr.ndim, dtype=bool)
        done = da.map_blocks(func, arr, grid, chunks=ones, dtype=bool, meta=meta, name=name)
        runs = [(done, arr, _blocks_of(arr, wanted))]
    return _run(runs, beside, int(arr.nbytes), show=show, title=title)


def _merged(
    consume: Consume, arr: TiledArray, name: str, wanted: Callable[[Block], bool] | None
) -> list[Run]:
    """Return the tasks of an opened array: of several chunks each, or of one where not all run."""
    grid = Grid.of(arr.chunks)
    merged = read_once(arr, merged_blocks(arr.chunks, arr.dtype.itemsize))
    whole: list[Block] = []
    single: list[Block] = []
    for block in product(*map(range, merged.numblocks)):
        blocks = [*grid.within(Grid.of(merged.chunks).box(block))] if wanted else []
        some = [one for one in blocks if wanted and wanted(one)]
        if some == blocks:
            whole.append(block)
        else:
            single += some
    pairs = ((merged, whole), (arr, single))
    return [(_in_turn(consume, made, grid, name), made, some) for made, some in pairs if some]


def _in_turn(consume: Consume, arr: da.Array, grid: Grid, name: str) -> da.Array:
    """Return an array with a task for each chunk of an opened one, which consists of blocks."""
    assert isinstance(arr, TiledArray)  # noqa: S101 - for the type checker
    name = f"{name}-{arr.npartitions}"
    graph = arr.on_source(_consume_in_turn, partial(_InTurn, consume, grid), name=name)
    return da.Array(graph, name, _ones(arr), meta=np.empty((0,) * arr.ndim, dtype=bool))


def _ones(arr: da.Array) -> Chunks:
    return tuple((1,) * n for n in arr.numblocks)


class _InTurn:
    """A function to be called with the blocks of a grid and the source of their pixels.

    It is a plain class, as dask does not traverse these.
    """

    is_large = True
    """Whether workers receive it once, not with every task."""

    def __init__(self, consume: Consume, grid: Grid, source: Source) -> None:
        self.consume = consume
        self.grid = grid
        self.source = source


def _consume_in_turn(given: _InTurn, grid: Grid, block_id: Block) -> bool:
    for block in given.grid.within(grid.box(block_id)):
        given.consume(given.grid.box(block), given.source)
    return True  # the results of all tasks are kept until the last one is done


def _consume(consume: Consume, pixels: Array, grid: Grid, block_id: Block) -> bool:
    consume(grid.box(block_id), pixels)
    return True  # as above


def run_tasks(
    done: da.Array,
    arr: da.Array,
    *beside: da.Array,
    wanted: Callable[[Block], bool] | None = None,
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
    runs = [(done, arr, _blocks_of(arr, wanted))]
    return _run(runs, beside, int(arr.nbytes), show=show, title=title)


def _blocks_of(arr: da.Array, wanted: Callable[[Block], bool] | None) -> list[Block]:
    return [*filter(wanted or (lambda _: True), product(*map(range, arr.numblocks)))]


def _run(
    runs: Sequence[Run],
    beside: Sequence[da.Array],
    nbytes: int,
    *,
    show: bool | None,
    title: str,
) -> list[Array]:
    """Run the tasks of some blocks of arrays, one array after the other, under one bar.

    ``beside`` are computed with the tasks of the first array.
    """
    sizes = [
        {
            (done.name, *block): arr.dtype.itemsize
            * math.prod(int(axis[k]) for axis, k in zip(arr.chunks, block, strict=True))
            for block in blocks
        }
        for done, arr, blocks in runs
    ]
    if not any(sizes) and not beside:
        return []
    found: list[Array] = []
    with closing(_Bar({**ChainMap(*sizes)}, nbytes, show=show, title=title)) as bar:
        for (done, *_), some in zip(runs, sizes, strict=True):
            found += complete(done, [*some], beside, done=bar.update)
            beside = ()
    return found


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
        on_block.get()()

    def close(self) -> None:
        """Stop the clock and the bar."""
        self._closed.set()
        if self._clock.is_alive():
            self._clock.join()
        self.bar.close()
