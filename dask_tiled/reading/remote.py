"""The backend for files behind URLs: few requests per chunk, sent before it is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from itertools import pairwise

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.files.file import File, RemoteFile
from dask_tiled.model.blocks import BlockRun
from dask_tiled.model.events import EventRun
from dask_tiled.model.indexing import Bytes, Index
from dask_tiled.reading.backend import Backend
from dask_tiled.reading.limits import BUFFERED_BYTES, GAPS, KEPT_RESPONSES, REQUESTS_AHEAD
from dask_tiled.reading.planning import Ranges
from dask_tiled.reading.ranges import ReadRanges, Window
from dask_tiled.remote.fetching import GAP_BYTES, cut_out, merge, requests, submit


class Remote(Backend):
    """Requests the bytes of a chunk from servers, a few requests ahead of the decoding.

    Nearby ranges are merged into one request.
    """

    def __init__(self) -> None:
        super().__init__()
        self._expected: dict[RemoteFile, list[tuple[Index, Index]]] = {}
        self._requests: list[tuple[RemoteFile, int, int]] = []
        self._places: dict[File, tuple[int, Index]] = {}
        self._ahead = REQUESTS_AHEAD
        self._answers: dict[tuple[RemoteFile, int, int], Future[Bytes]] = {}

    def expect(self, ranges: Iterable[Ranges]) -> None:
        """Note the byte ranges of files that will be needed."""
        for piece in ranges:
            if isinstance(piece, ReadRanges):
                file, spans = piece.file, [part.span for part in _clusters(piece)]
            elif isinstance(piece, BlockRun | EventRun):
                file, spans = piece.file, [(start, stop) for _, start, stop in piece.spans()]
            else:
                _, file, offset, nbytes, *_ = piece.block
                spans = [(offset, offset + nbytes)] if nbytes else []
            starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
            self._expected.setdefault(_behind_url(file), []).append((starts, stops))
        self._places.clear()

    def windows(
        self,
        ranges: ReadRanges,
        limit: int | None = None,
        *,
        at_once: int | None = 0,  # noqa: ARG002
    ) -> Iterator[Window]:
        """Yield the windows of the responses; large gaps between ranges are not fetched."""
        for cluster in _clusters(ranges):
            for part in cluster.split(min(limit or BUFFERED_BYTES, BUFFERED_BYTES)):
                start, stop = part.span
                yield Window(part, self(part.file, start, stop), start)

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Return a byte range of a file, waiting for its requests."""
        if not self._places:
            self._arrange()
        remote = _behind_url(file)
        at, firsts = self._places.get(file, (0, np.empty(0, np.int64)))
        first = int(np.searchsorted(firsts, start, "right")) - 1
        last = int(np.searchsorted(firsts, stop))
        wanted = self._requests[at + max(first, 0) : at + last]
        gaps = any(a[2] != b[1] for a, b in pairwise(wanted))
        if first < 0 or gaps or not wanted or stop > wanted[-1][2]:  # not announced by ``expect``
            return remote.fetch([(start, stop)])[0]
        # Also request the beginning of the next file.
        ahead = self._ahead if last < len(firsts) else REQUESTS_AHEAD
        wanted += self._requests[at + last : at + last + ahead]
        for request in wanted:
            answer = self._answers.pop(request, None)  # inserted again as the most recently used
            if answer is None:
                source, *span = request
                answer = submit(source.place, source.version, *span)
            self._answers[request] = answer
        for request in [*self._answers][
            : max(0, len(self._answers) - max(KEPT_RESPONSES, len(wanted)))
        ]:
            self._answers.pop(request).cancel()
        parts = [self._answers[request].result() for request in wanted[: last - first]]
        return cut_out(parts, firsts[first:last], start, stop)

    def __exit__(self, *error: object) -> None:
        for answer in self._answers.values():
            answer.cancel()
        self._answers.clear()
        self._expected.clear()
        self._places.clear()
        super().__exit__(*error)

    def _arrange(self) -> None:
        """Merge the expected ranges to requests, in the order of files and offsets."""
        self._requests.clear()
        for file, spans in self._expected.items():
            starts, stops = map(np.concatenate, zip(*spans, strict=True))
            wanted = requests(*merge(starts, stops)) if len(starts) else []
            firsts = np.array([start for start, _ in wanted], np.int64)
            self._places[file] = len(self._requests), firsts
            self._requests += [(file, *span) for span in wanted]
        # If a frame is spread over several such files, their requests alternate.
        long = sum(len(firsts) > 1 for _, firsts in self._places.values())
        self._ahead = max(1, REQUESTS_AHEAD // max(1, long))


def _behind_url(file: File) -> RemoteFile:
    if not isinstance(file, RemoteFile):
        raise DatasetError("a local file among files behind URLs", path=file.path)
    return file


def _clusters(ranges: ReadRanges) -> Iterator[ReadRanges]:
    """Split read ranges at gaps that are too large to be fetched."""
    low, high = ranges.units.reach
    if high - low > GAP_BYTES and ranges.nbytes * GAPS < (high - low) * len(ranges.offsets):
        yield from ranges.split(GAP_BYTES)
        return
    gaps = np.abs(np.diff(ranges.offsets)) - (high - low)
    edges = [0, *(np.flatnonzero(gaps > GAP_BYTES) + 1).tolist(), len(ranges.offsets)]
    for first, stop in pairwise(edges):
        offsets, frames = ranges.offsets[first:stop], ranges.frames[first:stop]
        yield ranges._replace(offsets=offsets, frames=frames)
