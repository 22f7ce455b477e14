"""From a box of an array to the bytes that hold it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from dask_tiled.decoders import Decoder
from dask_tiled.files import File
from dask_tiled.layout import Cut, Index, Layout
from dask_tiled.runs import Loop, make_runs

Box = tuple[tuple[int, int], ...]


class Pick(NamedTuple):
    """How wanted pixels are taken out of decoded units.

    Attributes
    ----------
    shape : tuple of int
        Shape of the scratch array that whole units are decoded into.
    pixels : int64 array
        Positions to take along its last axis.
    frames : int64 array
        Frames of the output that they go to.
    place : tuple of slice
        Where in these frames.
    """

    shape: tuple[int, ...]
    pixels: Index
    frames: Index
    place: tuple[slice, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReadRanges:
    """Equally long runs of units in one file, and where their pixels go.

    Run ``r`` is ``count`` units, ``step`` bytes apart, from byte ``starts[r]`` of the file on. Its
    pixels go to byte ``dests[r]`` of the output, or of a scratch array if there is a ``pick``, and
    on, ``out_step`` bytes from unit to unit. ``piece`` is the row of the piece in the layout.
    """

    file: File
    decoder: Decoder
    starts: Index
    step: int
    count: int
    dests: Index
    out_step: int
    pick: Pick | None
    piece: int = 0

    @property
    def span(self) -> tuple[int, int]:
        """First byte that is touched, and the one after the last."""
        run = (self.count - 1) * self.step
        first, last = int(self.starts.min()), int(self.starts.max())
        return first + min(run, 0), last + max(run, 0) + self.decoder.reach

    @property
    def nbytes(self) -> int:
        """Number of bytes that are read."""
        halves = 2 if self.decoder.lag else 1
        return len(self.starts) * self.count * self.decoder.nbytes * halves


def read_ranges(layout: Layout, box: Box) -> Iterator[ReadRanges]:
    """Find the bytes of a box.

    Parameters
    ----------
    layout : Layout
        Where the bytes lie.
    box : tuple of (start, stop)
        A part of ``layout.shape``.

    Yields
    ------
    ReadRanges
        For a C-contiguous output of shape ``output_shape(layout, box)``.
    """
    return frame_ranges(layout, *frames_and_signal(layout, box))


def frames_and_signal(layout: Layout, box: Box) -> tuple[Index, tuple[Cut, ...]]:
    """Give the numbers of the frames of a box, in C order of the scan, and cut its signal axes."""
    cuts = _cuts_of(layout, box)
    nav, sig = cuts[: len(layout.nav_shape)], cuts[len(layout.nav_shape) :]
    return _frame_numbers(nav, layout.nav_shape), sig


def frame_ranges(layout: Layout, frames: Index, sig: Sequence[Cut]) -> Iterator[ReadRanges]:
    """Find the bytes of some frames, given by number in ascending order, and a cut of each."""
    coordinates = np.unravel_index(frames, layout.grid) if len(layout.grid) > 1 else (frames,)
    file, decoder, offset, start, shape, strides = layout.columns()
    n = len(layout.grid)
    for i in _overlapping(start, shape, coordinates, sig):
        positions = _inside(coordinates, start[i], shape[i])
        piece = _SignalPiece(start[i, n:].tolist(), shape[i, n:].tolist(), strides[i, n:].tolist())
        counts = [_overlap(*axis)[1] for axis in zip(sig, piece.start, piece.shape, strict=True)]
        if not len(positions) or not all(counts):  # a stride has stepped over the piece
            continue
        frame_offsets = np.full(len(positions), offset[i])
        for c, first, stride in zip(coordinates, start[i], strides[i], strict=False):
            frame_offsets += (c[positions] - first) * stride
        ranges = _piece_ranges(
            layout.files[file[i]],
            layout.decoders[decoder[i]],
            frame_offsets,
            positions,
            piece,
            sig,
        )
        yield replace(ranges, piece=i)


def output_shape(layout: Layout, box: Box) -> tuple[int, ...]:
    """Give the shape that a box is decoded in: its frames on one axis, and every signal axis."""
    counts = [cut.length for cut in _cuts_of(layout, box)]
    n = len(layout.nav_shape)
    return (math.prod(counts[:n]), *counts[n:])


class _SignalPiece(NamedTuple):
    """The signal axes of a piece."""

    start: list[int]
    shape: list[int]
    strides: list[int]


def _cuts_of(layout: Layout, box: Box) -> tuple[Cut, ...]:
    """Cut every axis of the layout, those that are not shown too, down to the box."""
    bounds = iter(box)
    cuts = []
    for cut in layout.cuts:
        if cut.kept:
            start, stop = next(bounds)
            cuts.append(cut.of(start, 1, stop - start, kept=True))
        else:
            cuts.append(cut)
    return tuple(cuts)


def _frame_numbers(nav: Sequence[Cut], nav_shape: tuple[int, ...]) -> Index:
    """List the numbers of a box's frames, counted in C order of the whole navigation shape."""
    axes = [cut.start + cut.step * np.arange(cut.length, dtype=np.int64) for cut in nav]
    sizes = [math.prod(nav_shape[k + 1 :]) for k in range(len(nav_shape))]
    zero = np.zeros((), dtype=np.int64)
    return reduce(np.add.outer, [a * s for a, s in zip(axes, sizes, strict=True)], zero).ravel()


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
    """List the positions, among the frames of a box, of those that lie in a piece."""
    if len(coordinates) == 1:  # in ascending order
        first, stop = np.searchsorted(coordinates[0], (start[0], start[0] + shape[0]))
        return np.arange(first, stop, dtype=np.int64)
    inside = np.ones(coordinates[0].shape, dtype=bool)
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
    frame_offsets: Index,
    positions: Index,
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
        taken = which * size + pixels % size
        pick = Pick((len(positions), *shape), taken, positions, place)
        positions = np.arange(len(positions), dtype=np.int64)
    out_strides = [decoder.dtype.itemsize * math.prod(shape[k:]) for k in range(len(shape) + 1)]
    corners = [pixel for _, _, pixel in overlaps[:-1]] + [int(units[0])]
    start = int(frame_offsets[0]) + sum(map(operator.mul, corners, piece.strides))
    dest = sum(map(operator.mul, [int(positions[0]), *firsts], out_strides))
    loops = [Loop.over(frame_offsets, positions * out_strides[0])]
    for n, cut, stride, out_stride in zip(
        counts, sig[:-1], piece.strides, out_strides[1:], strict=False
    ):
        loops.append(Loop(n, stride * cut.step, out_stride))
    unit_places = np.arange(len(units), dtype=np.int64) * size * decoder.dtype.itemsize
    loops.append(Loop.over(units * piece.strides[-1], unit_places))
    runs = make_runs(loops)
    return ReadRanges(
        file=file,
        decoder=decoder,
        starts=runs.starts + start,
        step=runs.step,
        count=runs.length,
        dests=runs.dests + dest,
        out_step=runs.out_step,
        pick=pick,
    )
