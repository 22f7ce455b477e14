"""The array that a user gets: the tasks of chunks write into it, so that nobody puts it together.

dask's last step copies all chunks, one after the other. Where it is told to, a task puts its own
there instead, and reads it there if nothing else wants it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from dask._task_spec import Task, TaskRef
from dask.array.core import finalize
from dask.blockwise import Blockwise, blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.layers import ArrayBlockIdDep

from dask_tiled.array.known import Known
from dask_tiled.array.tasks import Block, Grid, pixels_of
from dask_tiled.reading.cluster import on_a_cluster
from dask_tiled.reading.reader import Source

Array = npt.NDArray[Any]

LEAST_PIXELS = 1 << 19
"""Results of fewer pixels are put together in no time."""


class Result:
    """Memory for a result, in the process that made it; none on a cluster and in copies."""

    def __init__(self, shape: tuple[int, ...] | None = None) -> None:
        self._shape = None if on_a_cluster() else shape
        self._memory: dict[np.dtype, Array] = {}

    def part(self, grid: Grid, block_id: Block, dtype: np.dtype) -> Array | None:
        """Give the memory for a chunk."""
        if self._shape is None:
            return None
        if dtype not in self._memory:  # of two threads that come here one is too late
            self._memory.setdefault(dtype, np.empty(self._shape, dtype))
        return self._memory[dtype][tuple(slice(*ends) for ends in grid.box(block_id))]

    def whole(self, chunks: Any) -> Any:
        """Give the result, if all chunks are parts of it; otherwise let dask put it together."""
        for memory in self._memory.values():
            if all(chunk.base is memory for chunk in flatten([chunks])):
                return memory
        return finalize(chunks)

    def __reduce__(self) -> tuple[Any, ...]:
        return Result, ()


def whole(source: Source, grid: Grid) -> Array:
    """Read an array of one chunk to memory of its own."""
    return pixels_of(source, grid, (0,) * len(grid.shape), np.empty(grid.shape, source.dtype))


def put(result: Result, grid: Grid, block_id: Block, chunk: Source | Array) -> Array:
    """Put a chunk where it belongs, or read it there, and give it there."""
    part = result.part(grid, block_id, chunk.dtype)
    if isinstance(chunk, Source):
        out = part if part is not None and part.flags.c_contiguous else None
        chunk = pixels_of(chunk, grid, block_id, out)
    if part is None or chunk is part:
        return chunk
    part[...] = chunk
    return part


def put_together(
    graph: HighLevelGraph, known: Mapping[str, Known], wanted: Collection[str]
) -> HighLevelGraph:
    """Let the tasks of known pixels put these into results, instead of dask's last step.

    Layers that are ``wanted`` stay.
    """
    if not known:
        return graph
    users = Counter(chain.from_iterable(graph.dependencies.values()))
    layers: dict[str, Layer] = {**graph.layers}
    dependencies = {name: {*others} for name, others in graph.dependencies.items()}
    for final, layer in graph.layers.items():
        task = layer.get(final) if isinstance(layer, MaterializedLayer) else None
        if not isinstance(task, Task) or task.func is not finalize:
            continue
        name, *others = {key[0] for key in task.dependencies} or {""}
        one = known.get(name)
        if others or one is None or one.step is not None or len(task.args) > 1:
            continue
        reads: Any = graph.layers[name]
        is_read = isinstance(reads, Blockwise) and reads.task.func is pixels_of
        alone = is_read and users[name] == 1 and name not in wanted
        chunks, axes = one.shown_chunks, tuple(range(len(one.shape)))
        if alone and not graph.dependencies[name] and len(task.dependencies) == 1:
            # A frame, as a rule: one task, and nothing for dask to put together or to optimise.
            read = Task(final, whole, one.source, one.grid)
            layers[final] = MaterializedLayer({final: read}, one.annotations or None)
            dependencies[final] = set()
            del layers[name], dependencies[name]
            continue
        if math.prod(one.shape) < LEAST_PIXELS:
            continue
        result, putting = f"result-{final}", f"put-{final}"
        given: tuple[Any, Any] = name, axes
        numblocks = {name: tuple(map(len, chunks))}
        needed = {result, name}
        if alone:
            given, numblocks = reads.indices[0], {}
            needed = {result, *graph.dependencies[name]}
        place = Grid.of(chunks), None, ArrayBlockIdDep(chunks), axes
        arguments = TaskRef(result), None, *place, *given
        layers[result] = MaterializedLayer({result: Task(result, Result, one.shape)})
        layers[putting] = blockwise(put, putting, axes, *arguments, numblocks=numblocks)
        layers[putting].annotations = one.annotations or None
        parts = task.args[0].substitute({key: (putting, *key[1:]) for key in task.dependencies})
        layers[final] = MaterializedLayer(
            {final: Task(final, Result.whole, TaskRef(result), parts)}
        )
        dependencies |= {result: set(), putting: needed, final: {result, putting}}
    return HighLevelGraph(layers, dependencies)
