"""The functions that tasks call: load and decode a chunk, compute one of an expression."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy.typing as npt

from dask_tiled.engine.evaluation import evaluate
from dask_tiled.engine.programs import Program
from dask_tiled.model.indexing import Box
from dask_tiled.reading.reader import Reader, Workspace
from dask_tiled.reading.source import Source
from dask_tiled.tiling.grid import Grid

Array = npt.NDArray[Any]
Block = tuple[int, ...]
"""Position of a chunk, counted in chunks."""


class RawChunk(NamedTuple):
    """A chunk of which nothing is read yet."""

    source: Source
    box: Box


def load(source: Source, grid: Grid, block_id: Block) -> RawChunk:
    """Give one chunk. Nothing is read yet."""
    return RawChunk(source, grid.box(block_id))


def decode(raw: RawChunk) -> Array:
    """Make the pixels of a chunk: an array of its own, writeable and C-contiguous, or a scalar.

    Where the files hold the pixels just as they are wanted, it is a read-only view of mapped memory
    instead; on a cluster, where results are kept and sent, it never is.

    Raises
    ------
    StaleFileError
        A file has changed since it was opened.
    """
    source, box = raw
    with Workspace() as workspace:
        pixels = Reader(source, box, workspace).whole(view=not _on_a_cluster())
    return like_numpy(pixels)


def pixels_of(source: Source, grid: Grid, block_id: Block) -> Array:
    """Load one chunk and decode it."""
    return decode(load(source, grid, block_id))


def read_box(source: Source, box: Box) -> Array:
    """Decode a chunk of which the box is known."""
    return decode(RawChunk(source, box))


def compute(program: Program, grid: Grid, block_id: Block) -> Array:
    """Compute one chunk of an expression: an array of its own, C-contiguous, or a scalar."""
    return like_numpy(evaluate(program, grid.box(block_id)))


def like_numpy(pixels: Array) -> Array:
    """Make a scalar of an array without axes, as numpy does with its results."""
    scalar: Array = pixels[()]
    return pixels if pixels.ndim else scalar


def _on_a_cluster() -> bool:
    """Tell whether this is a task of a distributed worker."""
    worker = sys.modules.get("distributed.worker")
    if worker is None:
        return False
    try:
        worker.get_worker()
    except ValueError:
        return False
    return True
