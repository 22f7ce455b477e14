"""Read files into a buffer that stays in the cache, or straight into results."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import numpy as np

from dask_tiled.errors import StaleFileError
from dask_tiled.files.file import File
from dask_tiled.model.indexing import Bytes, Index
from dask_tiled.model.requests import CALL, DONE, FD, START, STOP, request
from dask_tiled.reading.backend import Files, Local
from dask_tiled.reading.limits import BUFFERED_BYTES, GAPS, KERNEL_BYTES, REQUESTED_BYTES
from dask_tiled.reading.ranges import ReadRanges, Window
from dask_tiled.system.files import PREAD_ADDRESS, preadv

ALIGNMENT = 4096
"""Alignment of direct reads, in the file and in memory."""
LINE_BYTES = 64
"""Alignment of other reads: that of the lines of the cache."""


class Buffered(Local):
    """Reads a block at a time into one buffer.

    The file is checked after each read, so that two versions of it are never mixed.
    """

    def __init__(self, files: Files | None = None) -> None:
        super().__init__(files)
        self._buffer = np.empty(0, np.uint8)

    def windows(
        self, ranges: ReadRanges, limit: int | None = None, *, at_once: int | None = 0
    ) -> Iterator[Window]:
        """Read the span of each window, or frames one by one if they lie far apart."""
        (low, high), spread = ranges.units.reach, ranges.spread()
        far, fits = spread > GAPS, high - low <= BUFFERED_BYTES
        # Frames do not interleave.
        if at_once is not None and (far or (at_once and fits and spread >= 1)):
            yield from self._requests(ranges, limit or REQUESTED_BYTES, at_once)
        else:
            most = high - low if far else limit or BUFFERED_BYTES
            for part in ranges.split(min(most, BUFFERED_BYTES)):
                yield Window(part, *self._read(part.file, *part.span))

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Read a byte range into the buffer."""
        data, origin = self._read(file, start, stop)
        return data[start - origin : stop - origin]

    def fill(self, file: File, start: int, out: Bytes) -> bool:
        """Read bytes into ``out``, unless reads are direct, which need aligned memory."""
        if not self.direct:
            self._read_into(file, start, out, len(out))
        return not self.direct

    def _requests(self, ranges: ReadRanges, limit: int, at_once: int) -> Iterator[Window]:
        """Yield windows that a kernel reads into the buffer, until it has read all frames."""
        file, (low, high) = ranges.file, ranges.units.reach
        count = max(1, limit // (high - low))
        for first in range(0, len(ranges.offsets), count):
            batch, failed = slice(first, first + count), -1
            part = ranges._replace(offsets=ranges.offsets[batch], frames=ranges.frames[batch])
            wanted = self._request(part, at_once)
            while wanted[DONE] < len(part.offsets):
                wanted[FD], wanted[CALL] = self._files.fd(file), PREAD_ADDRESS
                yield Window(part, self._buffer, 0, wanted)
                self._files.check(file)
                if wanted[DONE] < len(part.offsets):
                    # Repeated to raise its error, unless a signal interrupted the kernel.
                    self._read(file, int(wanted[START]), int(wanted[STOP]))
                    if wanted[DONE] == failed:
                        problem = "bytes could not be read by a kernel, but by Python"
                        raise OSError(errno.EIO, problem, file.path)
                    failed = int(wanted[DONE])

    def _request(self, part: ReadRanges, at_once: int) -> Index:
        """Request frames in any order, at least ``at_once`` at a time if these fit into a block."""
        (low, high), align = part.units.reach, ALIGNMENT if self.direct else LINE_BYTES
        width = high - low
        near = min(int(GAPS * width), width + ALIGNMENT)
        most = max(near, width + 2 * align)  # bytes that a frame adds to those before it
        depth = max(1, round(KERNEL_BYTES / most), at_once * (at_once * most <= BUFFERED_BYTES))
        depth = min(depth, len(part.offsets))
        self._reserve(depth * most + 2 * align)
        return request(depth, low, high, near, align)

    def _reserve(self, size: int) -> None:
        if len(self._buffer) < size:
            self._buffer = _aligned(max(size, BUFFERED_BYTES + 2 * ALIGNMENT))

    def _read(self, file: File, start: int, stop: int) -> tuple[Bytes, int]:
        start -= start % ALIGNMENT
        wanted = stop - start
        size = wanted + -wanted % ALIGNMENT if self.direct else wanted
        self._reserve(size)
        self._read_into(file, start, self._buffer[:size], wanted)
        return self._buffer[:wanted], start

    def _read_into(self, file: File, start: int, out: Bytes, wanted: int) -> None:
        """Read bytes of a file into memory that may be larger."""
        fd, done = self._files.fd(file), 0
        while done < wanted:
            try:
                count = preadv(fd, [out[done:].data], start + done)
            except OSError as error:
                error.filename = file.path
                raise
            if not count:
                file.check()
                raise StaleFileError(
                    "the file is too short",
                    path=file.path,
                    where=f"byte {start + done}",
                    expected=f"{file.size} bytes",
                    found=f"{start + done} bytes",
                )
            done += count
        self._files.check(file)


class Direct(Buffered):
    """Reads blocks with O_DIRECT, for files much larger than memory: the page cache is bypassed."""

    direct = True


def _aligned(size: int) -> Bytes:
    memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size]
