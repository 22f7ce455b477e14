"""Events: sparse pieces, each event of which adds to one pixel of an array that begins with zeros.

A target gives every pixel its place in the output. Pixels that share a place are summed, and those
that have none are left out, so that a sum over axes is a histogram of the events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import numpy as np

from dask_tiled.errors import CorruptFileError, Guard
from dask_tiled.files.file import File
from dask_tiled.model.blocks import Fetch, spans_of
from dask_tiled.model.decoders import EventDecoder, function_at
from dask_tiled.model.indexing import Array, Bytes, Index


class EventTarget(NamedTuple):
    """The output of events, and the place in it of every pixel.

    Attributes
    ----------
    numbers : int64 array
        Numbers of the wanted frames, ascending.
    places : int64 array
        Position in the output of the first pixel of each of them.
    columns : int64 array
        Position of each pixel of a stored frame, in C order, relative to its frame's; -1 for
        pixels that are left out.
    out : array
        The output, with one axis.
    """

    numbers: Index
    places: Index
    columns: Index
    out: Array

    def wanted(self, first: int, stop: int) -> tuple[int, int]:
        """Return the bounds of the wanted frames from ``first`` to ``stop``."""
        low, high = np.searchsorted(self.numbers, (first, stop))
        if low == high:
            return first, first
        return int(self.numbers[low]), int(self.numbers[high - 1]) + 1

    def rows(self, first: int, stop: int) -> Index:
        """Return the places of frames ``first`` to ``stop``, -1 for frames that are left out."""
        low, high = np.searchsorted(self.numbers, (first, stop))
        places, numbers = self.places[low:high], self.numbers[low:high] - first
        if len(places) == stop - first:
            return places
        rows = np.full(stop - first, -1, np.int64)
        if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1:  # copies faster
            rows[numbers[0] : numbers[-1] + 1] = places
        else:
            rows[numbers] = places
        return rows

    def shared(self, run: EventRun) -> Array:
        """Return which pieces add to one place only, whatever the frames of their events."""
        if not len(self.places) or (self.places != self.places[0]).any():
            return np.zeros(len(run.starts), bool)
        low, high = (np.searchsorted(self.numbers, ends) for ends in (run.starts, run.stops))
        return high - low == run.stops - run.starts


class EventRun(NamedTuple):
    """Sparse pieces of a file, and the frames that are wanted of them.

    Attributes
    ----------
    files : tuple of File
        All files of the layout.
    file : File
      The file of the pieces.
    decoder : EventDecoder
    offsets, sizes : int64 arrays
        First byte and length of each piece in the file.
    starts, stops : int64 arrays
        Its first frame, and the frame after its last. Events of other frames are an error.
    states : int64 array
        Its number from the index or the table: what a decoder has to know to begin there.
    numbers, frames : int64 arrays
        Numbers of the wanted frames in the files, and their positions in the output, ascending.
    columns : int64 array
        As in :class:`EventTarget`, for a frame of the output that has ``width`` pixels.
    """

    files: tuple[File, ...]
    file: File
    decoder: EventDecoder
    offsets: Index
    sizes: Index
    starts: Index
    stops: Index
    states: Index
    numbers: Index
    frames: Index
    columns: Index
    width: int
    origin: int = 0
    """Byte of the file from which ``offsets`` count."""

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces in the file."""
        return int(self.sizes.sum())

    @property
    def place(self) -> tuple[slice, ...]:
        """Position of a frame in that of the output: the whole frame."""
        return ()

    @property
    def repeats(self) -> bool:
        """Whether a frame is wanted several times; a target has one place for it."""
        rising = (np.diff(self.numbers) > 0).all()
        return not rising and len(np.unique(self.numbers)) < len(self.numbers)

    def target(self, places: Index, columns: Index, out: Array) -> EventTarget:
        """Return the target with the place of each wanted frame."""
        numbers = self.numbers
        if not (np.diff(numbers) > 0).all():
            numbers, first = np.unique(numbers, return_index=True)
            places = places[first]
        return EventTarget(numbers, places, columns, out.reshape(-1))

    def some(self, pieces: Index | slice) -> EventRun:
        """Return some of the pieces."""
        columns = self.offsets, self.sizes, self.starts, self.stops, self.states
        offsets, sizes, starts, stops, states = (column[pieces] for column in columns)
        return self._replace(
            offsets=offsets, sizes=sizes, starts=starts, stops=stops, states=states
        )

    def between(self, first: int, stop: int) -> EventRun:
        """Return the run for output frames ``first`` to ``stop``, counted from ``first``."""
        low, high = np.searchsorted(self.frames, (first, stop))
        numbers, frames = self.numbers[low:high], self.frames[low:high] - first
        run = self._replace(numbers=numbers, frames=frames)
        if not len(numbers):
            return run.some(slice(0, 0))
        meet = (self.starts <= numbers.max()) & (self.stops > numbers.min())
        return run.some(np.flatnonzero(meet))

    def spans(self) -> Iterator[tuple[slice, int, int]]:
        """Group pieces that one read fetches: their numbers, first byte and end."""
        return spans_of(self.offsets, self.sizes) if len(self.offsets) else iter(())

    def parts(self, fetch: Fetch) -> Iterator[tuple[EventRun, Bytes]]:
        """Fetch the pieces, many at a time.

        Yields
        ------
        EventRun
            Some of the pieces; offsets count from the first of the bytes.
        uint8 array
            Bytes that hold them, valid until the next part.
        """
        for pieces, start, stop in self.spans():
            part = self.some(pieces)
            part = part._replace(offsets=part.offsets - start, origin=start)
            yield part, fetch(self.file, start, stop)

    def decode(self, fetch: Fetch, out: Array) -> None:
        """Add the events to an output of frames, which is C-contiguous."""
        target = self.target(self.frames * self.width, self.columns, out)
        self.add(fetch, target)
        if self.repeats:
            places = target.places[np.searchsorted(target.numbers, self.numbers)]
            out[self.frames] = out[places // self.width]

    def add(self, fetch: Fetch, target: EventTarget) -> None:
        """Add the events to any output."""
        with Guard(self.file.path, "events cannot be decoded"):
            function_at(self.decoder.function)(self, fetch, target, **dict(self.decoder.options))

    def index_pieces(self, fetch: Fetch) -> tuple[Index, Index, Index]:
        """Return the first frame of each piece, the frame after its last, and its state."""
        with Guard(self.file.path, "events cannot be indexed"):
            index = function_at(self.decoder.index)
            first, stop, state = index(self, fetch, **dict(self.decoder.options))
        return first, stop, state

    def list_records(self, fetch: Fetch, out: Array) -> int:
        """List the events; return their number."""
        with Guard(self.file.path, "events cannot be listed"):
            records = function_at(self.decoder.records)
            return int(records(self, fetch, out, **dict(self.decoder.options)))

    def refuse(self, problem: str, offset: int, expected: object, found: object) -> NoReturn:
        """Raise a CorruptFileError at an offset."""
        where = f"byte {self.origin + offset}"
        raise CorruptFileError(
            problem, path=self.file.path, where=where, expected=expected, found=found
        )
