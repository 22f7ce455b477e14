"""The tasks of chunks: which box each has, and what it calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from dask_tiled.engine.jobs import Chunk, Job
from dask_tiled.engine.run import Shown, run
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array, Box
from dask_tiled.model.layout import Layout
from dask_tiled.reading.reader import Reader, Source, Workspace
from dask_tiled.tiling.bases import Grid

Block = tuple[int, ...]
"""Position of a chunk, counted in chunks."""
Key = tuple[Any, ...]
"""The name of a layer, and the position of a chunk in it."""
Tasks = Mapping[Key, object]
Nested = Array | list["Nested"]
"""Results of chunks, as dask passes them on."""
Label = int | str
"""What dask calls an axis in a layer."""
Function = Callable[..., Any]
"""A function of chunks."""
Kwargs = Mapping[str, Any]


def pixels_of(source: Source, grid: Grid, block_id: Block, out: Array | None = None) -> Array:
    """Read the pixels of a chunk: an array of its own, writeable and C-contiguous, or a scalar.

    Or they are read into ``out``, which is C-contiguous. It is no view of a mapped file, whose
    content nobody looks after once the task is done.
    """
    return like_numpy(pixels_in(source, grid.box(block_id), out))


def pixels_in(source: Source, box: Box, out: Array | None = None) -> Array:
    """Read the pixels of a box, part by part where the numbers of its frames take memory, too."""
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


MOST_FRAMES = 1 << 18
"""The numbers and offsets of so many frames take some 20 MiB."""


def _parts(layout: Layout, box: Box) -> Iterator[Box] | None:
    """Cut a box into parts of fewer frames, which follow one another in C order.

    None where they are few, or where blocks decode as a whole: each is decoded once.
    """
    nav = box[: layout.nav_ndim]
    sizes = [b - a for a, b in nav]
    if math.prod(sizes) <= MOST_FRAMES or layout.has_blocks:
        return None
    axis = next(k for k in range(len(sizes)) if math.prod(sizes[k + 1 :]) <= MOST_FRAMES)
    steps = [1] * axis + [MOST_FRAMES // math.prod(sizes[axis + 1 :])] + sizes[axis + 1 :]
    starts = (range(a, b, step) for (a, b), step in zip(nav, steps, strict=True))
    return (
        tuple((a, min(a + step, b)) for a, step, (_, b) in zip(corner, steps, nav, strict=True))
        + box[len(nav) :]
        for corner in product(*starts)
    )


class ChunkJob:
    """A job, and what has to be known of the array to do it on a chunk.

    It is a plain class, so that dask passes it on as one value and does not look inside.
    """

    def __init__(self, job: Job, grid: Grid, nav_ndim: int, tile_shape: tuple[int, ...]) -> None:
        self.job = job
        self.grid = grid
        self.nav_ndim = nav_ndim
        self.tile_shape = tile_shape


def run_job(pixels: Array, job: ChunkJob, block_id: Block) -> Array:
    """Do a job on the pixels of a chunk; axes that are gone have length 1."""
    nav_shape = job.grid.shape[: job.nav_ndim]
    box = job.grid.box(block_id[: pixels.ndim])
    chunk = Chunk(box, job.nav_ndim, pixels.dtype)
    shown = Shown(job.job.begin(chunk), job.tile_shape, job.job.request.depth)
    (found,) = run(pixels, chunk, nav_shape, [shown])
    return found


@dataclass(frozen=True, slots=True)
class Labelling:
    """A function that leaves chunks as they are; it carries what the array is labelled with."""

    axes: tuple[Axis | None, ...]
    units: str

    def __call__(self, chunk: Array) -> Array:
        """Return the chunk."""
        return chunk


def like_numpy(pixels: Array) -> Array:
    """Make a scalar of an array without axes, as numpy does with its results."""
    return pixels if pixels.ndim else pixels[()]
