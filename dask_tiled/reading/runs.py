"""Nested loops over offsets, flattened into few long runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.model.selection import Index


class Loop(NamedTuple):
    """Offsets along one axis, in the file and in the output: evenly spaced, or listed."""

    length: int
    step: int
    out_step: int
    listed: tuple[Index, Index] | None = None

    @classmethod
    def over(cls, offsets: Index, out_offsets: Index) -> Loop:
        """Make a loop over the offsets, counted from the first, noticing even spacing."""
        steps, out_steps = np.diff(offsets), np.diff(out_offsets)
        if (steps == steps[:1]).all() and (out_steps == out_steps[:1]).all():
            step, out_step = (int(s[0]) if len(s) else 0 for s in (steps, out_steps))
            return cls(len(offsets), step, out_step)
        return cls(len(offsets), 0, 0, (offsets - offsets[0], out_offsets - out_offsets[0]))

    @property
    def reach(self) -> tuple[int, int]:
        """The least and the greatest offset in the file."""
        if self.listed is not None:
            return int(self.listed[0].min()), int(self.listed[0].max())
        last = (self.length - 1) * self.step
        return min(last, 0), max(last, 0)

    def part(self, first: int, stop: int) -> tuple[Loop, int, int]:
        """Take some of the offsets, and tell how far on the first of them is."""
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
    """Starts in the file and places in the output, and the innermost loop that begins at each."""

    starts: Index
    step: int
    length: int
    dests: Index
    out_step: int

    def moved(self, start: int, dest: int) -> Runs:
        """Begin further on, in the file and in the output."""
        return self._replace(starts=self.starts + start, dests=self.dests + dest)


class Pick(NamedTuple):
    """How wanted pixels are taken out of decoded units.

    Attributes
    ----------
    shape : tuple of int
        Shape of the scratch array that the whole units of a frame are decoded into.
    pixels : int64 array
        Positions to take along its last axis.
    """

    shape: tuple[int, ...]
    pixels: Index

    def part(self, axis: int, length: int) -> Pick:
        """Take so many positions along an axis, but the last."""
        return Pick((*self.shape[:axis], length, *self.shape[axis + 1 :]), self.pixels)


def make_runs(loops: Sequence[Loop]) -> Runs:
    """Flatten nested loops, the outermost first.

    Neighbouring loops that continue each other in the file and in the output become one. The loop
    with the shortest step in the file becomes the innermost, so that a file is read along its grain
    whatever the order of its axes.
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
    """Tell whether the end of the inner loop is where the outer one goes on."""
    return (
        outer.listed is None
        and inner.listed is None
        and outer.step == inner.length * inner.step
        and outer.out_step == inner.length * inner.out_step
    )
