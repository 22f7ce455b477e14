"""Find the byte ranges that hold a box of an array."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.model.blocks import Block, BlockRange, BlockRun
from dask_tiled.model.decoders import BlockDecoder, Decoder
from dask_tiled.model.events import EventRun
from dask_tiled.model.indexing import Box, Cut, Index, cut_again
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Columns
from dask_tiled.reading.events import event_runs
from dask_tiled.reading.ranges import Loop, Pick, ReadRanges, Units

Ranges = ReadRanges | BlockRange | BlockRun | EventRun
Bools = npt.NDArray[np.bool_]


class _Overlap(NamedTuple):
    """The overlap of a piece and a cut of an axis, in the output and in the piece."""

    place: int
    length: int
    pixel: int
    step: int


def frame_ranges(layout: Layout, frames: Index, sig: Sequence[Cut]) -> Iterator[Ranges]:
    """Find the byte ranges of a part of some frames.

    Pieces of a file that hold the same part of their frames are read together.

    Parameters
    ----------
    layout : Layout
        Location of the bytes.
    frames : int64 array
        Numbers of the frames, in any order. Missing ones are skipped.
    sig : sequence of Cut
        The part along each signal axis.

    Yields
    ------
    ReadRanges, BlockRange, BlockRun or EventRun
        For a C-contiguous output: the frames on one axis, then the signal axes.
    """
    (there,) = (~layout.selection.are_absent(frames)).nonzero()
    if not len(there):
        return
    find = event_runs if layout.is_sparse else _dense_ranges
    yield from find(layout, frames[there], there, sig)


def _dense_ranges(
    layout: Layout, frames: Index, there: Index, sig: Sequence[Cut]
) -> Iterator[ReadRanges | BlockRange | BlockRun]:
    """Yield the ranges of some frames, whose positions in the output are ``there``."""
    n = len(layout.grid)
    coordinates = _coordinates(layout, frames)
    met = _met(layout, coordinates, sig)
    pieces, alone = met.pieces, _frames_alone(layout, met, sig)
    part = _part_of_frame if len(sig) <= 2 else _part_of_volume
    pixels = layout.dtype, layout.repeats, tuple(sig)
    for i, members in _together(layout, met, n, alone):
        which = met.which[members] if len(layout.pieces) > 1 else met.which[:1]
        positions = met.positions[members]
        start, shape, strides = (tuple(c[i].tolist()) for c in pieces[4:])
        decoder = layout.decoders[pieces.decoder[i]]
        file = layout.files[int(pieces.file[i])]
        if isinstance(decoder, BlockDecoder) and alone[i]:
            columns = pieces.offset[which], pieces.nbytes[which], pieces.start[which]
            yield BlockRun(layout.files, file, decoder, *columns, shape, there[positions])
            continue
        overlaps, located = part(*pixels, decoder, start[n:], shape[n:], strides[n:])
        if not all(o.length for o in overlaps):
            continue  # a stride skips the piece
        places = [c[positions] - pieces.start[which, k] for k, c in enumerate(coordinates)]
        if isinstance(decoder, BlockDecoder):
            offset, nbytes = int(pieces.offset[i]), int(pieces.nbytes[i])
            block = Block(layout.files, file, offset, nbytes, start, shape)
            numbers = np.ravel_multi_index(places, shape[:n]) if n else np.zeros(1, np.int64)
            inside = tuple(
                slice(o.pixel, o.pixel + (o.length - 1) * o.step + 1, o.step) for o in overlaps
            )
            place = _place(overlaps)
            yield BlockRange(block, decoder, numbers, there[positions], inside, place)
        elif located is not None:
            units, first = located
            offsets = pieces.offset[which] + first
            for k, place in enumerate(places):
                offsets = offsets + place * pieces.strides[which, k]
            ascending = bool((offsets[1:] >= offsets[:-1]).all())
            yield ReadRanges(file, units, offsets, there[positions], ascending)


def pieces_met(layout: Layout, frames: Index, sig: Sequence[Cut]) -> tuple[Index, Index]:
    """Return the numbers of the pieces that hold a part of some frames, in ascending order.

    The second array has the number of frames from the first to the last in each piece.
    """
    (there,) = (~layout.selection.are_absent(frames)).nonzero()
    if not len(there):
        return there, there
    n, met = len(layout.grid), _met(layout, _coordinates(layout, frames[there]), sig)
    inside = np.bincount(met.which, minlength=len(met.numbers)) > 0
    for k, cut in enumerate(sig, n):  # a stride may skip a piece
        ends = met.pieces.start[:, k], met.pieces.start[:, k] + met.pieces.shape[:, k]
        first, stop = (-((cut.start - end) // cut.step) for end in ends)
        inside &= np.maximum(first, 0) < np.minimum(stop, cut.length)
    low, high = np.full(len(inside), len(frames)), np.zeros(len(inside), np.int64)
    np.minimum.at(low, met.which, there[met.positions])
    np.maximum.at(high, met.which, there[met.positions])
    return met.numbers[inside], (high - low + 1)[inside]


def _coordinates(layout: Layout, frames: Index) -> Sequence[Index]:
    n = len(layout.grid)
    return np.unravel_index(frames, layout.grid) if n > 1 else (frames,) * n


class _Met(NamedTuple):
    """The pieces that a box intersects, and the pairs of piece and frame."""

    numbers: Index
    pieces: Columns
    which: Index
    positions: Index


def _met(layout: Layout, coordinates: Sequence[Index], sig: Sequence[Cut]) -> _Met:
    """Find the pieces that a box intersects, and the frames in each."""
    if len(layout.pieces) == 1:  # one piece, as in most files: no search is needed
        pieces, count = layout.pieces.only, len(coordinates[0]) if coordinates else 1
        positions = np.arange(count)
        if layout.partial or layout.overlapping:
            inside = np.ones(count, bool)
            for k, axis in enumerate(coordinates):
                places = axis - pieces.start[0, k]
                inside &= (places >= 0) & (places < pieces.shape[0, k])
            (positions,) = inside.nonzero()
        return _Met(np.zeros(1, np.int64), pieces, np.zeros(len(positions), np.int64), positions)
    low = [int(c.min()) for c in coordinates] + [cut.start for cut in sig]
    high = [int(c.max()) + 1 for c in coordinates]
    high += [cut.start + cut.step * (cut.length - 1) + 1 for cut in sig]
    numbers = layout.pieces.tree.meeting(low, high)
    pieces = layout.pieces.rows(numbers)
    count = len(pieces.file)
    if not coordinates:
        return _Met(numbers, pieces, np.arange(count), np.zeros(count, np.int64))
    rows = coordinates[0]
    order = None if (rows[1:] >= rows[:-1]).all() else np.argsort(rows, kind="stable")
    ascending = rows if order is None else rows[order]
    first = np.searchsorted(ascending, pieces.start[:, 0])
    counts = np.searchsorted(ascending, pieces.start[:, 0] + pieces.shape[:, 0]) - first
    which = np.repeat(np.arange(count), counts)
    positions = np.arange(len(which)) + np.repeat(first - np.cumsum(counts) + counts, counts)
    if order is not None:
        positions = order[positions]
    for k, axis in enumerate(coordinates[1:], 1):
        places = axis[positions] - pieces.start[which, k]
        inside = (places >= 0) & (places < pieces.shape[which, k])
        which, positions = which[inside], positions[inside]
    return _Met(numbers, pieces, which, positions)


def _frames_alone(layout: Layout, met: _Met, sig: Sequence[Cut]) -> Bools:
    """Return a mask of the blocks that are one frame each, requested once and completely."""
    shape, ones = met.pieces.shape, (1,) * len(layout.grid)
    if not layout.has_blocks:
        return np.zeros(len(shape), bool)
    many = np.array([bool(getattr(decoder, "many", "")) for decoder in layout.decoders])
    batched: Bools = many[met.pieces.decoder]
    whole = all(cut[:3] == (0, 1, n) for cut, n in zip(sig, layout.sig_shape, strict=True))
    if layout.overlapping or not whole or not batched.any():
        return np.zeros(len(shape), bool)
    once = np.bincount(met.which, minlength=len(shape)) == 1
    alone: Bools = batched & once & (shape == (*ones, *layout.sig_shape)).all(axis=1)
    return alone


def _together(
    layout: Layout, met: _Met, n: int, alone: Bools
) -> Iterator[tuple[int, Index | slice]]:
    """Group pieces that are read together: yield the first of each group, and its frames.

    Blocks are read one by one, except frames that are ``alone`` in them.
    """
    pieces, which = met.pieces, met.which
    if len(layout.pieces) == 1 or len(which) < 2:
        if len(which):
            yield int(which[0]), slice(None)
        return
    labels = np.arange(len(pieces.file))
    if not layout.overlapping:
        labels = _labels(pieces, n)
        whole = np.array([isinstance(d, BlockDecoder) for d in layout.decoders])
        blocks = np.flatnonzero(whole[pieces.decoder] & ~alone)
        labels[blocks] = len(labels) + blocks
    kinds = labels[which]
    order = None
    if (np.diff(kinds) < 0).any() or (np.diff(met.positions)[np.diff(kinds) == 0] < 0).any():
        order = np.lexsort((met.positions, kinds))
        kinds = kinds[order]
    edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    for first, stop in itertools.pairwise(edges):
        if first == stop:
            continue
        members = slice(first, stop) if order is None else order[first:stop]
        yield int(which[first if order is None else order[first]]), members


def _labels(pieces: Columns, n: int) -> Index:
    """Assign a number to each kind of piece: equal file, decoder and part of a frame."""
    axes = (column.T for columns in pieces[4:] for column in [columns[:, n:]])
    keys = [pieces.file, pieces.decoder, *(column for axis in axes for column in axis)]
    keys = [key for key in keys if len(key) and (key != key[0]).any()]
    labels = np.zeros(len(pieces.file), np.int64)
    if keys:
        order = np.lexsort(keys[::-1])
        new = functools.reduce(np.logical_or, (np.diff(key[order]) != 0 for key in keys))
        labels[order[1:]] = np.cumsum(new)
    return labels


def _overlap(cut: Cut, start: int, size: int) -> _Overlap:
    """Return the overlap of a cut with ``start .. start + size``."""
    first = max(0, -(-(start - cut.start) // cut.step))
    stop = min(cut.length, -(-(start + size - cut.start) // cut.step))
    return _Overlap(first, max(0, stop - first), cut.start + cut.step * first - start, cut.step)


def _place(overlaps: Sequence[_Overlap]) -> tuple[slice, ...]:
    return tuple(slice(o.place, o.place + o.length) for o in overlaps)


@functools.lru_cache(maxsize=256)
def _part_of_frame(
    dtype: np.dtype,
    repeats: tuple[int, ...],
    sig: tuple[Cut, ...],
    decoder: Decoder | BlockDecoder,
    start: tuple[int, ...],
    lengths: tuple[int, ...],
    strides: tuple[int, ...],
) -> tuple[list[_Overlap], tuple[Units, int] | None]:
    """Return the overlaps of a piece and the signal axes, its units, and the first one's offset.

    They are equal for most pieces, and in most chunks. Units are None for blocks.
    """
    overlaps = list(map(_overlap, sig, start, lengths))
    counts = [overlap.length for overlap in overlaps]
    if not isinstance(decoder, Decoder) or not all(counts):
        return overlaps, None
    size, itemsize = decoder.pixels, decoder.dtype.itemsize
    last = overlaps[-1]
    pick = None
    shape = [cut.length for cut in sig]
    dests = [overlap.place for overlap in overlaps]
    cuts_units = size > 1 and (last.step > 1 or last.pixel % size or last.length % size)
    if cuts_units or decoder.dtype != dtype:
        pixels = last.pixel + last.step * np.arange(last.length, dtype=np.int64)
        units, which = np.unique(pixels // size, return_inverse=True)
        shape = [*counts[:-1], len(units) * size]
        dests = [0] * len(sig)
        pick = Pick(tuple(shape), which * size + pixels % size)
    out_strides = [itemsize * math.prod(shape[k:]) for k in range(len(shape) + 1)]
    corners, loops = [], []
    for k, overlap in enumerate(overlaps):
        unit = size if k == len(overlaps) - 1 else 1
        out_stride = out_strides[k + 1] * unit
        if unit > 1 and pick is not None:
            corners.append(int(units[0]))
            loops.append(Loop.over(units * strides[k], np.arange(len(units)) * out_stride))
        elif repeats[k] > 1:
            rows = overlap.pixel + overlap.step * np.arange(overlap.length)
            rows //= repeats[k]
            corners.append(int(rows[0]))
            loops.append(Loop.over(rows * strides[k], np.arange(len(rows)) * out_stride))
        else:
            corners.append(overlap.pixel // unit)
            loops.append(Loop(overlap.length // unit, overlap.step * strides[k], out_stride))
    part = Units(
        decoder=decoder,
        loops=tuple(loops),
        dest=sum(map(operator.mul, dests, out_strides[1:])),
        frame_bytes=out_strides[0],
        place=_place(overlaps),
        pick=pick,
    )
    return overlaps, (part, sum(map(operator.mul, corners, strides)))


# Units of frames take some KiB, those of volumes many MiB.
_part_of_volume = functools.lru_cache(maxsize=2)(_part_of_frame.__wrapped__)


class Region(NamedTuple):
    """The frames and the signal axes of a box."""

    frames: Index  # frame numbers, in C order
    sig: tuple[Cut, ...]
    """Cut of each signal axis of the files, also of axes dropped by an integer index."""
    nav_counts: tuple[int, ...]  # length along each navigation axis that is not dropped

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the decoded box: its frames on one axis, and all signal axes."""
        return (len(self.frames), *(cut.length for cut in self.sig))


def region_of(layout: Layout, box: Box) -> Region:
    """Return the frames and the signal axes of a box, a part of ``layout.shape``."""
    cuts = cut_to(layout.cuts, box)
    n = len(layout.nav_shape)
    counts = tuple(cut.length for cut in cuts[:n] if cut.kept)
    return Region(layout.frame_numbers(cuts[:n]), cuts[n:], counts)


def cut_to(cuts: Iterable[Cut], box: Box) -> tuple[Cut, ...]:
    """Cut the axes that are not dropped to a box."""
    return cut_again(cuts, (Cut(start, 1, stop - start) for start, stop in box))
