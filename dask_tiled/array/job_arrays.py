"""Jobs on arrays: what they make of all chunks, as a dask array."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask import config
from dask.base import tokenize
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dask_tiled.array.tasks import Grid, inherited, like_numpy
from dask_tiled.array.tile_layer import Pixels, Results, TileLayer, block_of, result_of
from dask_tiled.engine.jobs import Array, Job
from dask_tiled.engine.tile_loop import run_jobs_on_array
from dask_tiled.tiling import machine
from dask_tiled.tiling.negotiation import TilingRequest, usual_tile_bytes

SMALL_RESULTS = 1 << 20
"""Results of so many bytes stay in the cache, however many there are."""
RESULTS_READ = 32
"""So many times the bytes of its results a chunk should have, as long as no thread goes without."""

ROOT = "dask-tiled"
"""A layer without tasks below all jobs: dask fuses what has none before it could find others."""


class Reducible(NamedTuple):
    """An array and what is known of it."""

    arr: Any
    nav_ndim: int  # how many of its axes are navigation axes
    pixels: Pixels | None = None  # where its chunks are read from; without it they are computed


def job_array(
    x: Reducible,
    job: Job,
    *,
    gone: tuple[int, ...] = (),
    tail: tuple[int, ...] = (),
    combine: Callable[..., Array] | None = None,
    split_every: Any = None,
) -> da.Array:
    """Do a job on every chunk of an array, and reduce the axes that are ``gone``.

    The results have further axes, of the lengths ``tail``. ``combine(results, axes)`` reduces each
    of some results along axes, and all of them to one; without it, one chunk is all that is gone.
    """
    arr, nav_ndim, pixels = x
    some = split_every or config.get("split_every", 4)
    some = max(2, math.prod(some.values()) if isinstance(some, dict) else int(some))
    name = f"tiled-{tokenize(arr.name, job, nav_ndim, gone, combine, some)}"
    if pixels is None:
        return _of_blocks(x, job, Results(gone, tail, combine, some, 0), name)
    results = Results(gone, tail, combine, some, 0)
    longer = _longer(pixels, job, results)
    layer = TileLayer(name, pixels, job, results._replace(longer=longer), inherited(arr))
    chunks = tuple(arr.chunks[axis] for axis in layer.kept) + tuple((n,) for n in tail)
    meta = np.empty((0,) * len(chunks), job.dtype)
    graph = HighLevelGraph({name: layer, ROOT: MaterializedLayer({})}, {name: {ROOT}, ROOT: set()})
    return da.Array(graph, name, chunks, meta=meta)


def _longer(pixels: Pixels, job: Job, results: Results) -> int:
    """Tell how many chunks had better be one: results take long to write and to combine, too.

    It is 0 where chunks must stay as they are: somebody wants all of one at once, or it is not
    little that comes of each.
    """
    largest, gone = tuple(map(max, pixels.chunks)), {*results.gone}
    kept = (n for axis, n in enumerate(largest) if axis not in gone)
    nbytes = math.prod((*kept, *results.tail)) * job.dtype.itemsize
    is_total = results.combine is not None and {*range(pixels.description.nav_ndim)} <= gone
    if job.request.by == "chunk" or (nbytes > SMALL_RESULTS and not is_total):
        return 0
    read = max(1, math.prod(largest)) * pixels.description.dtype.itemsize
    wanted = -(-RESULTS_READ * nbytes // read) if nbytes > SMALL_RESULTS else 1
    return min(wanted, -(-math.prod(pixels.numblocks) // machine.thread_count()))


def _of_blocks(x: Reducible, job: Job, results: Results, name: str) -> da.Array:
    """Do a job on the chunks of an array that is computed."""
    arr, nav_ndim, _ = x
    gone, tail, combine, split_every, _ = results
    dropped = gone if combine is None else ()
    kept = tuple(axis for axis in range(arr.ndim) if axis not in dropped)
    chunks = tuple((1,) * arr.numblocks[k] if k in gone else arr.chunks[k] for k in kept)
    chunks += tuple((n,) for n in tail)
    blocks = da.map_blocks(
        _run_on_block,
        arr,
        job,
        Grid.of(arr.chunks),
        nav_ndim,
        _tile_of(arr, nav_ndim, job.request),
        kept,
        chunks=chunks,
        drop_axis=list(dropped),
        new_axis=list(range(len(kept), len(chunks))),
        dtype=job.dtype,
        meta=np.empty((0,) * len(chunks), job.dtype),
        name=name,
    )
    if combine is None or not gone:
        return blocks
    reduce = partial(_reduce, combine=combine)
    meta = np.empty((0,) * (blocks.ndim - len(gone)), job.dtype)
    return da.reduction(
        blocks,
        reduce,
        reduce,
        axis=gone,
        dtype=job.dtype,
        split_every=split_every,
        concatenate=False,
        meta=meta,
    )


def _reduce(
    results: Any,
    axis: tuple[int, ...],
    keepdims: bool,  # noqa: FBT001 - dask's call
    combine: Callable[..., Array],
) -> Array:
    """Combine results of chunks as dask asks for it."""
    results = flatten(results, container=list) if isinstance(results, list) else [results]
    reduced = combine(list(results), axis)
    return np.expand_dims(reduced, axis) if keepdims else like_numpy(reduced)


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
    grid: Grid,
    nav_ndim: int,
    tile_shape: tuple[int, ...],
    kept: tuple[int, ...],
    block_id: tuple[int, ...],
) -> Array:
    axes = range(len(grid.axes))
    box = grid.box(block_of(block_id, kept, len(axes)))
    dropped = tuple(axis for axis in axes if axis not in kept)
    results = run_jobs_on_array(pixels, box, grid.shape[:nav_ndim], tile_shape, [job])
    return result_of(results, 0, dropped, None, ())
