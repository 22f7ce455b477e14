"""Work through a chunk tile by tile: every job sees each tile while it is in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from dask_tiled.engine.jobs import Array, Chunk, Job, Run, TileInfo
from dask_tiled.engine.streams import stream
from dask_tiled.model.selection import Index, c_order
from dask_tiled.reading.backends import Backend
from dask_tiled.reading.boxes import Box, cut_to
from dask_tiled.reading.loader import RawChunk, Source, load
from dask_tiled.reading.tile_reader import TileReader


def run_jobs(
    source: Source,
    block_id: tuple[int, ...],
    nav_ndim: int,
    tile_shape: tuple[int, ...],
    jobs: Sequence[Job],
) -> list[Array]:
    """Read one chunk, and do all jobs on it.

    Parameters
    ----------
    source : Source
    block_id : tuple of int
        Position of the chunk.
    nav_ndim : int
        How many of its axes are navigation axes.
    tile_shape : tuple of int
        Frames, then signal axes.
    jobs : sequence of Job
    """
    raw = load(source, block_id)
    chunk = Chunk(raw.box, nav_ndim, raw.conversion.dtype)
    runs = [job.begin(chunk) for job in jobs]
    with raw.backend() as backend:
        if not stream(raw, runs, backend):
            _loop(raw, nav_ndim, tile_shape, list(zip(runs, _depths(jobs), strict=True)), backend)
    return [run.result() for run in runs]


def run_jobs_on_array(
    pixels: Array,
    box: Box,
    nav_shape: tuple[int, ...],
    tile_shape: tuple[int, ...],
    jobs: Sequence[Job],
) -> list[Array]:
    """Do jobs on the pixels of a chunk, which are there already."""
    chunk = Chunk(box, len(nav_shape), pixels.dtype)
    runs = [job.begin(chunk) for job in jobs]
    some_runs = list(zip(runs, _depths(jobs), strict=True))
    places = c_order([np.arange(*bounds) for bounds in box[: len(nav_shape)]], nav_shape)
    frames = np.ascontiguousarray(pixels).reshape(len(places), *chunk.sig_shape)
    origin = [start for start, _ in box[len(nav_shape) :]]
    for first in range(0, len(frames), tile_shape[0]):
        some = slice(first, min(first + tile_shape[0], len(frames)))
        for part in _parts(chunk.sig_shape, tile_shape[1:]):
            tile = np.ascontiguousarray(frames[(some, *(slice(a, b) for a, b in part))])
            _step(
                some_runs,
                tile,
                first,
                places[some],
                [o + a for o, (a, _) in zip(origin, part, strict=True)],
            )
    return [run.result() for run in runs]


def _loop(
    raw: RawChunk,
    nav_ndim: int,
    tile_shape: tuple[int, ...],
    runs: Sequence[tuple[Run, int | None]],
    backend: Backend,
) -> None:
    """Decode tiles into one buffer, unless they can be looked at where they are."""
    region = raw.region()
    origin = [start for start, _ in raw.box[nav_ndim:]]
    sig_shape = [stop - start for start, stop in raw.box[nav_ndim:]]
    parts = list(_parts(sig_shape, tile_shape[1:]))
    cuts = [cut_to(region.sig, part) for part in parts]
    reader = TileReader(raw.layout, raw.conversion, region, backend, cuts)
    buffer = np.empty(math.prod(tile_shape), raw.conversion.dtype)
    for first in range(0, len(region.frames), tile_shape[0]):
        stop = min(first + tile_shape[0], len(region.frames))
        for k, part in enumerate(parts):
            shape = (stop - first, *(b - a for a, b in part))
            whole = (stop - first, *(cut.length for cut in cuts[k]))
            tile = reader.view(first, stop, k, whole)
            if tile is None:
                tile = buffer[: math.prod(shape)].reshape(whole)
                reader.read(first, stop, k, tile)
            at = [o + a for o, (a, _) in zip(origin, part, strict=True)]
            _step(runs, tile.reshape(shape), first, region.places[first:stop], at)


def _depths(jobs: Sequence[Job]) -> list[int | None]:
    """List the largest numbers of frames that jobs take at once."""
    return [job.request.depth for job in jobs]


def _step(
    runs: Sequence[tuple[Run, int | None]],
    tile: Array,
    first: int,
    places: Index,
    origin: Sequence[int],
) -> None:
    """Show a tile to all jobs: in parts to those that want no more frames at once."""
    tile = tile.view()
    tile.flags.writeable = False
    for run, depth in runs:
        for start in range(0, len(tile), depth or len(tile)):
            part = tile[start : start + (depth or len(tile))]
            some = places[start : start + len(part)]
            run.step(part, first + start, TileInfo((int(some[0]), *origin), part.shape, some))


def _parts(shape: Sequence[int], tile: Sequence[int]) -> Iterator[Box]:
    """Cut signal axes into those of the tiles."""
    axes = (
        [(start, min(start + size, length)) for start in range(0, length, size or 1)] or [(0, 0)]
        for length, size in zip(shape, tile, strict=True)
    )
    return product(*axes)
