"""Tasks: the box and the function of each chunk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from dask_tiled.engine.jobs import Chunk, Job
from dask_tiled.engine.run import FedSink, run
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array, Box, like_numpy
from dask_tiled.model.layout import Layout
from dask_tiled.plans.limits import MOST_READ_FRAMES
from dask_tiled.reading.reader import Reader, Source, Workspace
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


def pixels_in(source: Source, box: Box, out: Array | None = None) -> Array:
    """Read the pixels of a box, in parts if it has very many frames."""
    with Workspace() as workspace:
        parts = _parts(source.layout, box)
        if parts is None:
            return Reader(source, box, workspace).whole(out)
        pixels = np.empty([b - a for a, b in box], source.dtype) if out is None else out
        for part in parts:
            place = tuple(
                slice(a - start, b - start) for (a, b), (start, _) in zip(part, box, strict=True)
            )
            Reader(source, part, workspace).whole(pixels[place])
        return pixels


def _parts(layout: Layout, box: Box) -> Iterator[Box] | None:
    """Split a box into parts of fewer frames, consecutive in C order.

    None if the frames are few, or if blocks can only be decoded whole: each is decoded once.
    """
    nav = box[: layout.nav_ndim]
    sizes = [b - a for a, b in nav]
    if math.prod(sizes) <= MOST_READ_FRAMES or layout.has_blocks:
        return None
    axis = next(k for k in range(len(sizes)) if math.prod(sizes[k + 1 :]) <= MOST_READ_FRAMES)
    steps = [1] * axis + [MOST_READ_FRAMES // math.prod(sizes[axis + 1 :])] + sizes[axis + 1 :]
    starts = (range(a, b, step) for (a, b), step in zip(nav, steps, strict=True))
    return (
        tuple((a, min(a + step, b)) for a, step, (_, b) in zip(corner, steps, nav, strict=True))
        + box[len(nav) :]
        for corner in product(*starts)
    )


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
