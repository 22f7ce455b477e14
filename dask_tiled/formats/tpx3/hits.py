"""Hits of a Timepix3 stream, added to pixels or listed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats.tpx3.index import WORD
from dask_tiled.model.blocks import Fetch
from dask_tiled.model.decoders import function_at
from dask_tiled.model.events import EventRun, EventTarget
from dask_tiled.model.indexing import Array, Index

TICK = 1.5625e-9
"""Seconds of a step of time."""
HIT = np.dtype([("time", "i8"), ("y", "u2"), ("x", "u2"), ("tot", "u2"), ("chip", "u2")])
"""A hit: its time in ticks, pixel, time over threshold in steps of 25 ns, and chip."""
FAR = 1 << 60
"""Half of the range of times: one frame of it has all hits."""


class FrameTimes(NamedTuple):
    """The times of frames: several follow each mark, without gaps.

    Attributes
    ----------
    marks : int64 array
        Times in ticks, ascending.
    per_mark : int
        Number of frames that follow a mark.
    step : float
        Ticks of a frame.
    """

    marks: Index
    per_mark: int
    step: float

    def at(self, times: Index) -> tuple[Index, Index]:
        """Return the first frame that begins not before some times, or has them; and that after."""
        mark = np.searchsorted(self.marks, times, side="right") - 1
        since = (times - self.marks[np.maximum(mark, 0)]) / self.step
        since = np.minimum(since, self.per_mark).astype(np.int64)
        first = mark * self.per_mark + since
        after = first + (since < self.per_mark)
        return np.where(mark < 0, 0, first), np.where(mark < 0, 0, after)


def _hits(run: EventRun, fetch: Fetch, out: Array, *, wide: bool, rising: bool) -> Iterator[Array]:
    """Decode the hits of each piece to the start of an array, or one after another."""
    decode, done = function_at("dask_tiled.kernels.tpx3:decode_kernel")(HIT), 0
    for some, first, stop in run.spans():
        part, data = run.some(some), fetch(run.file, first, stop)
        pieces = zip(part.offsets.tolist(), part.sizes.tolist(), part.states.tolist(), strict=True)
        for offset, size, time in pieces:
            words = data[offset - first : offset - first + size]
            found = decode(words, time, wide, out[done:])
            if found < 0:
                run.refuse("the stream has changed", offset, "the hits of its index", "others")
            yield out[done : done + found]
            done += found * rising


def add(
    run: EventRun,
    fetch: Fetch,
    target: EventTarget,
    *,
    wide: bool,
    step: float,
    with_tot: int,
) -> None:
    """Add the hits of pieces to their frames."""
    kernel = function_at("dask_tiled.kernels.tpx3:add_kernel")(HIT, target.out.dtype)
    frames = FrameTimes(np.frombuffer(run.decoder.marks, "<i8"), run.decoder.per_mark, step)
    width, columns = 512 if wide else 256, target.columns.astype(np.int32)
    apart = int(columns[1])
    if (columns == apart * np.arange(len(columns), dtype=np.int32)).all():
        columns = columns[:0]
    buffer = np.empty(int(run.sizes.max(initial=0)) // WORD, HIT)
    for hits in _hits(run, fetch, buffer, wide=wide, rising=False):
        kernel(hits, *frames, width, with_tot, *target[:2], columns, apart, target.out)


def records(run: EventRun, fetch: Fetch, out: Array, *, wide: bool, **_: Any) -> int:
    """List the hits of pieces, in the order of the file; return their number."""
    return sum(map(len, _hits(run, fetch, out, wide=wide, rising=True)))
