"""Predict, before reading, the bytes that are fetched from files, and the memory it takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from dask_tiled.files.paths import is_url
from dask_tiled.model.blocks import MOST_BYTES, BlockRange, BlockRun
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.model.events import EventRun
from dask_tiled.model.indexing import Box, Cut, Index
from dask_tiled.model.layout import Layout
from dask_tiled.reading.buffered import ALIGNMENT
from dask_tiled.reading.correction_plans import CorrectionPlan
from dask_tiled.reading.limits import (
    BLOCK_RANGE_BYTES,
    BUFFERED_BYTES,
    CONVERTED_BYTES,
    EVENT_BYTES,
    FRAME_BYTES,
    KEPT_RESPONSES,
    MOST_BOX_CELLS,
    PLANNED_FRAMES,
)
from dask_tiled.reading.planning import Ranges, cut_to, frame_ranges, pieces_met, region_of
from dask_tiled.reading.ranges import ReadRanges
from dask_tiled.reading.reader import Source
from dask_tiled.remote.fetching import REQUEST_BYTES


class ReadPart(NamedTuple):
    """The part of a source that a task reads."""

    box: Box
    parts: tuple[Box, ...]
    """Boxes of the signal axes, one for each tile; empty if the box is read in one piece."""


class Amount(NamedTuple):
    """Bytes fetched from files, and bytes of the pixels that they decode to."""

    fetched: int
    decoded: int


def amount_of(source: Source, reads: Mapping[ReadPart, int]) -> Amount:
    """Count the bytes fetched and decoded by reads of a source, each with its number of repeats.

    Ranges are planned as by readers. Units are fetched frame by frame, so all reads of the same
    part of a frame are counted together; blocks are counted once for each read.
    """
    if source.layout.has_blocks:
        amounts = [
            (
                _of_blocks(source, read)
                or _of_ranges(_of_frames(source, read, _frames(source, read.box))),
                n,
            )
            for read, n in reads.items()
        ]
    else:
        groups = _by_parts(source, reads)
        amounts = [*chain.from_iterable(_by_frames(source, group) for group in groups)]
    return Amount(*(sum(amount[k] * n for amount, n in amounts) for k in (0, 1)))


def _by_parts(source: Source, reads: Mapping[ReadPart, int]) -> Iterable[Mapping[ReadPart, int]]:
    """Group reads by the part of the frames that they read."""
    groups: dict[object, dict[ReadPart, int]] = {}
    for read, times in reads.items():
        alike = read.parts, read.box[source.layout.nav_ndim :]
        groups.setdefault(alike, {})[read] = times
    return groups.values()


def _by_frames(source: Source, reads: Mapping[ReadPart, int]) -> Iterator[tuple[Amount, int]]:
    """Yield the bytes of reads that share a part of the frames, and how often they are read."""
    layout, first = source.layout, next(iter(reads))
    if len(layout.pieces) == 1 and not layout.selection.absent():  # all frames have equal ranges
        sizes = (([b - a for a, b in x.box[: layout.nav_ndim]], n) for x, n in reads.items())
        count = sum(math.prod(lengths) * times for lengths, times in sizes)
        frames = _frames(source, first.box)[:1]
        yield _of_ranges(_of_frames(source, first, frames)), count
        return
    waiting, count = list[Index](), 0
    for number, (read, times) in enumerate(reads.items(), 1):
        frames = _frames(source, read.box)
        waiting += [frames] * times
        count += len(frames) * times
        if count > PLANNED_FRAMES or number == len(reads):
            yield _of_ranges(_of_frames(source, first, np.concatenate(waiting))), 1
            waiting, count = [], 0


def _frames(source: Source, box: Box) -> Index:
    return region_of(source.layout, box).frames


def _of_frames(source: Source, read: ReadPart, frames: Index) -> Iterator[Ranges]:
    """Yield the ranges that readers fetch."""
    for cuts in _cuts_of(source, read):
        yield from frame_ranges(source.layout, frames, cuts)


def _cuts_of(source: Source, read: ReadPart) -> Iterator[Sequence[Cut]]:
    """Yield what readers fetch of frames: their parts, and the halos of corrections."""
    layout, corrections = source.layout, source.conversion.corrections
    sig = region_of(layout, read.box).sig
    for part in read.parts or (None,):
        cuts = sig if part is None else cut_to(sig, part)
        yield cuts
        if corrections is not None and corrections.excluded_pixels is not None:
            plan = CorrectionPlan(corrections, [cut[:3] for cut in cuts], layout.sig_shape)
            yield from (halo.cuts for halo in plan.halos)


def _of_blocks(source: Source, read: ReadPart) -> Amount | None:
    """Sum the bytes of a read of blocks; None if it meets pieces that are not, or that overlap."""
    layout, frames = source.layout, _frames(source, read.box)
    if layout.overlapping or layout.is_sparse:
        return None
    met = [pieces_met(layout, frames, cuts)[0] for cuts in _cuts_of(source, read)]
    pieces = layout.pieces.rows(np.unique(np.concatenate(met)))
    sizes = _block_sizes(layout)[pieces.decoder]
    if not sizes.all():
        return None
    return Amount(int(pieces.nbytes.sum()), int(pieces.shape.prod(axis=1) @ sizes))


def _block_sizes(layout: Layout) -> Index:
    """Return the bytes per pixel of each decoder; 0 for those of other pieces than blocks."""
    return np.array(
        [
            isinstance(one, BlockDecoder) and not one.is_uniform and one.dtype.itemsize
            for one in layout.decoders
        ],
        np.int64,
    )


def _of_ranges(ranges: Iterable[Ranges]) -> Amount:
    """Sum the bytes of ranges; a block is fetched once, whatever part of it is needed."""
    fetched = decoded = 0
    seen = set[object]()
    for piece in ranges:
        if isinstance(piece, BlockRange):
            if piece.key not in seen or piece.decoder.is_uniform:
                seen.add(piece.key)
                fetched += piece.block.nbytes
                decoded += piece.decoded * piece.decoder.dtype.itemsize
        elif isinstance(piece, BlockRun):
            fetched += piece.nbytes
            decoded += len(piece.frames) * math.prod(piece.shape) * piece.decoder.dtype.itemsize
        elif isinstance(piece, EventRun):
            fetched += piece.nbytes
            decoded += len(piece.frames) * piece.width * piece.decoder.dtype.itemsize
        else:
            fetched += piece.nbytes
            decoded += len(piece.offsets) * piece.units.count * piece.units.decoder.dtype.itemsize
    return Amount(fetched, decoded)


def passes_of(sources: Iterable[tuple[Source, Mapping[ReadPart, int]]]) -> float:
    """Return how often pixels are read: the mean over all pixels that are read at least once.

    Slices of one array with equal steps are counted together.
    """
    groups: dict[object, Counter[Box]] = {}
    for source, reads in sources:
        for read, times in reads.items():
            cuts = cut_to(source.layout.cuts, read.box)
            steps = tuple(cut.step for cut in cuts)
            phases = tuple(cut.start % cut.step for cut in cuts)
            kind = id(source.layout.pieces), source.layout.nav_shape, steps, phases
            first = ((cut.start // cut.step, cut.length) for cut in cuts)
            box = tuple((start, start + length) for start, length in first)
            groups.setdefault(kind, Counter())[box] += times
    total = sum(_volume(box) * n for boxes in groups.values() for box, n in boxes.items())
    return total / max(1, sum(map(_union, groups.values())))


def _volume(box: Box) -> int:
    return math.prod(b - a for a, b in box)


def _union(boxes: Collection[Box]) -> int:
    """Count the pixels in the union of boxes."""
    ends = np.array([*boxes], np.int64).reshape(len(boxes), -1, 2)
    edges = [np.unique(ends[:, axis]) for axis in range(ends.shape[1])]
    if math.prod(map(len, edges)) > MOST_BOX_CELLS:
        return sum(map(_volume, boxes))
    held = np.zeros([len(axis) - 1 for axis in edges], bool)
    places = [np.searchsorted(axis, ends[:, k]) for k, axis in enumerate(edges)]
    for number in range(len(boxes)):
        held[tuple(slice(*place[number]) for place in places)] = True
    counts = held.astype(np.int64)
    for axis in reversed(edges):
        counts = counts @ np.diff(axis)
    return int(counts)


def memory_of(source: Source, box: Box, tile_shape: Sequence[int] | None = None) -> int:
    """Return the memory to read a box in bytes, besides its pixels; with tiles, including the tile.

    Mapped pages are not counted: the system reclaims them on demand.
    """
    layout, conversion = source.layout, source.conversion
    shape = [b - a for a, b in box]
    frames, frame = math.prod(shape[: layout.nav_ndim]), math.prod(shape[layout.nav_ndim :])
    pixels = frames * frame if tile_shape is None else math.prod(tile_shape)
    total = FRAME_BYTES * min(frames, PLANNED_FRAMES)
    if tile_shape is not None:
        total += pixels * source.dtype.itemsize
    if is_url(layout.files[0].path):
        total += KEPT_RESPONSES * REQUEST_BYTES
    elif source.io != "mmap":  # "auto" chooses between backends only when it reads
        total += BUFFERED_BYTES + 2 * ALIGNMENT
    total += min(BUFFERED_BYTES, frames * frame * layout.dtype.itemsize) * _picks(source, box)
    if layout.is_sparse:
        total += MOST_BYTES + 2 * EVENT_BYTES * len(layout.pieces)
    elif layout.has_blocks:
        total += _blocks_of(source, box, tile_shape)
    if not conversion.nothing:
        at_once = max(frame, CONVERTED_BYTES // source.dtype.itemsize)
        native = conversion.native.itemsize + (0 if conversion.corrections is None else 8)
        total += min(pixels, at_once) * (native + source.dtype.itemsize)
    if conversion.corrections is not None:
        total += 4 * math.prod(layout.sig_shape) * max(4, source.dtype.itemsize)
    return total


def _picks(source: Source, box: Box) -> int:
    """Return the memory of partly used units, as a multiple of the encoded bytes of a window.

    Such units are decoded to a scratch array, from which the requested pixels are copied.
    """
    layout, region = source.layout, region_of(source.layout, box)
    if all(isinstance(layout.decoders[k], BlockDecoder) for k in layout.pieces.decoders):
        return 0
    ranges = frame_ranges(layout, region.frames[:1], region.sig)
    units = [
        piece.units
        for piece in ranges
        if isinstance(piece, ReadRanges) and piece.units.pick is not None
    ]
    return max((-(-2 * unit.decoder.width // unit.decoder.nbytes) for unit in units), default=0)


def _blocks_of(source: Source, box: Box, tile_shape: Sequence[int] | None) -> int:
    """Return the memory of the decoded blocks held at once, and of an encoded block.

    Blocks are held as long as tiles need them.
    """
    layout, region = source.layout, region_of(source.layout, box)
    numbers, spans = pieces_met(layout, region.frames, region.sig)
    pieces = layout.pieces.rows(numbers)
    sizes = pieces.shape.prod(axis=1) * _block_sizes(layout)[pieces.decoder]
    at_once = 2 * int(sizes.max(initial=0)) + 2 * int(pieces.nbytes[sizes > 0].max(initial=0))
    at_once += BLOCK_RANGE_BYTES * len(numbers)
    if tile_shape is None and source.conversion.nothing:
        return at_once
    depth = len(region.frames) if tile_shape is None else tile_shape[0]
    share = (depth + int(spans[sizes > 0].max(initial=1))) / max(1, len(region.frames))
    return int(sizes.sum() * min(1.0, share)) + at_once
