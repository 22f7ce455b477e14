"""Computation of a chunk: choose the fastest sinks, and feed each tile to all while it is cached.

If all sinks accept frames, they get the bytes of files in place, and no tile is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np

from dask_tiled.engine.evaluation import (
    Computation,
    ProductSink,
    StageSink,
    ValueSink,
    VectorSink,
    Weighting,
    weighted,
)
from dask_tiled.engine.folding import FrameSink, are_adjacent, can_fold, together
from dask_tiled.engine.jobs import Chunk, Sink, TileInfo
from dask_tiled.engine.limits import LEAST_RUN_PIXELS, SHARED_BYTES
from dask_tiled.engine.vectors import NoPrimitive
from dask_tiled.model.indexing import Array, Box, Index, c_order
from dask_tiled.reading.planning import Ranges
from dask_tiled.reading.ranges import ReadRanges
from dask_tiled.reading.reader import Reader, Source, Workspace


class FedSink(NamedTuple):
    """A sink, and the tiles it is fed."""

    sink: Sink
    tile_shape: tuple[int, ...]
    """Frames, then signal axes."""
    depth: int | None = None
    """Maximum number of frames per call."""


Why = str
"""Reason why a chunk cannot be computed on tiles."""


def begin(job: Computation, chunk: Chunk) -> FedSink | Why:
    """Return the fastest sink for a chunk; the reason if a primitive is missing."""
    try:
        made = _sink_of(job, chunk)
    except NoPrimitive as missing:
        return str(missing)
    return FedSink(made, made.tile_shape())


def obstacle(job: Computation, chunk: Chunk) -> Why | None:
    """Return why a chunk has no sink; None if it has one. Nothing is compiled."""
    job = weighted(job, chunk) or job
    is_weighted = isinstance(job.end, Weighting)
    if is_weighted and job.program.is_read:
        return None
    try:
        job.vectors(chunk.dtype if is_weighted or _is_one(job, chunk) else None)
    except NoPrimitive as missing:
        return str(missing)
    return None


def _is_one(job: Computation, chunk: Chunk) -> bool:
    """Return whether a program runs on the vectors of one source."""
    return len(job.program.sources) == 1 and can_fold(chunk.dtype)


def _sink_of(job: Computation, chunk: Chunk) -> ProductSink | ValueSink | VectorSink | StageSink:
    job = weighted(job, chunk) or job
    if isinstance(job.end, Weighting):
        if job.program.is_read:
            return ProductSink(job.end, chunk)
        return ValueSink(job, job.end, chunk)
    return VectorSink(job, chunk) if _is_one(job, chunk) else StageSink(job, chunk)


def run(
    pixels: Source | Array, chunk: Chunk, nav_shape: tuple[int, ...], shown: Sequence[FedSink]
) -> list[Array]:
    """Feed a chunk to all sinks, in tiles that suit them, and return their results."""
    sinks = [(one.sink, one.depth) for one in shown]
    show_tiles(pixels, chunk, nav_shape, tile_for(chunk, shown), sinks)
    return [one.sink.result() for one in shown]


def tile_for(chunk: Chunk, shown: Sequence[FedSink]) -> tuple[int, ...]:
    """Return the shape of tiles that suits all sinks: frames, then signal axes."""
    shapes = [one.tile_shape for one in shown]
    depth = max(shape[0] for shape in shapes)
    if depth < math.prod(chunk.nav_shape):
        depth = min(shape[0] for shape in shapes)
    same = all(shape[1:] == shapes[0][1:] for shape in shapes)
    return (depth, *(shapes[0][1:] if same else chunk.sig_shape))


def show_tiles(
    pixels: Source | Array,
    chunk: Chunk,
    nav_shape: tuple[int, ...],
    tile_shape: tuple[int, ...],
    sinks: Sequence[tuple[Sink, int | None]],
) -> None:
    """Feed a chunk to sinks, tile by tile (frames, then signal axes); sinks may limit the frames.

    Tiles of a source are decoded into one buffer, unless they can be viewed in place.
    """
    parts = list(parts_of(chunk.sig_shape, tile_shape[1:]))
    with ExitStack() as stack:
        workspace = stack.enter_context(Workspace())
        for sink, _ in sinks:
            if isinstance(sink, StageSink):
                stack.enter_context(sink.workspace)
        if isinstance(pixels, Source):
            reader = Reader(pixels, chunk.box, workspace, parts if len(parts) > 1 else None)
            if len(parts) == 1 and fold_events(reader, [sink for sink, _ in sinks]):
                return
            shown = list(_joined(sinks))
            if len(parts) == 1 and fold_windows(reader, [sink for sink, _ in shown]):
                return
            buffer = cache(partial(np.empty, math.prod(tile_shape), chunk.dtype))
        else:
            shown = list(_joined(sinks))
            frames = np.ascontiguousarray(pixels).reshape(
                math.prod(chunk.nav_shape), *chunk.sig_shape
            )
        axes = [np.arange(*bounds) for bounds in chunk.box[: chunk.nav_ndim]]
        places = c_order(axes, nav_shape)
        for first in range(0, len(places), tile_shape[0]):
            span = slice(first, min(first + tile_shape[0], len(places)))
            for k, part in enumerate(parts):
                shape = (span.stop - first, *(b - a for a, b in part))
                if isinstance(pixels, Source):
                    make = partial(_beginning, buffer)
                    tile = reader.tile(first, span.stop, k, make).reshape(shape)
                else:
                    tile = np.ascontiguousarray(frames[(span, *(slice(*ends) for ends in part))])
                _show(shown, tile, first, places[span], chunk.origin(part))


def _joined(sinks: Sequence[tuple[Sink, int | None]]) -> Iterator[tuple[Sink, int | None]]:
    """Merge sinks with equal keys that accept any number of frames at once."""
    several: dict[Hashable, list[FrameSink]] = {}
    products = {sink.alike: sink for sink, _ in sinks if isinstance(sink, ProductSink)}
    in_pairs = next((sink for sink in products.values() if sink.in_pairs), None)
    for sink, depth in sinks:
        alike = sink.alike if isinstance(sink, FrameSink) and depth is None else None
        if in_pairs is not None and isinstance(sink, VectorSink) and sink.adds_frame:
            several.setdefault(in_pairs.alike, []).append(sink.as_product())
        elif isinstance(sink, FrameSink) and alike is not None:
            several.setdefault(alike, []).append(sink)
        else:
            yield sink, depth
    for group in several.values():
        yield group[0] if len(group) == 1 else group[0].joined(group), None


def _beginning(buffer: Callable[[], Array], shape: tuple[int, ...]) -> Array:
    return buffer()[: math.prod(shape)].reshape(shape)


def _show(
    sinks: Sequence[tuple[Sink, int | None]],
    tile: Array,
    first: int,
    places: Index,
    origin: Sequence[int],
) -> None:
    """Feed a tile to all sinks, in parts where a sink limits the frames."""
    tile = tile.view()
    tile.flags.writeable = False
    for sink, depth in sinks:
        for start in range(0, len(tile), depth or len(tile)):
            part = tile[start : start + (depth or len(tile))]
            frames = places[start : start + len(part)]
            sink.take(
                part,
                first + start,
                TileInfo((int(frames[0]), *origin), part.shape, frames),
            )


def parts_of(shape: Sequence[int], tile: Sequence[int]) -> Iterator[Box]:
    """Yield the parts of the signal axes that tiles cover."""
    axes = (
        [(start, min(start + size, length)) for start in range(0, length, size or 1)] or [(0, 0)]
        for length, size in zip(shape, tile, strict=True)
    )
    return product(*axes)


def fold_windows(reader: Reader, sinks: Sequence[Sink]) -> bool:
    """Fold a chunk if all sinks are folds of unconverted pixels; return whether it was possible."""
    folds = [sink for sink in sinks if isinstance(sink, FrameSink)]
    if len(folds) < len(sinks) or not take_windows(reader.source, reader.ranges, folds):
        return False
    conversion = reader.source.conversion
    pieces = [piece for piece in reader.ranges if isinstance(piece, ReadRanges)]
    units = {id(piece.units): piece.units for piece in pieces}.values()
    # Every frame is covered: units that hold no more pixels than a frame, all together, are
    # disjoint.
    if sum(unit.count for unit in units) == math.prod(reader.region.shape[1:]):
        for fold in folds:
            fold.expect(units)
    fed = together(folds, pieces)
    limit = fed[0].window_bytes if len(fed) == 1 else SHARED_BYTES
    at_once = fed[0].at_once if len(fed) == 1 else None
    for window in reader.windows(limit, at_once=at_once):
        for fold in fed:
            fold.take_window(window)
    for fold in folds:
        fold.fill(reader.absent, conversion.fill_value)
    return True


def fold_events(reader: Reader, sinks: Sequence[Sink]) -> bool:
    """Sum the events of a chunk where all sinks add them up; return whether they were summed."""
    runs = reader.runs_of_events
    folds = [sink for sink in sinks if isinstance(sink, VectorSink) and sink.sums is not None]
    if runs is None or len(folds) < len(sinks):
        return False
    for fold in folds:
        for run in runs:
            reader.add(run, fold.target(run))
        fold.fill(reader.absent, reader.source.conversion.fill_value)
    return True


def take_windows(source: Source, ranges: Sequence[Ranges], folds: Sequence[FrameSink]) -> bool:
    """Return whether sinks can process the bytes of whole frames as they are in the files."""
    layout = source.layout
    exact = source.conversion.nothing and not (layout.partial or layout.overlapping)
    if not exact or not all(map(_has_long_runs, ranges)):
        return False
    if any(fold.needs_whole_frames for fold in folds):
        return False
    in_order = all(are_adjacent(x.units) for x in ranges if isinstance(x, ReadRanges))
    return in_order or not any(fold.needs_order for fold in folds)


def _has_long_runs(piece: Ranges) -> bool:
    """Return whether the runs of a piece are long enough to be folded in place."""
    if not isinstance(piece, ReadRanges):
        return False
    units = piece.units
    long = units.runs.length * units.decoder.pixels >= LEAST_RUN_PIXELS
    return units.pick is None and (long or are_adjacent(units))
