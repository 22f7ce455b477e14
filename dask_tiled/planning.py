"""From a box of an array to the bytes that hold it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.coded import Block, CodedRange
from dask_tiled.decoders import BlockDecoder, Decoder
from dask_tiled.layout import Cut, Layout
from dask_tiled.pieces import Columns
from dask_tiled.ranges import ReadRanges, Units
from dask_tiled.runs import Loop, Pick
from dask_tiled.selection import Index

Ranges = ReadRanges | CodedRange


class _Overlap(NamedTuple):
    """What a piece gives to a cut of an axis: where it goes, how much, from which pixel on."""

    place: int
    length: int
    pixel: int
    step: int


class _SignalAxes(NamedTuple):
    """The signal axes of a piece; most pieces of a layout have the same."""

    decoder: int
    start: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def frame_ranges(layout: Layout, frames: Index, sig: Sequence[Cut]) -> Iterator[Ranges]:
    """Find the bytes of some frames, and a cut of each.

    Parameters
    ----------
    layout : Layout
        Where the bytes lie.
    frames : int64 array
        Numbers of the frames, in any order. Those that are not there are left out.
    sig : sequence of Cut
        What is wanted of each signal axis.

    Yields
    ------
    ReadRanges or CodedRange
        For a C-contiguous output: the frames on one axis, then the signal axes.
    """
    there = np.flatnonzero(~layout.selection.are_absent(frames))
    if not len(there):
        return
    n = len(layout.grid)
    coordinates = np.unravel_index(frames[there], layout.grid) if n != 1 else (frames[there],)
    pieces = layout.columns()
    known: dict[_SignalAxes, tuple[list[_Overlap], tuple[Units, int] | None]] = {}
    for i, positions in _met(pieces, coordinates, sig):
        start, shape, strides = (tuple(c[i].tolist()) for c in pieces[4:])
        axes = _SignalAxes(int(pieces.decoder[i]), start[n:], shape[n:], strides[n:])
        decoder = layout.decoders[axes.decoder]
        if axes not in known:
            overlaps = list(map(_overlap, sig, axes.start, axes.shape))
            found = None
            if isinstance(decoder, Decoder) and all(o.length for o in overlaps):
                found = _units(decoder, axes.strides, layout.repeats, sig, overlaps)
            known[axes] = overlaps, found
        overlaps, found = known[axes]
        if not len(positions) or not all(o.length for o in overlaps):
            continue  # a stride has stepped over the piece
        places = [c[positions] - s for c, s in zip(coordinates, start, strict=False)]
        file, offset = layout.files[int(pieces.file[i])], int(pieces.offset[i])
        if isinstance(decoder, BlockDecoder):
            block = Block(layout.files, file, offset, int(pieces.nbytes[i]), start, shape)
            numbers = np.ravel_multi_index(places, shape[:n]) if n else np.zeros(1, np.int64)
            yield _coded(block, decoder, numbers, there[positions], overlaps)
        elif found is not None:
            units, first = found
            offsets = np.full(len(positions), offset + first)
            for place, stride in zip(places, strides, strict=False):
                offsets += place * stride
            ascending = bool((np.diff(offsets) >= 0).all())
            yield ReadRanges(file, units, offsets, there[positions], ascending)


def _met(
    pieces: Columns, coordinates: Sequence[Index], sig: Sequence[Cut]
) -> Iterator[tuple[int, Index]]:
    """Find the pieces that a box meets, and which of some frames lie in each."""
    low = [int(c.min()) for c in coordinates] + [cut.start for cut in sig]
    high = [int(c.max()) for c in coordinates]
    high += [cut.start + cut.step * (cut.length - 1) for cut in sig]
    meets = (pieces.start <= np.array(high)) & (pieces.start + pieces.shape > np.array(low))
    met = np.flatnonzero(meets.all(axis=1))
    if not coordinates:
        yield from ((i, np.zeros(1, np.int64)) for i in met.tolist())
        return
    rows, inner = coordinates[0], coordinates[1:]
    order = None if (np.diff(rows) >= 0).all() else np.argsort(rows, kind="stable")
    ascending = rows if order is None else rows[order]
    starts = pieces.start[met, 0]
    firsts = np.searchsorted(ascending, starts).tolist()
    stops = np.searchsorted(ascending, starts + pieces.shape[met, 0]).tolist()
    for i, first, stop in zip(met.tolist(), firsts, stops, strict=True):
        some = np.arange(first, stop) if order is None else np.sort(order[first:stop])
        for k, axis in enumerate(inner, 1):
            places = axis[some] - pieces.start[i, k]
            some = some[(places >= 0) & (places < pieces.shape[i, k])]
        yield i, some


def _overlap(cut: Cut, start: int, size: int) -> _Overlap:
    """Find what of a cut lies in ``start .. start + size``."""
    first = max(0, -(-(start - cut.start) // cut.step))
    stop = min(cut.length, -(-(start + size - cut.start) // cut.step))
    return _Overlap(first, max(0, stop - first), cut.start + cut.step * first - start, cut.step)


def _coded(
    block: Block,
    decoder: BlockDecoder,
    numbers: Index,
    frames: Index,
    overlaps: Sequence[_Overlap],
) -> CodedRange:
    inside = tuple(slice(o.pixel, o.pixel + (o.length - 1) * o.step + 1, o.step) for o in overlaps)
    place = tuple(slice(o.place, o.place + o.length) for o in overlaps)
    return CodedRange(block, decoder, numbers, frames, inside, place)


def _units(
    decoder: Decoder,
    strides: Sequence[int],
    repeats: Sequence[int],
    sig: Sequence[Cut],
    overlaps: Sequence[_Overlap],
) -> tuple[Units, int]:
    """Find the units of a frame that a piece contributes to a box, and the offset of the first."""
    counts = [overlap.length for overlap in overlaps]
    size, itemsize = decoder.pixels, decoder.dtype.itemsize
    last = overlaps[-1]
    pick = None
    shape = [cut.length for cut in sig]
    dests = [overlap.place for overlap in overlaps]
    if size > 1 and (last.step > 1 or last.pixel % size or last.length % size):
        pixels = last.pixel + last.step * np.arange(last.length, dtype=np.int64)
        units, which = np.unique(pixels // size, return_inverse=True)
        shape = [*counts[:-1], len(units) * size]
        dests = [0] * len(sig)
        place = tuple(slice(o.place, o.place + o.length) for o in overlaps)
        pick = Pick(tuple(shape), which * size + pixels % size, place)
    out_strides = [itemsize * math.prod(shape[k:]) for k in range(len(shape) + 1)]
    corners, loops = [], []
    for k, overlap in enumerate(overlaps):
        unit = size if k == len(overlaps) - 1 else 1
        out_stride = out_strides[k + 1] * unit
        if unit > 1 and pick is not None:
            corners.append(int(units[0]))
            loops.append(Loop.over(units * strides[k], np.arange(len(units)) * out_stride))
        elif repeats[k] > 1:
            rows = (overlap.pixel + overlap.step * np.arange(overlap.length)) // repeats[k]
            corners.append(int(rows[0]))
            loops.append(Loop.over(rows * strides[k], np.arange(len(rows)) * out_stride))
        else:
            corners.append(overlap.pixel // unit)
            loops.append(Loop(overlap.length // unit, overlap.step * strides[k], out_stride))
    found = Units(
        decoder=decoder,
        loops=tuple(loops),
        dest=sum(map(operator.mul, dests, out_strides[1:])),
        frame_bytes=out_strides[0],
        pick=pick,
    )
    return found, sum(map(operator.mul, corners, strides))
