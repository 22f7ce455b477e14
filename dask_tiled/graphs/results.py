"""The final array: tasks write their chunks into it, so that nothing is concatenated.

dask's last step copies all chunks, one after the other. If it is replaced, a task writes its chunk
into the final array instead, and computes it there if nothing else needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from threading import Lock

import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.local import get_sync

from dask_tiled.graphs.aggregation import finished_later
from dask_tiled.graphs.layers import fused
from dask_tiled.graphs.limits import FEW_PIXELS, LEAST_FRAMES, LEAST_RESULT_PIXELS
from dask_tiled.graphs.names import (
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
from dask_tiled.graphs.schedulers import Get
from dask_tiled.model.indexing import Array, like_numpy
from dask_tiled.plans.lowering import Known
from dask_tiled.plans.plan import in_fewer_chunks, takes_time
from dask_tiled.plans.tasks import Block, Key, Nested, Room, pixels_of
from dask_tiled.reading.cluster import on_a_cluster
from dask_tiled.reading.reader import Source, pixels_in
from dask_tiled.tiling.bases import Chunks, Grid, ceil_div
from dask_tiled.tiling.machine import processors


class OutputBuffer:
    """Output buffer; absent on workers and after unpickling."""

    def __init__(self, shape: tuple[int, ...] | None = None) -> None:
        self._shape = None if on_a_cluster() else shape
        self._memory: dict[np.dtype, Array] = {}
        self._allocating = Lock()

    def part(self, grid: Grid, block_id: Block, dtype: np.dtype) -> Array | None:
        """Return the part of the buffer for a chunk."""
        if self._shape is None:
            return None
        with self._allocating:
            if dtype not in self._memory:
                self._memory[dtype] = np.empty(self._shape, dtype)
        return self._memory[dtype][tuple(slice(*ends) for ends in grid.box(block_id))]

    def room(self, grid: Grid, block_id: Block, dtype: np.dtype) -> Array | None:
        """Return the buffer of a chunk if it is C-contiguous, so that kernels can write into it."""
        part = self.part(grid, block_id, dtype)
        return part if part is not None and part.flags.c_contiguous else None

    def whole(self, chunks: Nested) -> Array:
        """Return the buffer if all chunks are parts of it; otherwise let dask concatenate them."""
        for memory in self._memory.values():
            if all(getattr(chunk, "base", None) is memory for chunk in flatten([chunks])):
                return memory
        return finalize(chunks)

    def __reduce__(self) -> tuple[type[OutputBuffer], tuple[()]]:
        return OutputBuffer, ()


def whole(source: Source, shape: tuple[int, ...], get: Get = get_sync) -> Array:
    """Read all pixels of a source into memory of their own; many frames in several threads."""
    pixels, inner = np.empty(shape, source.dtype), tuple((0, n) for n in shape[1:])
    frames = math.prod(shape[: source.layout.nav_ndim])
    count = min(frames // LEAST_FRAMES, processors()) if get is not get_sync else 1
    if count < 2 or takes_time(source):
        return like_numpy(pixels_in(source, tuple((0, n) for n in shape), pixels))
    starts = range(0, shape[0], ceil_div(shape[0], count))
    ends = zip(starts, (*starts[1:], shape[0]), strict=True)
    parts = [Task(a, pixels_in, source, ((a, b), *inner), pixels[a:b]) for a, b in ends]
    get({part.key: part for part in parts}, [*starts])
    return pixels


def put(
    result: OutputBuffer,
    grid: Grid,
    block_id: Block,
    chunk: Source | Array | Callable[[Room], Array],
) -> Array:
    """Read, compute or copy a chunk into its part of the buffer; return that part.

    A user's function may return anything: chunks of another shape are returned unchanged.
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
    """Return whether ``count`` chunks of pixels are read by one task."""
    return count == 1 or (math.prod(shape) <= FEW_PIXELS and not takes_time(source))


def concatenated(final: str, tasks: Iterable[Task], name: str, chunks: Chunks) -> dict[str, Layer]:
    """Build the layer ``name`` of some tasks, in C order, and the last step for its chunks.

    The tasks of large chunks write into the result.
    """
    made = {task.key: task for task in tasks}
    layers: dict[str, Layer] = {name: MaterializedLayer(made)}
    refs: dict[Key, object] = {key[1:]: TaskRef(key) for key in made if key[0] == name}
    last, shape = partial(Task, final, finalize), tuple(map(sum, chunks))
    if math.prod(shape) >= LEAST_RESULT_PIXELS:
        result, grid = f"result-{final}", Grid.of(chunks)
        layers[result] = MaterializedLayer({result: Task(result, OutputBuffer, shape)})
        last = partial(Task, final, OutputBuffer.whole, TaskRef(result))
        for place in refs:
            key = name, *place
            chunk = Task(None, finished_later, *made[key].args)
            made[key] = Task(key, put, TaskRef(result), grid, place, chunk)
    layers[final] = MaterializedLayer({final: last(_nested(refs))})
    return layers


def _nested(refs: Mapping[Key, object]) -> object:
    """Nest the chunks of an array, given in C order, in lists, as dask's last step has them."""
    for n in reversed(range(len(next(iter(refs))) or 1)):
        rows: dict[Key, list[object]] = {}
        for place, ref in refs.items():
            rows.setdefault(place[:n], []).append(ref)
        refs = {place: List(*row) for place, row in rows.items()}
    return refs[()]


def last_steps(graph: HighLevelGraph) -> dict[str, Task]:
    """Return dask's last steps, by the names of the layers they concatenate."""
    found = dict[str, Task]()
    for final, layer in graph.layers.items():
        task = layer.get(final) if isinstance(layer, MaterializedLayer) else None
        if isinstance(task, Task) and task.func is finalize and len(task.args) == 1:
            name, *last = max(task.dependencies, default=("",))
            if _lists(task.args[0], (name,), last):
                found[name] = task
    return found


def _lists(parts: object, place: Key, last: Sequence[int]) -> bool:
    """Return whether nested lists are all chunks of an array in C order, the last one ``last``."""
    if not last:
        return isinstance(parts, TaskRef) and parts.key == place
    if not isinstance(parts, List) or len(parts.args) != last[0] + 1:
        return False
    return all(_lists(part, (*place, k), last[1:]) for k, part in enumerate(parts.args))


def _mapped(graph: HighLevelGraph, name: str, known: Mapping[str, Known]) -> Known | None:
    """Return the pixels that a user's function is mapped over; results usually have their shape."""
    layer: Layer | None = graph.layers[name]
    annotations = {**(graph.layers[name].annotations or {})}
    while isinstance(layer, Blockwise) and not layer.new_axes:
        alike = [str(value) for value, index in layer.indices if index == layer.output_indices]
        for work in map(known.get, alike):
            if work is not None and work.recipe.step is None:
                return work.but(annotated=(annotations,))
        layer = next((graph.layers[x] for x in alike if x in graph.layers), None)
    return None


def put_together(
    graph: HighLevelGraph,
    known: Mapping[str, Known],
    steps: Mapping[str, Task],
    unseen: Collection[str],
    *,
    merging: bool,
) -> tuple[HighLevelGraph, dict[str, Known]]:
    """Replace dask's last steps: tasks of known pixels write into the result.

    ``unseen`` layers have no other consumers; ``merging`` gives small chunks of them fewer tasks.
    The second result holds the computations that can run in place, under new names.
    """
    taken = dict[str, Known]()
    layers: dict[str, Layer] = {**graph.layers}
    dependencies = {**graph.dependencies}
    for name, task in steps.items():
        final, reads = task.key, graph.layers[name]
        work = known.get(name) or _mapped(graph, name, known)
        chunks = None if work is None else work.made_chunks
        if work is None or chunks is None:
            continue
        if math.prod(map(len, chunks)) != len(task.dependencies):  # some chunks are empty
            continue
        alone = name in unseen and isinstance(reads, Blockwise) and reads.task.func is pixels_of
        shape, axes = tuple(map(sum, chunks)), tuple(range(len(chunks)))
        few = is_one_task(work.recipe.source, shape, len(task.dependencies))
        if alone and few and not graph.dependencies[name]:
            # Usually a frame: one task, neither concatenated nor optimised by dask.
            read = Task(final, whole, work.recipe.source, shape)
            layers[final] = MaterializedLayer({final: read}, fused(*work.annotated) or None)
            dependencies[final] = set()
            del layers[name], dependencies[name]
            continue
        if math.prod(shape) < LEAST_RESULT_PIXELS:
            continue
        in_place = not work.recipe.is_read and work.recipe.view.is_in_order
        in_place = in_place and name in unseen and name in known
        own = ""
        if (in_place or alone) and merging and work.recipe.job is None:
            (fewer,) = in_fewer_chunks({name: work}, {name}).values()
            if fewer.chunks != work.chunks and fewer.made_chunks is not None:
                # Workers may still hold chunks of another graph: merged ones get other names.
                work, chunks, own = fewer, fewer.made_chunks, f"-{tokenize(fewer.grid)}"
        result, putting = f"result-{final}", f"put-{final}{own}"
        if in_place:
            name = f"{name}-here{own}"  # noqa: PLW2901 - another array than the layer itself
            taken[name] = work.but(name=name)
        given: tuple[object, object] = name, axes
        numblocks = {name: tuple(map(len, chunks))}
        needed = {result, name}
        if alone and isinstance(reads, Blockwise):
            given, numblocks = reads.indices[0], {}
            needed = {result, *graph.dependencies[name]}
        place = Grid.of(chunks), None, ArrayBlockIdDep(chunks), axes
        arguments = TaskRef(result), None, *place, *given
        layers[result] = MaterializedLayer({result: Task(result, OutputBuffer, shape)})
        layers[putting] = blockwise(put, putting, axes, *arguments, numblocks=numblocks)
        layers[putting].annotations = fused(*work.annotated) or None
        places = product(*map(range, map(len, chunks)))
        parts = _nested({k: TaskRef((putting, *k)) for k in places})
        layers[final] = MaterializedLayer(
            {final: Task(final, OutputBuffer.whole, TaskRef(result), parts)}
        )
        dependencies |= {result: set(), putting: needed, final: {result, putting}}
    return HighLevelGraph(layers, dependencies), taken
