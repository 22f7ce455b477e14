"""Jobs on arrays: one task per chunk, results as a dask array."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize

from dask_tiled.engine.jobs import Job
from dask_tiled.graphs.aggregation import merged, squeezed
from dask_tiled.graphs.layers import on_chunks
from dask_tiled.model.indexing import Array
from dask_tiled.opened.building import has_tiles
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.plans.tasks import ChunkJob, run_job
from dask_tiled.tiling import machine
from dask_tiled.tiling.bases import Grid
from dask_tiled.tiling.negotiation import TilingRequest, tile_for, usual_tile_bytes


class Reducible(NamedTuple):
    """An array, and its number of navigation axes."""

    arr: da.Array
    nav_ndim: int


def job_array(
    operand: Reducible,
    job: Job,
    *,
    gone: tuple[int, ...] = (),
    tail: tuple[int, ...] = (),
    combine: Callable[..., Array] | None = None,
) -> da.Array:
    """Apply a job to every chunk of an array, and reduce the axes that are ``gone``.

    The results have further axes, of the lengths ``tail``. ``combine(results, axes)`` reduces
    each result along the axes, and merges all into one; without it, the reduced axes have one
    chunk.
    """
    arr, nav_ndim = operand
    name = f"tiled-{tokenize(arr.name, job, nav_ndim, gone)}"
    axes, new = tuple(range(arr.ndim)), tuple(range(arr.ndim, arr.ndim + len(tail)))
    chunks = tuple((1,) * len(axis) if k in gone else axis for k, axis in enumerate(arr.chunks))
    chunks += tuple((n,) for n in tail)
    value = ChunkJob(job, Grid.of(arr.chunks), nav_ndim, _tile_of(operand, job.request), gone)
    meta = np.empty((0,) * len(chunks), job.dtype)
    if not has_tiles():
        blocks = da.map_blocks(
            run_job, arr, value, new_axis=new, chunks=chunks, dtype=job.dtype, meta=meta, name=name
        )
        if combine is None:
            return blocks[tuple(0 if k in gone else slice(None) for k in range(blocks.ndim))]
        return _combined(blocks, gone, combine)
    graph = on_chunks(run_job, name, axes + new, arr, value, block_id=True, new_axes=new)
    blocks = da.Array(graph, name, chunks, meta=meta)
    if not gone:
        return blocks
    return _squeezed(blocks, gone) if combine is None else _combined(blocks, gone, combine)


def _combined(blocks: da.Array, gone: tuple[int, ...], combine: Callable[..., Array]) -> da.Array:
    """Combine the results of all chunks."""
    meta = np.empty((0,) * (blocks.ndim - len(gone)), blocks.dtype)
    reduce = partial(merged, combine=combine)
    return da.reduction(
        blocks, reduce, reduce, axis=gone, dtype=blocks.dtype, concatenate=False, meta=meta
    )


def _squeezed(blocks: da.Array, gone: tuple[int, ...]) -> da.Array:
    """Remove axes of length 1 without a list of tasks: there may be a million chunks."""
    axes = tuple(range(blocks.ndim))
    kept = tuple(axis for axis in axes if axis not in gone)
    name = f"squeeze-{blocks.name}"
    graph = on_chunks(squeezed, name, kept, blocks, gone)
    chunks = tuple(blocks.chunks[axis] for axis in kept)
    return da.Array(graph, name, chunks, meta=np.empty((0,) * len(chunks), blocks.dtype))


def _tile_of(operand: Reducible, request: TilingRequest) -> tuple[int, ...]:
    """Choose the tile shape: negotiated if possible, otherwise whole frames."""
    arr, nav_ndim = operand
    description = description_of(arr)
    if description is not None and description.nav_ndim == nav_ndim:
        return tile_for(description, [request], arr.chunks)
    largest = tuple(max(axis, default=0) for axis in arr.chunks)
    frames = math.prod(largest[:nav_ndim])
    sig = largest[nav_ndim:]
    nbytes = request.nbytes or usual_tile_bytes(machine.cache_bytes())
    depth = max(1, nbytes // max(1, math.prod(sig) * arr.dtype.itemsize))
    if request.by == "chunk":
        depth = frames
    return (max(1, min(depth, request.depth or depth, frames)), *sig)
