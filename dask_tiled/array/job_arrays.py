"""Jobs on arrays: what they make of all chunks, as a dask array."""

from __future__ import annotations

import math
from functools import partial

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.tile_layer import Pixels, TileLayer, block_of, result_of
from dask_tiled.engine.jobs import Array, Job
from dask_tiled.engine.tile_loop import run_jobs_on_array
from dask_tiled.model.description import Description
from dask_tiled.reading.loader import Edges, Source
from dask_tiled.tiling import machine
from dask_tiled.tiling.negotiation import TilingRequest, negotiate
from dask_tiled.tiling.tile_shapes import usual_tile_bytes

Chunks = tuple[tuple[int, ...], ...]


def job_array(
    arr: da.Array,
    nav_ndim: int,
    job: Job,
    dtype: np.dtype,
    *,
    gone: tuple[int, ...] = (),
    tail: tuple[int, ...] = (),
    source: tuple[Description, Source] | None = None,
) -> da.Array:
    """Do a job on every chunk of an array.

    Parameters
    ----------
    arr : dask.array.Array
    nav_ndim : int
        How many of its axes are navigation axes.
    job : Job
    dtype : numpy.dtype
        Type of the results.
    gone : tuple of int
        Axes of which the results have one position for each chunk.
    tail : tuple of int
        Lengths of the axes that the results have beyond those of the array.
    source : tuple of (Description, Source), optional
        Where the chunks are read from; by default they are computed.

    Returns
    -------
    dask.array.Array
        With the axes of the array and the new ones. The axes that are gone are left out where each
        of them is one chunk.
    """
    whole = all(len(arr.chunks[axis]) == 1 for axis in gone)
    kept = tuple(axis for axis in range(arr.ndim) if not (whole and axis in gone))
    chunks = tuple(
        (1,) * len(arr.chunks[axis]) if axis in gone else arr.chunks[axis] for axis in kept
    )
    chunks += tuple((n,) for n in tail)
    meta = np.empty((0,) * len(chunks), dtype)
    name = f"tiled-{tokenize(arr.name, job, nav_ndim, kept)}"
    if source is None:
        edges = tuple(map(Edges, arr.chunks))
        tile = _tile_of(arr, nav_ndim, job.request)
        return da.map_blocks(
            _run_on_block,
            arr,
            job,
            edges,
            nav_ndim,
            tile,
            kept,
            chunks=chunks,
            drop_axis=[axis for axis in range(arr.ndim) if axis not in kept],
            new_axis=list(range(len(kept), len(chunks))),
            dtype=dtype,
            meta=meta,
            name=name,
        )
    description, values = source
    tile_shape = partial(_tile_shape, description, arr.chunks)
    pixels = Pixels(arr.name, values, nav_ndim, arr.numblocks, tile_shape)
    layer = TileLayer(name, pixels, job, kept, len(tail))
    return da.Array(HighLevelGraph({name: layer}, {name: set()}), name, chunks, meta=meta)


def _tile_shape(
    description: Description, chunks: Chunks, requests: list[TilingRequest]
) -> tuple[int, ...]:
    return negotiate(description, requests, chunks=chunks).tile_shape


def _tile_of(arr: da.Array, nav_ndim: int, request: TilingRequest) -> tuple[int, ...]:
    """Choose tiles of whole frames for an array of which nothing is known but its chunks."""
    largest = tuple(map(max, arr.chunks))
    frames = math.prod(largest[:nav_ndim])
    sig = largest[nav_ndim:]
    nbytes = request.nbytes or usual_tile_bytes(machine.cache_bytes())
    depth = max(1, nbytes // max(1, math.prod(sig) * arr.dtype.itemsize))
    if request.by == "chunk":
        depth = frames
    return (max(1, min(depth, request.depth or depth, frames)), *sig)


def _run_on_block(
    pixels: Array,
    job: Job,
    edges: tuple[Edges, ...],
    nav_ndim: int,
    tile_shape: tuple[int, ...],
    kept: tuple[int, ...],
    block_id: tuple[int, ...],
) -> Array:
    block = block_of(block_id, kept, len(edges))
    box = tuple(bounds[number] for bounds, number in zip(edges, block, strict=True))
    nav_shape = tuple(bounds.size for bounds in edges[:nav_ndim])
    gone = tuple(axis for axis in range(len(edges)) if axis not in kept)
    return result_of(run_jobs_on_array(pixels, box, nav_shape, tile_shape, [job]), 0, gone)
