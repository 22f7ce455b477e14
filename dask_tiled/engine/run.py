"""Work through a chunk: every sink sees each tile while it is in the cache.

Where all of them take frames, they get bytes of files as they lie, and no tile is ever made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np

from dask_tiled.engine.computations import Computation, Weighting
from dask_tiled.engine.evaluation import StageSink, VectorSink
from dask_tiled.engine.fold_for import fold_for
from dask_tiled.engine.folding import FoldSink, FrameSink, are_adjacent, can_fold
from dask_tiled.engine.jobs import Array, Chunk, Sink, TileInfo
from dask_tiled.engine.products import ProductSink, ValueSink, weighted
from dask_tiled.engine.vectors import NoPrimitive
from dask_tiled.model.blocks import BlockRange
from dask_tiled.model.indexing import Box, Index, c_order
from dask_tiled.reading.ranges import ReadRanges
from dask_tiled.reading.reader import Reader, Source, Workspace


class Shown(NamedTuple):
    """A sink, and the tiles that it is shown."""

    sink: Sink
    tile_shape: tuple[int, ...]
    """Frames, then signal axes."""
    depth: int | None = None
    """Most frames that are shown at once."""


def begin(job: Computation, chunk: Chunk) -> Shown | None:
    """Begin to compute a chunk in the way that is the fastest; None if there is no primitive."""
    fold = fold_for(job, chunk.nav_ndim)
    if fold is not None:
        sink = FoldSink(fold, chunk)
        return Shown(sink, sink.tile_shape())
    job = weighted(job, chunk) or job
    try:
        made = _sink_of(job, chunk)
    except NoPrimitive:
        return None
    return Shown(made, made.tile_shape())


def _sink_of(job: Computation, chunk: Chunk) -> ProductSink | ValueSink | VectorSink | StageSink:
    if isinstance(job.end, Weighting):
        if job.program.is_read:
            return ProductSink(job.end, chunk)
        return ValueSink(job, job.end, chunk)
    is_one = len(job.program.sources) == 1 and can_fold(chunk.dtype)
    return VectorSink(job, chunk) if is_one else StageSink(job, chunk)


def run(
    pixels: Source | Array, chunk: Chunk, nav_shape: tuple[int, ...], shown: Sequence[Shown]
) -> list[Array]:
    """Show a chunk to all sinks, by tiles that suit them, and return their results."""
    shapes = [one.tile_shape for one in shown]
    depth = max(shape[0] for shape in shapes)
    if depth < math.prod(chunk.nav_shape):
        depth = min(shape[0] for shape in shapes)
    same = all(shape[1:] == shapes[0][1:] for shape in shapes)
    tile = (depth, *(shapes[0][1:] if same else chunk.sig_shape))
    show_tiles(pixels, chunk, nav_shape, tile, [(one.sink, one.depth) for one in shown])
    return [one.sink.result() for one in shown]


def show_tiles(
    pixels: Source | Array,
    chunk: Chunk,
    nav_shape: tuple[int, ...],
    tile_shape: tuple[int, ...],
    sinks: Sequence[tuple[Sink, int | None]],
) -> None:
    """Show a chunk to sinks, tile by tile: frames, then signal axes; at most so many frames each.

    Tiles of a source are decoded into one buffer, unless they can be looked at where they are.
    """
    shown = list(_joined(sinks))
    parts = list(_parts(chunk.sig_shape, tile_shape[1:]))
    with Workspace() as workspace:
        if isinstance(pixels, Source):
            reader = Reader(pixels, chunk.box, workspace, parts)
            if len(parts) == 1 and fold_windows(reader, [sink for sink, _ in shown]):
                return
            buffer = cache(partial(np.empty, math.prod(tile_shape), chunk.dtype))
        else:
            frames = np.ascontiguousarray(pixels).reshape(
                math.prod(chunk.nav_shape), *chunk.sig_shape
            )
        axes = [np.arange(*bounds) for bounds in chunk.box[: chunk.nav_ndim]]
        places = c_order(axes, nav_shape)
        for first in range(0, len(places), tile_shape[0]):
            some = slice(first, min(first + tile_shape[0], len(places)))
            for k, part in enumerate(parts):
                shape = (some.stop - first, *(b - a for a, b in part))
                if isinstance(pixels, Source):
                    make = partial(_beginning, buffer)
                    tile = reader.tile(first, some.stop, k, make).reshape(shape)
                else:
                    tile = np.ascontiguousarray(frames[(some, *(slice(*ends) for ends in part))])
                _show(shown, tile, first, places[some], chunk.origin(part))


def _joined(sinks: Sequence[tuple[Sink, int | None]]) -> Iterator[tuple[Sink, int | None]]:
    """Put those together that can be worked for as one, and take any number of frames at once."""
    several: dict[Hashable, list[FrameSink]] = {}
    for sink, depth in sinks:
        alike = sink.alike if isinstance(sink, FrameSink) and depth is None else None
        if isinstance(sink, FrameSink) and alike is not None:
            several.setdefault(alike, []).append(sink)
        else:
            yield sink, depth
    for some in several.values():
        yield some[0] if len(some) == 1 else some[0].joined(some), None


def _beginning(buffer: Callable[[], Array], shape: tuple[int, ...]) -> Array:
    return buffer()[: math.prod(shape)].reshape(shape)


def _show(
    sinks: Sequence[tuple[Sink, int | None]],
    tile: Array,
    first: int,
    places: Index,
    origin: Sequence[int],
) -> None:
    """Show a tile to all jobs: in parts to those that want no more frames at once."""
    tile = tile.view()
    tile.flags.writeable = False
    for sink, depth in sinks:
        for start in range(0, len(tile), depth or len(tile)):
            part = tile[start : start + (depth or len(tile))]
            some = places[start : start + len(part)]
            sink.take(part, first + start, TileInfo((int(some[0]), *origin), part.shape, some))


def _parts(shape: Sequence[int], tile: Sequence[int]) -> Iterator[Box]:
    """Cut signal axes into those of the tiles."""
    axes = (
        [(start, min(start + size, length)) for start in range(0, length, size or 1)] or [(0, 0)]
        for length, size in zip(shape, tile, strict=True)
    )
    return product(*axes)


SHARED_BYTES = 4 << 20
"""So much is fetched at a time for several folds: it stays in the outer cache for all of them."""
LEAST_RUN = 64
"""Pixels of a run that are worth a call."""


def fold_windows(reader: Reader, sinks: Sequence[Sink]) -> bool:
    """Fold a chunk, where all jobs are folds and pixels stay as they are; tell whether it was."""
    folds = [sink for sink in sinks if isinstance(sink, FrameSink)]
    layout, conversion = reader.source.layout, reader.source.conversion
    exact = conversion.nothing and not (layout.partial or layout.overlapping)
    if len(folds) < len(sinks) or not exact or not all(map(_has_long_runs, reader.ranges)):
        return False
    if any(fold.needs_whole_frames for fold in folds):
        return False
    pieces = [piece for piece in reader.ranges if isinstance(piece, ReadRanges)]
    in_order = all(are_adjacent(piece.units) for piece in pieces)
    if not in_order and any(fold.needs_order for fold in folds):
        return False
    units = {id(piece.units): piece.units for piece in pieces}.values()
    # Every frame is covered. If all units together hold no more than a frame, none share a pixel.
    if sum(some.count for some in units) == math.prod(reader.region.shape[1:]):
        for fold in folds:
            fold.expect(units)
    for window in reader.windows(None if len(folds) == 1 else SHARED_BYTES):
        for fold in folds:
            fold.take_window(window)
    for fold in folds:
        fold.fill(reader.absent, conversion.fill_value)
    return True


def _has_long_runs(piece: ReadRanges | BlockRange) -> bool:
    """Tell whether runs of units are long enough to go through a file as it lies."""
    if isinstance(piece, BlockRange):
        return False
    units = piece.units
    long = units.runs.length * units.decoder.pixels >= LEAST_RUN
    return units.pick is None and (long or are_adjacent(units))
