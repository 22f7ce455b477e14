"""Tasks: the box and the function of each chunk."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_tiled.engine.jobs import Chunk, Job
from dask_tiled.engine.run import FedSink, run
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array, like_numpy
from dask_tiled.reading.reader import Source, pixels_in
from dask_tiled.tiling.bases import Grid

Block = tuple[int, ...]
"""Index of a chunk along each axis."""
Key = tuple[Any, ...]
"""A layer name, and the index of a chunk in it."""
Tasks = Mapping[Key, object]
Nested = Array | list["Nested"]
"""Results of chunks, in dask's nested lists."""
Label = int | str
"""dask's label of an axis in a layer."""
Function = Callable[..., Any]
"""A function of chunks."""
Kwargs = Mapping[str, Any]
Room = Callable[[np.dtype], Array | None]
"""Returns C-contiguous memory for pixels of a dtype, or None."""


def pixels_of(source: Source, grid: Grid, block_id: Block, out: Array | None = None) -> Array:
    """Read the pixels of a chunk: a new array, writeable and C-contiguous, or a scalar.

    ``out`` is filled if passed; it is C-contiguous. The result is never a view of a mapped file,
    which may change after the task.
    """
    return like_numpy(pixels_in(source, grid.box(block_id), out))


class ChunkJob:
    """A job, with the properties of the array that it needs on a chunk.

    It is a plain class, as dask does not traverse these.
    """

    def __init__(
        self,
        job: Job,
        grid: Grid,
        nav_ndim: int,
        tile_shape: tuple[int, ...],
        axes: tuple[int, ...] = (),
    ) -> None:
        self.job = job
        self.grid = grid
        self.nav_ndim = nav_ndim
        self.tile_shape = tile_shape
        self.axes = axes
        """Axes that have length 1 in the results."""

    @property
    def nbytes(self) -> int:
        """Bytes that a cluster is sent for the job; 0 if it cannot be pickled."""
        with suppress(Exception):  # whatever the functions of users raise
            return sent_bytes(self.job)
        return 0

    def begin(self, chunk: Chunk, room: Room | None = None) -> FedSink:
        """Begin the job on a chunk."""
        job: Any = self.job
        if room is not None:
            job = replace(job, out=room(job.dtype))
        tile = self.tile_shape
        if job.request.by == "chunk":
            tile = (math.prod(chunk.nav_shape), *chunk.sig_shape)
        return FedSink(job.begin(chunk), tile, job.request.depth)

    def on(self, grid: Grid) -> ChunkJob:
        """Return the job on other chunks of the array."""
        return ChunkJob(self.job, grid, self.nav_ndim, self.tile_shape, self.axes)


def sent_bytes(value: object) -> int:
    """Return the bytes of a pickled value, with its arrays, which are not copied."""
    import cloudpickle

    buffers: list[Any] = []
    size = len(cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append))
    return size + sum(buffer.raw().nbytes for buffer in buffers)


def run_job(pixels: Array, job: ChunkJob, block_id: Block) -> Array:
    """Run a job on the pixels of a chunk; reduced axes have length 1."""
    nav_shape = job.grid.shape[: job.nav_ndim]
    box = job.grid.box(block_id[: pixels.ndim])
    chunk = Chunk(box, job.nav_ndim, pixels.dtype)
    (found,) = run(pixels, chunk, nav_shape, [job.begin(chunk)])
    return found


@dataclass(frozen=True, slots=True)
class Labelling:
    """An identity function of chunks that carries axes and units."""

    axes: tuple[Axis | None, ...]
    units: str

    def __call__(self, chunk: Array) -> Array:
        """Return the chunk."""
        return chunk
