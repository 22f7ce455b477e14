"""The backend for files behind URLs: few requests for a chunk, ahead of the work on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from itertools import pairwise

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.blocks import BlockRange
from dask_tiled.model.files import File, RemoteFile
from dask_tiled.model.indexing import Index
from dask_tiled.reading.backends import BLOCK_BYTES, GAPS, Backend, Bytes
from dask_tiled.reading.planning import Ranges
from dask_tiled.reading.ranges import ReadRanges, Window
from dask_tiled.remote.fetching import GAP_BYTES, cut_out, merge, requests, submit

AHEAD = 8
"""So many requests for a file run ahead of the work on a chunk, and so many answers are kept."""


class Remote(Backend):
    """Asks a server for what a chunk needs, in few requests, some of which run ahead of the work.

    What lies near to each other is asked for together.
    """

    def __init__(self) -> None:
        super().__init__()
        self._expected: dict[File, list[tuple[Index, Index]]] = {}
        self._ahead: dict[File, _Ahead] = {}

    def expect(self, ranges: Iterable[Ranges]) -> None:
        """Note which bytes of which files will be asked for."""
        for piece in ranges:
            if isinstance(piece, BlockRange):
                block = piece.block
                if not block.nbytes:
                    continue
                file, starts = block.file, np.array([block.offset])
                stops = starts + block.nbytes
            else:
                file = piece.file
                starts, stops = np.array([part.span for part in _clusters(piece)], np.int64).T
            self._expected.setdefault(file, []).append((starts, stops))
            self._ahead.pop(file, None)

    def windows(self, ranges: ReadRanges, limit: int | None = None) -> Iterator[Window]:
        """Give what has come, window by window; what nobody wants between them is not there."""
        for cluster in _clusters(ranges):
            for part in cluster.split(min(limit or BLOCK_BYTES, BLOCK_BYTES)):
                start, stop = part.span
                yield Window(part, self(part.file, start, stop), start)

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Give some bytes of a file."""
        if not isinstance(file, RemoteFile):
            problem = "a file on this machine among those behind URLs"
            raise DatasetError(problem, path=file.path)
        if file in self._expected and file not in self._ahead:
            starts, stops = map(np.concatenate, zip(*self._expected[file], strict=True))
            self._ahead[file] = _Ahead(file, starts, stops)
        found = self._ahead[file].take(start, stop) if file in self._ahead else None
        return file.fetch([(start, stop)])[0] if found is None else found

    def __exit__(self, *error: object) -> None:
        for ahead in self._ahead.values():
            ahead.stop()
        self._ahead.clear()
        self._expected.clear()
        super().__exit__(*error)


class _Ahead:
    """The requests for one file, in the order of their bytes, some of them under way."""

    def __init__(self, file: RemoteFile, starts: Index, stops: Index) -> None:
        self._file = file
        self._spans = requests(*merge(starts, stops))
        self._firsts = np.array([start for start, _ in self._spans])
        self._answers: dict[int, Future[Bytes]] = {}

    def take(self, start: int, stop: int) -> Bytes | None:
        """Give some bytes; None where they were not expected."""
        first = int(np.searchsorted(self._firsts, start, "right")) - 1
        last = int(np.searchsorted(self._firsts, stop))
        if first < 0 or any(a[1] != b[0] for a, b in pairwise(self._spans[first:last])):
            return None
        if stop > self._spans[last - 1][1]:
            return None
        for k in range(first, min(last + AHEAD, len(self._spans))):
            if k not in self._answers:
                self._answers[k] = submit(self._file.place, self._file.version, *self._spans[k])
        parts = [self._answers[k].result() for k in range(first, last)]
        # What lies behind is hardly asked for again; if it is, it is fetched again.
        for k in [k for k in self._answers if not first - AHEAD <= k < last + AHEAD]:
            self._answers.pop(k).cancel()
        return cut_out(parts, self._firsts[first:last], start, stop)

    def stop(self) -> None:
        """Ask for nothing more."""
        for answer in self._answers.values():
            answer.cancel()


def _clusters(ranges: ReadRanges) -> Iterator[ReadRanges]:
    """Cut read ranges where more lies between them than is worth asking for."""
    low, high = ranges.units.reach
    if high - low > GAP_BYTES and ranges.nbytes * GAPS < (high - low) * len(ranges.offsets):
        yield from ranges.split(GAP_BYTES)
        return
    gaps = np.abs(np.diff(ranges.offsets)) - (high - low)
    edges = [0, *(np.flatnonzero(gaps > GAP_BYTES) + 1).tolist(), len(ranges.offsets)]
    for first, stop in pairwise(edges):
        offsets, frames = ranges.offsets[first:stop], ranges.frames[first:stop]
        yield ranges._replace(offsets=offsets, frames=frames)
