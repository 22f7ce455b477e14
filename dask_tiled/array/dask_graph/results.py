"""The array that a user gets: the tasks of chunks write into it, so that nobody puts it together.

dask's last step copies all chunks, one after the other. Where it is told to, a task puts its own
there instead, and reads it there if nothing else wants it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.dask_graph.names import (
    ArrayBlockIdDep,
    Blockwise,
    Layer,
    List,
    MaterializedLayer,
    Task,
    TaskRef,
    blockwise,
    finalize,
    flatten,
)
from dask_tiled.array.known import Known
from dask_tiled.array.plan import takes_time
from dask_tiled.array.recipes import Room
from dask_tiled.array.tasks import Block, Key, Nested, pixels_of
from dask_tiled.model.indexing import Array
from dask_tiled.reading.cluster import on_a_cluster
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Grid

LEAST_PIXELS = 1 << 19
"""Results of fewer pixels are put together in no time."""

FEW_PIXELS = 1 << 16
"""So many are read by one task, in whatever chunks they are."""


class Result:
    """Memory for a result, in the process that made it; none on a cluster and in copies."""

    def __init__(self, shape: tuple[int, ...] | None = None) -> None:
        self._shape = None if on_a_cluster() else shape
        self._memory: dict[np.dtype, Array] = {}

    def part(self, grid: Grid, block_id: Block, dtype: np.dtype) -> Array | None:
        """Return the memory for a chunk."""
        if self._shape is None:
            return None
        if dtype not in self._memory:  # of two threads that come here one is too late
            self._memory.setdefault(dtype, np.empty(self._shape, dtype))
        return self._memory[dtype][tuple(slice(*ends) for ends in grid.box(block_id))]

    def room(self, grid: Grid, block_id: Block, dtype: np.dtype) -> Array | None:
        """Return the memory for a chunk that can be made in it: what is C-contiguous."""
        part = self.part(grid, block_id, dtype)
        return part if part is not None and part.flags.c_contiguous else None

    def whole(self, chunks: Nested) -> Array:
        """Return the result, if all chunks are parts of it; otherwise let dask put it together."""
        for memory in self._memory.values():
            if all(getattr(chunk, "base", None) is memory for chunk in flatten([chunks])):
                return memory
        return finalize(chunks)

    def __reduce__(self) -> tuple[type[Result], tuple[()]]:
        return Result, ()


def whole(source: Source, grid: Grid) -> Array:
    """Read an array of one chunk to memory of its own."""
    return pixels_of(source, grid, (0,) * len(grid.shape), np.empty(grid.shape, source.dtype))


def put(
    result: Result, grid: Grid, block_id: Block, chunk: Source | Array | Callable[[Room], Array]
) -> Array:
    """Put a chunk where it belongs, or read or make it there, and give it there.

    A user's function may make anything of a chunk: what has another shape is left as it is.
    """
    if callable(chunk):
        chunk = chunk(partial(result.room, grid, block_id))
    if isinstance(chunk, Source):
        chunk = pixels_of(chunk, grid, block_id, result.room(grid, block_id, chunk.dtype))
    shape = tuple(stop - start for start, stop in grid.box(block_id))
    if type(chunk) is not np.ndarray or chunk.shape != shape:
        return chunk
    part = result.part(grid, block_id, chunk.dtype)
    if part is None or chunk.base is part.base:
        return chunk
    part[...] = chunk
    return part


def is_one_task(source: Source, shape: Sequence[int], count: int) -> bool:
    """Return whether pixels in so many chunks are read by one task."""
    return count == 1 or (math.prod(shape) <= FEW_PIXELS and not takes_time(source))


class Final(NamedTuple):
    """Dask's last step for an array of which nobody else sees the chunks."""

    layer: str
    task: Task

    def of(self, keys: Iterable[Key], name: str) -> MaterializedLayer:
        """Make it anew for the chunks of a name among others, given in C order."""
        refs: dict[Key, object] = {key[1:]: TaskRef(key) for key in keys if key[0] == name}
        depth = len(next(iter(refs)))
        for n in reversed(range(depth or 1)):
            rows: dict[Key, list[object]] = {}
            for place, ref in refs.items():
                rows.setdefault(place[:n], []).append(ref)
            refs = {place: List(*some) for place, some in rows.items()}
        return MaterializedLayer({self.layer: Task(self.layer, finalize, refs[()])})


def finals_of(graph: HighLevelGraph, wanted: Collection[str]) -> dict[str, Final]:
    """Find dask's last steps, by the names of what they put together."""
    users = Counter(chain.from_iterable(graph.dependencies.values()))
    found = _last_steps(graph)
    return {x: final for x, final in found if users[x] == 1 and x not in wanted}


def _last_steps(graph: HighLevelGraph) -> Iterator[tuple[str, Final]]:
    for final, layer in graph.layers.items():
        task = layer.get(final) if isinstance(layer, MaterializedLayer) else None
        if isinstance(task, Task) and task.func is finalize and len(task.args) == 1:
            name, *last = max(task.dependencies, default=("",))
            if _lists(task.args[0], (name,), last):
                yield name, Final(final, task)


def _lists(parts: object, place: Key, last: Sequence[int]) -> bool:
    """Return whether nested lists are the chunks of an array in C order, up to the ``last``."""
    if not last:
        return isinstance(parts, TaskRef) and parts.key == place
    if not isinstance(parts, List) or len(parts.args) != last[0] + 1:
        return False
    return all(_lists(part, (*place, k), last[1:]) for k, part in enumerate(parts.args))


def _mapped(graph: HighLevelGraph, name: str, known: Mapping[str, Known]) -> Known | None:
    """Find what functions of users are called on: as a rule, results are as long as its chunks."""
    layer: Layer | None = graph.layers[name]
    annotations = {**(graph.layers[name].annotations or {})}
    while isinstance(layer, Blockwise) and not layer.new_axes:
        alike = [str(value) for value, index in layer.indices if index == layer.output_indices]
        for one in map(known.get, alike):
            if one is not None and one.step is None:
                return replace(one, annotations=annotations)
        layer = next((graph.layers[x] for x in alike if x in graph.layers), None)
    return None


def put_together(
    graph: HighLevelGraph, known: Mapping[str, Known], wanted: Collection[str]
) -> tuple[HighLevelGraph, dict[str, Known]]:
    """Let the tasks of known pixels put these into results, instead of dask's last step.

    Layers that are ``wanted`` stay. Beside the graph, it gives what can be made where it is put,
    since nobody else takes it, by names of its own.
    """
    taken = dict[str, Known]()
    if not known:
        return graph, taken
    layers: dict[str, Layer] = {**graph.layers}
    dependencies = {name: {*others} for name, others in graph.dependencies.items()}
    unseen = finals_of(graph, wanted)
    for name, (final, task) in _last_steps(graph):
        reads = graph.layers[name]
        one = known.get(name) or _mapped(graph, name, known)
        chunks = None if one is None else one.made_chunks
        if one is None or chunks is None:
            continue
        if math.prod(map(len, chunks)) < len(task.dependencies):  # there are empty ones, too
            continue
        alone = name in unseen and isinstance(reads, Blockwise) and reads.task.func is pixels_of
        shape, axes = tuple(map(sum, chunks)), tuple(range(len(chunks)))
        few = is_one_task(one.source, shape, len(task.dependencies))
        if alone and few and not graph.dependencies[name]:
            # A frame, as a rule: one task, and nothing for dask to put together or to optimise.
            read = Task(final, whole, one.source, Grid.of([(n,) for n in shape]))
            layers[final] = MaterializedLayer({final: read}, one.annotations or None)
            dependencies[final] = set()
            del layers[name], dependencies[name]
            continue
        if math.prod(shape) < LEAST_PIXELS:
            continue
        result, putting = f"result-{final}", f"put-{final}"
        if name in unseen and name in known and not one.is_read and one.view.is_in_order:
            name = f"{name}-here"  # noqa: PLW2901 - elsewhere it is an array of its own
            taken[name] = replace(one, name=name)
        given: tuple[object, object] = name, axes
        numblocks = {name: tuple(map(len, chunks))}
        needed = {result, name}
        if alone and isinstance(reads, Blockwise):
            given, numblocks = reads.indices[0], {}
            needed = {result, *graph.dependencies[name]}
        place = Grid.of(chunks), None, ArrayBlockIdDep(chunks), axes
        arguments = TaskRef(result), None, *place, *given
        layers[result] = MaterializedLayer({result: Task(result, Result, shape)})
        layers[putting] = blockwise(put, putting, axes, *arguments, numblocks=numblocks)
        layers[putting].annotations = one.annotations or None
        parts = task.args[0].substitute({key: (putting, *key[1:]) for key in task.dependencies})
        layers[final] = MaterializedLayer(
            {final: Task(final, Result.whole, TaskRef(result), parts)}
        )
        dependencies |= {result: set(), putting: needed, final: {result, putting}}
    return HighLevelGraph(layers, dependencies), taken
