"""Byte ranges of a file that hold a part of an array."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.files.file import File
from dask_tiled.model.decoders import Decoder
from dask_tiled.model.indexing import Index
from dask_tiled.model.requests import IN_MEMORY


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a frame that a piece contributes to a box, equal in all of its frames."""

    decoder: Decoder
    loops: tuple[Loop, ...]
    """Offsets of the units relative to the first, in the file and in the output."""
    dest: int
    """Offset of the first unit in a frame of the output, or of the scratch array of ``pick``."""
    frame_bytes: int  # bytes of a frame of the output or scratch array
    place: tuple[slice, ...]  # part of a frame of the output
    pick: Pick | None
    """Selection of pixels from the decoded units, if only some are needed or the output has
    another dtype."""

    @cached_property
    def runs(self) -> Runs:
        """The units as few long runs, with offsets relative to the first unit."""
        return make_runs(self.loops).moved(0, self.dest)

    def are_as_shown(self) -> bool:
        """Return whether runs of units are contiguous in the file and copied unchanged."""
        nbytes = self.decoder.nbytes
        return self.decoder.is_copy and (nbytes, nbytes) == (self.runs.step, self.runs.out_step)

    @property
    def count(self) -> int:
        """Number of pixels."""
        return math.prod(loop.length for loop in self.loops) * self.decoder.pixels

    @cached_property
    def reach(self) -> tuple[int, int]:
        """First byte and end of the bytes touched, relative to the first unit."""
        reaches = [loop.reach for loop in self.loops]
        return sum(low for low, _ in reaches), sum(high for _, high in reaches) + self.decoder.reach

    def part(self, axis: int, first: int, stop: int) -> tuple[Units, int]:
        """Slice a loop; return the units, and the offset of their first one in the file."""
        loop, further, out_further = self.loops[axis].part(first, stop)
        loops = (*self.loops[:axis], loop, *self.loops[axis + 1 :])
        if self.pick is None:
            return replace(self, loops=loops, dest=self.dest + out_further), further
        start = self.place[axis].start + first
        place = (*self.place[:axis], slice(start, start + loop.length), *self.place[axis + 1 :])
        frame_bytes = self.frame_bytes // self.pick.shape[axis] * loop.length
        shape = *self.pick.shape[:axis], loop.length, *self.pick.shape[axis + 1 :]
        pick = self.pick._replace(shape=shape)
        part = replace(self, loops=loops, frame_bytes=frame_bytes, place=place, pick=pick)
        return part, further

    def extents(self) -> list[int]:
        """Return the span in bytes of each loop; 0 for loops that cannot be split."""
        spans = [high - low for low, high in (loop.reach for loop in self.loops)]
        if self.pick is None:
            return spans
        # Whole rows are needed; and splitting an inner loop would change the steps of outer loops.
        outer = next((k for k, loop in enumerate(self.loops[:-1]) if loop.length > 1), None)
        return [span * (k == outer) for k, span in enumerate(spans)]


class ReadRanges(NamedTuple):
    """The byte ranges that a piece contributes to a box."""

    file: File
    units: Units  # units of each frame
    offsets: Index  # offset of the first unit of each frame
    frames: Index  # position of each frame in the output, ascending
    ascending: bool  # whether the offsets are ascending, too

    @property
    def span(self) -> tuple[int, int]:
        """First byte and end of the bytes touched."""
        first, last = self.offsets[0], self.offsets[-1]
        if not self.ascending:
            first, last = self.offsets.min(), self.offsets.max()
        low, high = self.units.reach
        return int(first) + low, int(last) + high

    @property
    def nbytes(self) -> int:
        """Number of bytes read."""
        decoder, runs = self.units.decoder, self.units.runs
        halves = 2 if decoder.lag else 1
        return len(self.offsets) * len(runs.starts) * runs.length * decoder.nbytes * halves

    def spread(self, least: int = 1) -> float:
        """Return the spacing of frames, relative to the bytes read of each, at least ``least``."""
        start, stop = self.span
        low, high = self.units.reach
        return (stop - start) / (max(high - low, least) * len(self.offsets))

    @property
    def dests(self) -> Index:
        """Offset of each frame in the output, or in the scratch array of ``pick``."""
        places = self.frames if self.units.pick is None else np.arange(len(self.frames))
        return places * self.units.frame_bytes

    def runs(self) -> Runs:
        """Return the units of all frames as runs, with absolute offsets."""
        dests = self.dests
        runs = self.units.runs
        if len(self.offsets) > 1 and 0 < self.offsets[1] - self.offsets[0] < abs(runs.step):
            # Frames are interleaved more finely than units: with frames as the inner loop, reads
            # are in order.
            loops = [Loop.over(self.offsets, dests), *self.units.loops]
            return make_runs(loops).moved(int(self.offsets[0]), int(dests[0]) + self.units.dest)
        if len(runs.starts) == 1:
            return runs._replace(starts=runs.starts + self.offsets, dests=runs.dests + dests)
        starts, places = np.add.outer(self.offsets, runs.starts), np.add.outer(dests, runs.dests)
        return runs._replace(starts=starts.ravel(), dests=places.ravel())

    def lies_as(self, dtype: np.dtype) -> bool:
        """Return whether the bytes are contiguous pixels of a NumPy dtype."""
        units, size = self.units, dtype.itemsize
        if not units.decoder.is_copy or units.decoder.nbytes != size or units.pick is not None:
            return False
        runs = units.runs
        one_run = len(runs.starts) == 1 and (runs.length == 1 or units.are_as_shown())
        return one_run and bool((self.offsets[1:] - self.offsets[:-1] == runs.length * size).all())

    def between(self, first: int, stop: int) -> ReadRanges:
        """Take the frames in a range of output positions, renumbered from 0."""
        low, high = np.searchsorted(self.frames, (first, stop))
        return self._replace(offsets=self.offsets[low:high], frames=self.frames[low:high] - first)

    def in_file_order(self) -> ReadRanges:
        """Sort the frames by file offset, no longer by output position."""
        if self.ascending:
            return self
        order = np.argsort(self.offsets, kind="stable")
        return self._replace(offsets=self.offsets[order], frames=self.frames[order], ascending=True)

    def split(self, limit: int) -> Iterator[ReadRanges]:
        """Split into parts that span at most ``limit`` bytes each, as far as units can be split."""
        low, high = self.span
        most = limit + self.units.decoder.lag  # the two halves of a unit lie ``lag`` bytes apart
        if high - low <= most:
            yield self
            return
        first, last = self.units.reach
        extents = [high - low - (last - first), *self.units.extents()]
        axis = max(range(len(extents)), key=extents.__getitem__)
        if not extents[axis]:
            yield self
            return
        length = len(self.offsets) if axis == 0 else self.units.loops[axis - 1].length
        step = max(1, extents[axis] // (length - 1))
        room = most - (high - low - extents[axis])
        count = min(max(1, room // step + 1), -(-length // 2))
        for start in range(0, length, count):
            yield from self._part(axis, start, start + count).split(limit)

    def _part(self, axis: int, first: int, stop: int) -> ReadRanges:
        """Slice along the frames (axis 0) or along one of the loops."""
        if axis == 0:
            return self._replace(offsets=self.offsets[first:stop], frames=self.frames[first:stop])
        units, further = self.units.part(axis - 1, first, stop)
        return self._replace(units=units, offsets=self.offsets + further)


class FrameData(NamedTuple):
    """Frames as kernels take them."""

    request: Index
    data: npt.NDArray[np.uint8]
    offsets: Index
    rows: Index  # row of the results of each frame


class Window(NamedTuple):
    """Read ranges, and the bytes that contain them, or memory into which a kernel reads them."""

    ranges: ReadRanges
    data: npt.NDArray[np.uint8]
    origin: int  # file offset of ``data``; 0 if a kernel reads
    request: Index = IN_MEMORY

    @property
    def offsets(self) -> Index:
        """Offset of the first unit of each frame, in ``data`` or in the file."""
        return self.ranges.offsets - self.origin

    def frames(self, rows: Index) -> FrameData:
        """Return the frames, whose results are in some rows."""
        return FrameData(self.request, self.data, self.offsets, rows)


class Loop(NamedTuple):
    """Offsets along one axis, in the file and in the output: evenly spaced, or listed."""

    length: int
    step: int
    out_step: int
    listed: tuple[Index, Index] | None = None

    @classmethod
    def over(cls, offsets: Index, out_offsets: Index) -> Loop:
        """Build a loop from offsets, relative to the first, and detect even spacing."""
        steps, out_steps = np.diff(offsets), np.diff(out_offsets)
        if (steps == steps[:1]).all() and (out_steps == out_steps[:1]).all():
            step, out_step = (int(s[0]) if len(s) else 0 for s in (steps, out_steps))
            return cls(len(offsets), step, out_step)
        return cls(len(offsets), 0, 0, (offsets - offsets[0], out_offsets - out_offsets[0]))

    @property
    def reach(self) -> tuple[int, int]:
        """Least and greatest offset in the file."""
        if self.listed is not None:
            return int(self.listed[0].min()), int(self.listed[0].max())
        last = (self.length - 1) * self.step
        return min(last, 0), max(last, 0)

    def part(self, first: int, stop: int) -> tuple[Loop, int, int]:
        """Slice the loop; return it, and the offsets of its first position."""
        stop = min(stop, self.length)
        if self.listed is None:
            part = Loop(stop - first, self.step, self.out_step)
            return part, first * self.step, first * self.out_step
        offsets, out_offsets = (listed[first:stop] for listed in self.listed)
        return Loop.over(offsets, out_offsets), int(offsets[0]), int(out_offsets[0])

    def offsets(self) -> tuple[Index, Index]:
        """List the offsets in the file and in the output."""
        if self.listed is not None:
            return self.listed
        k = np.arange(self.length, dtype=np.int64)
        return k * self.step, k * self.out_step


class Runs(NamedTuple):
    """The innermost loop, and its starts in the file and in the output."""

    starts: Index
    step: int
    length: int
    dests: Index
    out_step: int

    def moved(self, start: int, dest: int) -> Runs:
        """Shift all starts, in the file and in the output."""
        return self._replace(starts=self.starts + start, dests=self.dests + dest)


class Pick(NamedTuple):
    """Selection of pixels from decoded units."""

    shape: tuple[int, ...]
    """Shape of the scratch array for the decoded units of a frame."""
    pixels: Index  # positions along its last axis


def make_runs(loops: Sequence[Loop]) -> Runs:
    """Flatten nested loops, the outermost first.

    Adjacent loops that continue each other in the file and in the output are merged. The loop with
    the shortest step in the file becomes the innermost, so that files are read in order whatever
    the order of their axes.
    """
    merged: list[Loop] = []
    for loop in loops:
        if loop.length == 1:
            continue
        if merged and _continues(merged[-1], loop):
            merged[-1] = Loop(merged[-1].length * loop.length, loop.step, loop.out_step)
        else:
            merged.append(loop)
    even = [loop for loop in merged if loop.listed is None and loop.step]
    inner = min(reversed(even), key=lambda loop: abs(loop.step), default=Loop(1, 0, 0))
    starts = dests = np.zeros(1, dtype=np.int64)
    for loop in merged:
        if loop is not inner:
            offsets, out_offsets = loop.offsets()
            starts = np.add.outer(starts, offsets).ravel()
            dests = np.add.outer(dests, out_offsets).ravel()
    return Runs(starts, inner.step, inner.length, dests, inner.out_step)


def _continues(outer: Loop, inner: Loop) -> bool:
    """Return whether the outer loop continues where the inner one ends."""
    return (
        outer.listed is None
        and inner.listed is None
        and outer.step == inner.length * inner.step
        and outer.out_step == inner.length * inner.out_step
    )
