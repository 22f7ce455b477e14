"""The graph of a job: one task for each chunk, shared by all jobs that are computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from dask._task_spec import DataNode, GraphNode, List, Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import Layer, MaterializedLayer

from dask_tiled.engine.jobs import Array, Job
from dask_tiled.engine.tile_loop import run_jobs, run_jobs_on_array
from dask_tiled.reading.loader import Source, decode, load
from dask_tiled.tiling.requests import TilingRequest

Key = tuple[Any, ...]

_layers: WeakValueDictionary[int, TileLayer] = WeakValueDictionary()
"""All layers there are, by their ids: several may have the same name, and come and go."""


class Pixels(NamedTuple):
    """The array that jobs work on.

    Attributes
    ----------
    name : str
        Its name.
    source : Source
    nav_ndim : int
        How many of its axes are navigation axes.
    numblocks : tuple of int
        Chunks along each axis.
    tile_shape : callable
        ``tile_shape(requests)`` gives the shape of tiles that suits several jobs.
    """

    name: str
    source: Source
    nav_ndim: int
    numblocks: tuple[int, ...]
    tile_shape: Callable[[list[TilingRequest]], tuple[int, ...]]

    def blocks(self) -> Iterable[tuple[int, ...]]:
        """List the positions of all chunks."""
        return product(*map(range, self.numblocks))


class TileLayer(Layer):
    """One job on the chunks of one array.

    When dask culls a graph it tells each layer all keys of the graph. Jobs on the same chunks find
    each other by that, and give the same task under the same key: a chunk is read once for all.

    Parameters
    ----------
    name : str
        Name of the array of the results.
    pixels : Pixels
    job : Job
    kept : tuple of int
        Axes of the pixels that the results have.
    new_axes : int
        Axes that the results have beyond them, of one chunk each.
    """

    def __init__(
        self, name: str, pixels: Pixels, job: Job, kept: tuple[int, ...], new_axes: int
    ) -> None:
        super().__init__()
        self.name = name
        self.pixels = pixels
        self.job = job
        self.kept = kept
        self.new_axes = new_axes
        _layers[id(self)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        values = self.name, self.pixels, self.job, self.kept, self.new_axes
        return TileLayer, values, {"annotations": self.annotations}

    def is_materialized(self) -> bool:
        """Tell that tasks are made when they are asked for."""
        return False

    def get_output_keys(self) -> set[Key]:
        """Give the keys of all results."""
        return {self._key(block) for block in self.pixels.blocks()}

    @cached_property
    def has_legacy_tasks(self) -> bool:
        """Ask for all keys of a graph when it is culled: dask lists them for legacy tasks alone."""
        return True

    @cached_property
    def _alone(self) -> dict[Key, GraphNode]:
        """The tasks for all results, where dask wants them without having culled the graph."""
        return self._tasks(self.pixels.blocks(), ())

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
        own = [key for key in keys if isinstance(key, tuple) and key[0] == self.name]
        tasks = self._tasks(map(self._block, own), all_hlg_keys) if own else {}
        return MaterializedLayer(tasks, annotations=self.annotations), {
            key: set(task.dependencies) for key, task in tasks.items()
        }

    def _tasks(self, blocks: Any, all_keys: Any) -> dict[Key, GraphNode]:
        layers = self._company(all_keys)
        names = [layer.name for layer in layers]
        shape = self.pixels.tile_shape([layer.job.request for layer in layers])
        gone = tuple(axis for axis in range(len(self.pixels.numblocks)) if axis not in self.kept)
        # Data of their own, which a cluster sends to each worker once.
        source = DataNode(f"source-{self.pixels.name}", self.pixels.source)
        jobs = [DataNode(f"job-{layer.name}", layer.job) for layer in layers]
        tasks: dict[Any, GraphNode] = {node.key: node for node in (source, *jobs)}
        shared = f"tiles-{tokenize(*names)}"
        for block in blocks:
            pixels, key, wanted = (self.pixels.name, *block), (shared, *block), self._key(block)
            values = [TaskRef(source.key), block, self.pixels.nav_ndim, shape]
            references = [TaskRef(job.key) for job in jobs]
            if pixels in all_keys:  # somebody wants them anyway
                tasks[pixels] = Task(pixels, pixels_of, TaskRef(source.key), block)
                values = [TaskRef(pixels), *values]
            run = run_jobs if len(values) == 4 else run_jobs_on_pixels
            if len(jobs) == 1:
                tasks[wanted] = Task(wanted, run_one, run, gone, *values, *references)
                continue
            tasks[key] = Task(key, run, *values, List(*references))
            number = names.index(self.name)
            tasks[wanted] = Task(wanted, result_of, TaskRef(key), number, gone)
        return tasks

    def _company(self, all_keys: Any) -> list[TileLayer]:
        """Find the layers that work on the same chunks, this one among them, in a fixed order."""
        others = [layer() for layer in _layers.valuerefs()]  # other threads may add some
        here = {
            layer.name: layer
            for layer in others
            if layer is not None
            and layer.pixels.name == self.pixels.name
            and layer.first in all_keys
        }
        here[self.name] = self
        return [here[name] for name in sorted(here)]

    @property
    def first(self) -> Key:
        """Key of the result of the first chunk."""
        return self._key((0,) * len(self.pixels.numblocks))

    def _key(self, block: tuple[int, ...]) -> Key:
        return (self.name, *(block[axis] for axis in self.kept), *(0,) * self.new_axes)

    def _block(self, key: Key) -> tuple[int, ...]:
        return block_of(key[1:], self.kept, len(self.pixels.numblocks))


def block_of(numbers: Sequence[int], kept: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Give the position of the chunk that a result comes from: 0 along axes that are not kept."""
    block = [0] * ndim
    for axis, number in zip(kept, numbers, strict=False):
        block[axis] = number
    return tuple(block)


def pixels_of(source: Source, block: tuple[int, ...]) -> Array:
    """Read a chunk, as the array itself does it."""
    return decode(load(source, block))


def result_of(results: Sequence[Array], number: int, gone: tuple[int, ...]) -> Array:
    """Take the result of one of the jobs, without axes of length 1 that are not kept."""
    return results[number].squeeze(gone)


def run_one(run: Callable[..., list[Array]], gone: tuple[int, ...], *values: Any) -> Array:
    """Do a job that is alone."""
    *values_, job = values
    return result_of(run(*values_, [job]), 0, gone)


def run_jobs_on_pixels(
    pixels: Array,
    source: Source,
    block: tuple[int, ...],
    nav_ndim: int,
    tile_shape: tuple[int, ...],
    jobs: Sequence[Job],
) -> list[Array]:
    """Do jobs on a chunk that is there already."""
    nav_shape = tuple(edges.size for edges in source.edges[:nav_ndim])
    return run_jobs_on_array(pixels, source.box(block), nav_shape, tile_shape, jobs)
