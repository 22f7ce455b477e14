"""Reuse of the memory of chunks: fresh memory costs page faults.

Memory is reused within one computation, and freed with the last task that reads.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from weakref import finalize, ref

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.dask_graph.layers import function_of
from dask_tiled.array.dask_graph.names import (
    Blockwise,
    Layer,
    MaterializedLayer,
    Task,
    TaskRef,
    blockwise,
)
from dask_tiled.array.tasks import Block, pixels_of
from dask_tiled.model.indexing import Array
from dask_tiled.reading.cluster import on_a_cluster
from dask_tiled.reading.reader import Source
from dask_tiled.tiling import machine
from dask_tiled.tiling.bases import Chunks, Grid

LEAST_PIXELS = 1 << 21
"""Minimum number of pixels of a chunk: ``malloc`` reuses the memory of smaller ones anyway."""


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


def lending(graph: HighLevelGraph, wanted: Collection[str]) -> HighLevelGraph:
    """Reuse memory in layers that read chunks, except in those that are ``wanted``."""
    layers: dict[str, Layer] = {**graph.layers}
    dependencies = {**graph.dependencies}
    for name, layer in graph.layers.items():
        if not isinstance(layer, Blockwise) or function_of(layer) is not pixels_of:
            continue
        (numbers,) = layer.io_deps.values()
        if name in wanted or not _pays(numbers.chunks):
            continue
        spare, ((source, _), (grid, _), (_, axes)) = f"memory-{name}", layer.indices
        given = source, None, TaskRef(spare), None, grid, None, numbers, axes
        layers[spare] = MaterializedLayer({spare: Task(spare, Spare)})
        layers[name] = blockwise(lent, name, layer.output_indices, *given, numblocks={})
        layers[name].annotations = layer.annotations
        dependencies |= {spare: set(), name: {*dependencies[name], spare}}
    return HighLevelGraph(layers, dependencies)


def _pays(chunks: Chunks) -> bool:
    """Return whether reuse is worthwhile: chunks are large, and more than are read at once."""
    many = math.prod(map(len, chunks)) > machine.processors()
    return many and math.prod(max(axis, default=0) for axis in chunks) >= LEAST_PIXELS
