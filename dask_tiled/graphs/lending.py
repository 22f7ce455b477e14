"""Chunks for functions of others, without fresh memory, which costs page faults.

A function that is the only consumer of the chunks gets private pages of the mapped file, if the
file rests and its pixels are native. Other chunks are read into memory that is reused within one
computation, and freed with the last task that reads.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection
from itertools import chain
from typing import Any
from weakref import finalize, ref

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.layers import function_of
from dask_tiled.graphs.limits import LEAST_LENT_PIXELS
from dask_tiled.graphs.names import (
    Blockwise,
    Layer,
    MaterializedLayer,
    Task,
    TaskRef,
    blockwise,
    blockwise_token,
)
from dask_tiled.model.indexing import Array, Bytes
from dask_tiled.plans.tasks import Block, Function, pixels_of
from dask_tiled.reading.cluster import on_a_cluster
from dask_tiled.reading.limits import MOST_READ_FRAMES
from dask_tiled.reading.reader import Reader, Source, Workspace
from dask_tiled.system.pages import detach
from dask_tiled.tiling import machine
from dask_tiled.tiling.bases import Grid


class Spare:
    """Pool of chunk memory; disabled on workers and after unpickling.

    It holds at most one chunk per processor.
    """

    def __init__(self) -> None:
        self._lends = not on_a_cluster()
        self._waiting: deque[Array] = deque(maxlen=machine.processors())

    def chunk(self, shape: tuple[int, ...], dtype: np.dtype) -> Array | None:
        """Return memory for a chunk; it returns to the pool when no array refers to it."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not self._lends or dtype.hasobject:
            return None
        try:
            memory = self._waiting.pop()
        except IndexError:
            memory = np.empty(0, np.uint8)
        if len(memory) < nbytes:
            memory = np.empty(nbytes, np.uint8)
        shown = np.frombuffer(memory.data, np.uint8, nbytes)  # base of all views
        finalize(shown, _give_back, ref(self._waiting), memory).atexit = False
        return shown.view(dtype).reshape(shape)

    def __reduce__(self) -> tuple[type[Spare], tuple[()], dict[str, bool]]:
        return Spare, (), {"_lends": False}


def _give_back(waiting: ref[deque[Array]], memory: Array) -> None:
    """Return memory to the pool of a computation, unless that is done."""
    if (pool := waiting()) is not None:
        pool.append(memory)


def lent(source: Source, spare: Spare, grid: Grid, block_id: Block) -> Array:
    """Read the pixels of a chunk into memory of the pool."""
    shape = tuple(stop - start for start, stop in grid.box(block_id))
    return pixels_of(source, grid, block_id, spare.chunk(shape, source.dtype))


class Unread:
    """A chunk that is read by its consumer."""

    def __init__(self, source: Source, spare: Spare, grid: Grid, block_id: Block) -> None:
        self._place = source, spare, grid, block_id

    def pixels(self, workspace: Workspace, pages: list[ref[Bytes]]) -> Array:
        """Return private pages of the file, listed in ``pages``, or memory of the pool."""
        source, _, grid, block_id = self._place
        box = grid.box(block_id)
        frames = math.prod(stop - start for start, stop in box[: source.layout.nav_ndim])
        pixels = None
        if source.conversion.nothing and frames <= MOST_READ_FRAMES:
            pixels = Reader(source, box, workspace).private()
        if pixels is None:
            return lent(*self._place)
        base: Any = pixels.base
        pages.append(ref(base))
        return pixels


class Reading:
    """A function of chunks, called with chunks that are read for it."""

    def __init__(self, func: Function) -> None:
        self.func = func

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; pages that it returns or keeps become independent of the file."""
        pages: list[ref[Bytes]] = []
        with Workspace() as workspace:
            shown = [x.pixels(workspace, pages) if isinstance(x, Unread) else x for x in args]
            result = self.func(*shown, **kwargs)
            del shown
            for page in pages:
                if (memory := page()) is not None:
                    detach(memory)
        return result


def lending(graph: HighLevelGraph, wanted: Collection[str]) -> HighLevelGraph:
    """Avoid fresh memory in layers that read chunks, except in those that are ``wanted``."""
    layers: dict[str, Layer] = {**graph.layers}
    dependencies = {**graph.dependencies}
    users = Counter(chain.from_iterable(graph.dependencies.values()))
    only = {x: name for name, others in graph.dependencies.items() for x in others if users[x] == 1}
    for name, layer in graph.layers.items():
        if not isinstance(layer, Blockwise) or function_of(layer) is not pixels_of:
            continue
        (numbers,) = layer.io_deps.values()
        largest = math.prod(max(axis, default=0) for axis in numbers.chunks)
        if name in wanted or largest < LEAST_LENT_PIXELS:
            continue
        spare, ((source, _), (grid, _), (_, axes)) = f"memory-{name}", layer.indices
        given = source, None, TaskRef(spare), None, grid, None, numbers, axes
        user = only.get(name, "")
        taken = _reading(layers.get(user), name)
        if taken is not None:
            layers[user] = taken
        function = lent if taken is None else Unread
        layers[spare] = MaterializedLayer({spare: Task(spare, Spare)})
        layers[name] = blockwise(function, name, layer.output_indices, *given, numblocks={})
        layers[name].annotations = layer.annotations
        dependencies |= {spare: set(), name: {*dependencies[name], spare}}
    return HighLevelGraph(layers, dependencies)


def _reading(layer: Layer | None, name: str) -> Blockwise | None:
    """Return a layer whose function reads the chunks of another layer; None if it cannot.

    dask passes copies along axes that the result lacks, even of a single chunk: it does not
    where chunks repeat along another axis.
    """
    if not isinstance(layer, Blockwise) or not isinstance(layer.task, Task):
        return None
    kept, indices = layer.output_indices, [*layer.indices]
    places = [k for k, (value, _) in enumerate(indices) if isinstance(value, str) and value == name]
    task = layer.task
    refs = [TaskRef(blockwise_token(k)) for k in places]
    if len(refs) != 1 or sum(x == refs[0] for x in task.args) != 1:
        return None
    counts, labels = layer.numblocks[name], indices[places[0]][1]
    gone = [x not in kept for x in labels]
    if any(gone) and (not kept or any(n > 1 for n, g in zip(counts, gone, strict=True) if g)):
        return None
    indices[places[0]] = name, tuple(kept[0] if g else x for x, g in zip(labels, gone, strict=True))
    function = task.func if isinstance(task.func, Reading) else Reading(task.func)
    return Blockwise(
        layer.output,
        kept,
        Task(task.key, function, *task.args, **task.kwargs),
        indices,
        layer.numblocks,
        concatenate=layer.concatenate,
        new_axes=layer.new_axes,
        annotations=layer.annotations,
        io_deps=layer.io_deps,
    )
