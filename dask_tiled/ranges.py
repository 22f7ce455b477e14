"""From a box of an array to the bytes that hold it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dask_tiled.decoders import Decoder
from dask_tiled.files import File
from dask_tiled.layout import Cut, Layout
from dask_tiled.runs import Loop, Runs, make_runs
from dask_tiled.selection import Index


class Pick(NamedTuple):
    """How wanted pixels are taken out of decoded units.

    Attributes
    ----------
    shape : tuple of int
        Shape of the scratch array that the whole units of a frame are decoded into.
    pixels : int64 array
        Positions to take along its last axis.
    place : tuple of slice
        Where in a frame of the output they go.
    """

    shape: tuple[int, ...]
    pixels: Index
    place: tuple[slice, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReadRanges:
    """The bytes that one piece gives to a box: the same runs of units in each of its frames.

    Attributes
    ----------
    file : File
    decoder : Decoder
    offsets : int64 array
        Byte of the file at which the first unit of each frame begins.
    frames : int64 array
        Position of each frame in the output, in ascending order.
    loops : tuple of Loop
        The units of a frame: their distances from the first, in the file and in the output.
    dest : int
        Byte of a frame of the output, or of the scratch array of ``pick``, for the first unit.
    frame_bytes : int
        Bytes of a frame there.
    pick : Pick or None
        What is taken out of the units, where not all of their pixels are wanted.
    """

    file: File
    decoder: Decoder
    offsets: Index
    frames: Index
    loops: tuple[Loop, ...]
    dest: int
    frame_bytes: int
    pick: Pick | None

    @property
    def span(self) -> tuple[int, int]:
        """First byte that is touched, and the one after the last."""
        low, high = int(self.offsets.min()), int(self.offsets.max())
        for loop in self.loops:
            first, last = loop.reach
            low, high = low + first, high + last
        return low, high + self.decoder.reach

    @property
    def nbytes(self) -> int:
        """Number of bytes that are read."""
        halves = 2 if self.decoder.lag else 1
        units = math.prod(loop.length for loop in self.loops)
        return len(self.offsets) * units * self.decoder.nbytes * halves

    def runs(self) -> Runs:
        """Flatten frames and units into few long runs, from bytes of the file on."""
        places = np.arange(len(self.frames)) if self.pick is not None else self.frames
        dests = places * self.frame_bytes
        runs = make_runs([Loop.over(self.offsets, dests), *self.loops])
        return runs.moved(int(self.offsets[0]), int(dests[0]) + self.dest)

    def frame_runs(self) -> Runs:
        """Flatten the units of one frame into runs, from its first unit on."""
        return make_runs(self.loops).moved(0, self.dest)

    def between(self, first: int, stop: int) -> ReadRanges:
        """Take the frames at some positions of the output, which become the first ones."""
        low, high = np.searchsorted(self.frames, (first, stop))
        return replace(self, offsets=self.offsets[low:high], frames=self.frames[low:high] - first)

    def split(self, limit: int) -> Iterator[ReadRanges]:
        """Cut into parts that span at most ``limit`` bytes each, as far as units allow that."""
        low, high = self.span
        if high - low <= limit:
            yield self
            return
        spread = int(self.offsets.max() - self.offsets.min())
        extents = [spread, *(last - first for first, last in (o.reach for o in self.loops))]
        if self.pick is not None:
            extents = [spread]
        axis = max(range(len(extents)), key=extents.__getitem__)
        if not extents[axis]:
            yield self
            return
        length = len(self.offsets) if axis == 0 else self.loops[axis - 1].length
        step = max(1, extents[axis] // (length - 1))
        room = limit - (high - low - extents[axis])
        count = min(max(1, room // step + 1), -(-length // 2))
        for first in range(0, length, count):
            yield from self._part(axis, first, first + count).split(limit)

    def _part(self, axis: int, first: int, stop: int) -> ReadRanges:
        """Take some positions along the frames (axis 0) or along one of the loops."""
        if axis == 0:
            return replace(self, offsets=self.offsets[first:stop], frames=self.frames[first:stop])
        loop, further, out_further = self.loops[axis - 1].part(first, stop)
        return replace(
            self,
            offsets=self.offsets + further,
            loops=(*self.loops[: axis - 1], loop, *self.loops[axis:]),
            dest=self.dest + out_further,
        )


def frame_ranges(layout: Layout, frames: Index, sig: Sequence[Cut]) -> Iterator[ReadRanges]:
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
    ReadRanges
        For a C-contiguous output: the frames on one axis, then the signal axes.
    """
    there = np.flatnonzero(~layout.selection.are_absent(frames))
    if not len(there):
        return
    frames = frames[there]
    coordinates = np.unravel_index(frames, layout.grid) if len(layout.grid) != 1 else (frames,)
    file, decoder, offset, start, shape, strides = layout.columns()
    n = len(layout.grid)
    for i in _overlapping(start, shape, coordinates, sig):
        positions = _inside(coordinates, start[i], shape[i])
        piece = _SignalPiece(start[i, n:].tolist(), shape[i, n:].tolist(), strides[i, n:].tolist())
        counts = [_overlap(*axis)[1] for axis in zip(sig, piece.start, piece.shape, strict=True)]
        if not len(positions) or not all(counts):  # a stride has stepped over the piece
            continue
        offsets = np.full(len(positions), offset[i])
        for c, first, stride in zip(coordinates, start[i], strides[i], strict=False):
            offsets += (c[positions] - first) * stride
        yield _piece_ranges(
            layout.files[file[i]],
            layout.decoders[decoder[i]],
            offsets,
            there[positions],
            piece,
            sig,
        )


class _SignalPiece(NamedTuple):
    """The signal axes of a piece."""

    start: list[int]
    shape: list[int]
    strides: list[int]


def _overlapping(
    start: Index, shape: Index, coordinates: Sequence[Index], sig: Sequence[Cut]
) -> list[int]:
    """List the pieces that the hull of a box meets."""
    low = [int(c.min()) for c in coordinates] + [cut.start for cut in sig]
    high = [int(c.max()) for c in coordinates]
    high += [cut.start + cut.step * (cut.length - 1) for cut in sig]
    meets = (start <= np.array(high)) & (start + shape > np.array(low))
    return np.flatnonzero(meets.all(axis=1)).tolist()


def _inside(coordinates: Sequence[Index], start: Index, shape: Index) -> Index:
    """List the positions, among some frames, of those that lie in a piece."""
    inside = np.ones(coordinates[0].shape if coordinates else 1, dtype=bool)
    for c, s, n in zip(coordinates, start, shape, strict=False):
        inside &= (c >= s) & (c < s + n)
    return np.flatnonzero(inside)


def _overlap(cut: Cut, start: int, size: int) -> tuple[int, int, int]:
    """Give the first position of a cut in ``start .. start + size``, how many, and its pixel."""
    first = max(0, -(-(start - cut.start) // cut.step))
    stop = min(cut.length, -(-(start + size - cut.start) // cut.step))
    return first, max(0, stop - first), cut.start + cut.step * first - start


def _piece_ranges(
    file: File,
    decoder: Decoder,
    offsets: Index,
    frames: Index,
    piece: _SignalPiece,
    sig: Sequence[Cut],
) -> ReadRanges:
    """Make the runs that a piece contributes to a box."""
    overlaps = [_overlap(c, s, n) for c, s, n in zip(sig, piece.start, piece.shape, strict=True)]
    counts = [count for _, count, _ in overlaps]
    pixels = overlaps[-1][2] + sig[-1].step * np.arange(counts[-1], dtype=np.int64)
    size = decoder.pixels
    pick = None
    if size == 1 or (sig[-1].step == 1 and not pixels[0] % size and not counts[-1] % size):
        units = pixels[::size] // size
        shape = [cut.length for cut in sig]
        firsts = [first for first, _, _ in overlaps]
    else:
        units, which = np.unique(pixels // size, return_inverse=True)
        shape = [*counts[:-1], len(units) * size]
        firsts = [0] * len(sig)
        place = tuple(slice(first, first + n) for first, n, _ in overlaps)
        pick = Pick(tuple(shape), which * size + pixels % size, place)
    out_strides = [decoder.dtype.itemsize * math.prod(shape[k:]) for k in range(len(shape) + 1)]
    corners = [pixel for _, _, pixel in overlaps[:-1]] + [int(units[0])]
    loops = [
        Loop(n, stride * cut.step, out_stride)
        for n, cut, stride, out_stride in zip(
            counts, sig[:-1], piece.strides, out_strides[1:], strict=False
        )
    ]
    unit_places = np.arange(len(units), dtype=np.int64) * size * decoder.dtype.itemsize
    loops.append(Loop.over(units * piece.strides[-1], unit_places))
    return ReadRanges(
        file=file,
        decoder=decoder,
        offsets=offsets + sum(map(operator.mul, corners, piece.strides)),
        frames=frames,
        loops=tuple(loops),
        dest=sum(map(operator.mul, firsts, out_strides[1:])),
        frame_bytes=out_strides[0],
        pick=pick,
    )
