"""The graph of a job: one task for each chunk, shared by all jobs that are computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count, product
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from dask._task_spec import DataNode, GraphNode, List, Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import Layer, MaterializedLayer

from dask_tiled.array.tasks import Block, Grid, like_numpy, read_box
from dask_tiled.engine.jobs import Array, Job
from dask_tiled.engine.tile_loop import run_jobs, run_jobs_on_array
from dask_tiled.model.description import Description
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, group_sizes
from dask_tiled.tiling.negotiation import tile_for

Key = tuple[Any, ...]

_companies: WeakValueDictionary[str, WeakValueDictionary[int, TileLayer]] = WeakValueDictionary()
"""The layers of each array by their ids: several may have the same name, and come and go."""
_lock = Lock()


class Pixels(NamedTuple):
    """The array that jobs work on, by its name."""

    name: str
    description: Description
    source: Source
    chunks: Chunks
    grid: Grid

    @property
    def numblocks(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(map(len, self.chunks))

    def merged(self, groups: Sequence[int]) -> Pixels:
        """Merge groups of neighbouring chunks: so many along each axis."""
        if max(groups, default=1) == 1:
            return self
        chunks = tuple(
            tuple(sum(axis[k : k + some]) for k in range(0, len(axis), some))
            for axis, some in zip(self.chunks, groups, strict=True)
        )
        name = "-".join(map(str, (self.name, *groups)))
        return self._replace(name=name, chunks=chunks, grid=Grid.of(chunks))


class Results(NamedTuple):
    """What becomes of the results of a job."""

    gone: tuple[int, ...]  # axes of the pixels that they do not have in the end
    tail: tuple[int, ...]  # lengths of the axes that they have beyond those of the pixels
    combine: Callable[[Sequence[Array], tuple[int, ...]], Array] | None
    """``combine(results, axes)`` reduces each of some results along axes, and all of them to
    one. Where it is missing, there is one chunk along the axes that are gone."""
    split_every: int  # so many of them are combined at once
    longer: int
    """So many chunks along navigation axes would better be one; 0 where they have to stay."""


class TileLayer(Layer):
    """One job on the chunks of one array, and what its results are combined to.

    When dask culls a graph it tells each layer all keys of the graph. Jobs on the same array find
    each other by that, and give the same task under the same key: a chunk is read once for all.
    """

    def __init__(
        self,
        name: str,
        pixels: Pixels,
        job: Job,
        results: Results,
        annotations: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(annotations)
        self.name = name
        self.pixels = pixels
        self.job = job
        self.results = results
        self.kept = tuple(axis for axis in range(len(pixels.chunks)) if axis not in results.gone)
        with _lock:
            self._company = _companies.setdefault(pixels.name, WeakValueDictionary())
        self._company[id(self)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return TileLayer, (self.name, self.pixels, self.job, self.results, self.annotations)

    def is_materialized(self) -> bool:
        """Tell that tasks are made when they are asked for."""
        return False

    def get_output_keys(self) -> set[Key]:
        """Give the keys of all results."""
        kept = (range(self.pixels.numblocks[axis]) for axis in self.kept)
        return set(product([self.name], *kept, *([0] for _ in self.results.tail)))

    @cached_property
    def has_legacy_tasks(self) -> bool:
        """Ask for all keys of a graph when it is culled: dask lists them for legacy tasks alone."""
        return True

    @cached_property
    def first(self) -> Key:
        """Key of the first result."""
        return (self.name, *(0 for _ in (*self.kept, *self.results.tail)))

    @cached_property
    def job_key(self) -> str:
        """Key of the job, which is that of all layers with the same job."""
        return f"job-{tokenize(self.job)}"

    @cached_property
    def _alone(self) -> dict[Key, GraphNode]:
        """The tasks for all results, where dask wants them without having culled the graph."""
        return self._tasks(self.get_output_keys(), ())

    def __iter__(self) -> Iterator[Key]:
        return iter(self._alone)

    def __getitem__(self, key: Any) -> GraphNode:
        return self._alone[key]

    def __len__(self) -> int:
        return len(self._alone)

    def cull(  # type: ignore[override]
        self, keys: set[Key], all_hlg_keys: Sequence[Key]
    ) -> tuple[Layer, dict[Key, set[Key]]]:
        """Make the tasks for some results, in the company of all other keys of the graph.

        ``keys`` holds those of other layers, too.
        """
        own = keys & self.get_output_keys()
        tasks = self._tasks(own, all_hlg_keys) if own else {}
        return MaterializedLayer(tasks, annotations=self.annotations), {
            key: set(task.dependencies) for key, task in tasks.items()
        }

    def _tasks(self, keys: Iterable[Key], all_keys: Any) -> dict[Key, GraphNode]:
        reading = Reading(self._present(all_keys), all_keys)
        token = tokenize(self.name, reading.pixels.name)
        gone, combine = self.results.gone, self.results.combine
        number = reading.jobs.index(self.job_key)
        nodes = [*reading.values]
        for key in keys:
            blocks, place = reading.chunks(
                block_of(key[1:], self.kept, len(self.pixels.chunks)), gone
            )
            parts = [(f"part-0-{token}", *block) for block in blocks]
            parts = parts if len(blocks) > 1 else [key]
            for part, block in zip(parts, blocks, strict=True):
                run, shared = reading.tasks(block)
                nodes += *shared, Task(part, result_of, run, number, gone, combine, place)
            nodes += self._combined(key, parts, token)
        tasks: dict[Any, GraphNode] = {node.key: node for node in nodes}
        return tasks

    def _present(self, all_keys: Any) -> list[TileLayer]:
        """Find the layers of the same array that are in the graph, in a fixed order."""
        others = [layer() for layer in self._company.valuerefs()]  # other threads may add some
        there = {
            layer.name: layer for layer in others if layer is not None and layer.first in all_keys
        }
        there[self.name] = self
        return [there[name] for name in sorted(there)]

    def _combined(self, key: Key, parts: list[Key], token: str) -> Iterator[Task]:
        """Combine results until there is one."""
        combine, some = self.results.combine, self.results.split_every
        for level in count(1):
            if len(parts) == 1:
                return
            groups = [parts[k : k + some] for k in range(0, len(parts), some)]
            parts = [(f"part-{level}-{token}", *group[0][1:]) for group in groups]
            parts = parts if len(groups) > 1 else [key]
            for part, group in zip(parts, groups, strict=True):
                yield Task(part, combined, combine, *map(TaskRef, group))


class Reading:
    """One pass over the chunks of an array, for all jobs that are computed together."""

    def __init__(self, layers: Sequence[TileLayer], all_keys: Any) -> None:
        self._fine = layers[0].pixels
        self._groups = _groups(layers, all_keys)
        self.pixels = self._fine.merged(self._groups)
        self._numblocks = self.pixels.numblocks
        jobs = {layer.job_key: layer.job for layer in layers}
        self.jobs = list(jobs)
        self.values: list[GraphNode] = [DataNode(f"source-{self.pixels.name}", self.pixels.source)]
        self.values += (DataNode(key, job) for key, job in jobs.items())
        description, chunks = self.pixels.description, self.pixels.chunks
        requests = [job.request for job in jobs.values()]
        self._shape = tile_for(description, requests, chunks)
        self._name = f"tiles-{tokenize(self.pixels.name, *jobs)}"
        self._all_keys = all_keys
        self._shared = len(layers) > 1

    def chunks(self, block: Block, gone: tuple[int, ...]) -> tuple[list[Block], tuple[slice, ...]]:
        """List the chunks that are read for a block of results, and tell where it lies in them.

        Nothing is told of where if it is all of them.
        """
        numbers, place = [], []
        for axis, (number, some) in enumerate(zip(block, self._groups, strict=True)):
            numbers.append([number // some])
            if axis in gone:
                numbers[-1] = list(range(self._numblocks[axis]))
                continue
            edges = self._fine.grid.axes[axis]
            begin = edges[number - number % some][0]
            place.append(slice(*(position - begin for position in edges[number])))
        return list(product(*numbers)), tuple(place) if self.pixels is not self._fine else ()

    def tasks(self, block: Block) -> tuple[Task | TaskRef, list[Task]]:
        """Do all jobs on a chunk: in a task, or by one of those that several layers share."""
        key: Any = (self._name, *block)
        pixels: Any = (self.pixels.name, *block)
        source, *jobs = (TaskRef(node.key) for node in self.values)
        box = self.pixels.grid.box(block)
        nav_shape = self.pixels.grid.shape[: self.pixels.description.nav_ndim]
        values = box, nav_shape, self._shape, List(*jobs)
        shared = []
        run = Task(key, run_jobs, source, *values)
        if pixels in self._all_keys:
            shared.append(Task(pixels, read_box, source, box))
            run = Task(key, run_jobs_on_array, TaskRef(pixels), *values)
        return (TaskRef(key), [*shared, run]) if self._shared else (run, shared)


def _groups(layers: Sequence[TileLayer], all_keys: Any) -> tuple[int, ...]:
    """Say how many chunks are read as one along each axis: what somebody wants and all allow."""
    pixels = layers[0].pixels
    nav_ndim, numblocks = pixels.description.nav_ndim, pixels.numblocks
    longer = [layer.results.longer for layer in layers]
    number = max(longer) if all(longer) else 1
    keys = product([pixels.name], *map(range, numblocks))
    if number > 1 and any(key in all_keys for key in keys):  # somebody wants them as they are
        number = 1
    return group_sizes(numblocks[:nav_ndim], number) + (1,) * (len(numblocks) - nav_ndim)


def block_of(numbers: Sequence[int], kept: Sequence[int], ndim: int) -> Block:
    """Give the position of the chunk that a result comes from: 0 along axes that are not kept."""
    block = [0] * ndim
    for axis, number in zip(kept, numbers, strict=False):
        block[axis] = number
    return tuple(block)


def result_of(
    results: Sequence[Array],
    number: int,
    gone: tuple[int, ...],
    combine: Callable[..., Array] | None,
    place: tuple[slice, ...],
) -> Array:
    """Take the result of one of the jobs, or a part of it, without the axes that are gone."""
    block = results[number]
    if combine is None or all(block.shape[axis] == 1 for axis in gone):
        block = block.squeeze(gone)
    else:
        block = combine([block], gone)
    return like_numpy(block[place].copy() if place else block)


def combined(combine: Callable[..., Array], *results: Array) -> Array:
    """Reduce results of several chunks to one."""
    return like_numpy(combine(results, ()))
