"""Backends: fetch the bytes of read ranges."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np

from dask_tiled.errors import StaleFileError
from dask_tiled.model.files import File
from dask_tiled.model.indexing import Bytes, Index
from dask_tiled.model.paths import GIVES_BACK, allowed, with_room
from dask_tiled.model.requests import DEPTH, DONE, FD, START, STOP, request
from dask_tiled.reading.cluster import on_a_cluster, thread_limit
from dask_tiled.reading.descriptors import lent_fd
from dask_tiled.reading.planning import Ranges
from dask_tiled.reading.private import libc
from dask_tiled.reading.ranges import ReadRanges, Window
from dask_tiled.reading.rest import can_rest, leased, rests

MAPPED_BYTES = 32 << 20
"""Largest window to map: touched pages count as memory of the process."""
LEAST_MAPPED_BYTES = 1 << 20
"""Smallest window to map, even if memory is short."""
MAPPED_SHARE = 64
"""Inverse of the share of a thread's memory limit that a worker maps at a time."""
HDF5 = b"\x89HDF\r\n\x1a\n"
"""First bytes of HDF5 files; in MATLAB files they follow a header of 512 bytes."""
BLOCK_BYTES = 2 << 20
"""Bytes of a read: they stay in a core's share of the cache."""
KERNEL_BYTES = 1 << 20
"""Bytes of a read by a kernel: they stay in the cache of a core beside results."""
KEPT_BYTES = 1 << 30
"""Total size of the files that stay mapped between chunks."""
KEPT_MAPS = 8
"""Number of files that stay mapped between chunks."""
OPEN_FILES = 8
"""Files held open at once for a chunk."""
GAPS = 1.25
"""Frames are read one by one if their spacing exceeds their bytes by this factor."""
POPULATED_BYTES = 1 << 18
"""Bytes populated by one madvise call."""
MADV_POPULATE_READ, EHWPOISON = 22, 133  # not defined by Python
SPARSE = 16
"""Mapped pages are loaded singly if the spacing of frames exceeds their bytes by this factor."""
ALIGNMENT = 4096
"""Alignment of direct reads, in the file and in memory."""
LINE_BYTES = 64
"""Alignment of other reads: that of the lines of the cache."""

_kept: WeakKeyDictionary[File, _Map] = WeakKeyDictionary()
"""Maps of whole files; a map lives as long as the array that was the first to read the file."""
GIVES_BACK.append(_kept.clear)


class Backend(ABC):
    """Fetches bytes for one chunk, in one thread."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._kept: dict[Hashable, Any] = {}

    @abstractmethod
    def windows(
        self, ranges: ReadRanges, limit: int | None = None, *, read: bool = True
    ) -> Iterator[Window]:
        """Fetch the bytes of read ranges, window by window.

        Parameters
        ----------
        ranges : ReadRanges
        limit : int, optional
            Maximum span of a window in bytes; by default that of the backend, which may be smaller.
        read : bool, default: True
            If False, the bytes may be left to one kernel to read, as the request of the window
            says. If it fails, it gets the window again, and goes on.

        Yields
        ------
        Window
            A part of the read ranges with its bytes; valid until the next window is requested.
        """

    def expect(self, ranges: Iterable[Ranges]) -> None:  # noqa: B027 - optional
        """Announce the ranges that will be read, so that they can be requested early."""

    @abstractmethod
    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Fetch a byte range of a file; valid until the next call."""

    def view(self, file: File, start: int, stop: int) -> Bytes | None:  # noqa: ARG002
        """Return a view of mapped bytes, valid until the chunk is done; None if unsupported."""
        return None

    def private(self, file: File, start: int, stop: int) -> Bytes | None:  # noqa: ARG002
        """Map bytes as private pages, writeable; None unless the file rests."""
        return None

    def fill(self, file: File, start: int, out: Bytes) -> bool:  # noqa: ARG002
        """Read bytes into ``out``; return False if the backend does not support that."""
        return False

    def keep(self, key: Hashable, make: Callable[[], AbstractContextManager[Any]]) -> Any:
        """Enter the context manager made for a key, once, and exit it when the chunk is done."""
        if key not in self._kept:
            self._kept[key] = self._open.enter_context(make())
        return self._kept[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._kept.clear()
        self._open.close()


class _Local(Backend):
    """Reads local files; a few of them stay open until the chunk is done.

    Descriptors are released early if the process runs short of them.
    """

    direct = False

    def __init__(self) -> None:
        super().__init__()
        self._fds: dict[File, int] = {}
        self._lent = ExitStack()

    def give_back(self) -> None:
        """Release all descriptors."""
        self._fds.clear()
        self._lent.close()

    def _fd(self, file: File) -> int:
        if file not in self._fds:
            if len(self._fds) >= allowed(OPEN_FILES):
                self.give_back()
            lent = lent_fd(file, direct=self.direct, release=self.give_back)
            self._fds[file] = self._lent.enter_context(lent)
        return self._fds[file]

    def __exit__(self, *error: object) -> None:
        self._fds.clear()
        close: Callable[..., object] = self._lent.__exit__  # closes them after an error
        with ExitStack() as stack:
            stack.callback(super().__exit__, *error)
            stack.callback(close, *error)


class _Map:
    """A mapped part of a file; unmapped with the last array that refers to it."""

    def __init__(
        self,
        fd: int,
        start: int,
        stop: int,
        *,
        sparse: bool = False,
        access: int = mmap.ACCESS_READ,
    ) -> None:
        self.start, self.stop = start - start % mmap.ALLOCATIONGRANULARITY, stop
        view = mmap.mmap(fd, stop - self.start, access=access, offset=self.start)
        if sparse:
            view.madvise(mmap.MADV_RANDOM)
        self.data: Bytes = np.frombuffer(view, np.uint8)
        self._populated = np.zeros(-(-len(self.data) // POPULATED_BYTES), bool)

    def populate(self, start: int, stop: int) -> bool:
        """Populate pages before they are touched, once; return whether all are readable.

        Other systems, and Linux before 5.14, load pages when they are touched.
        """
        first = (start - self.start) // POPULATED_BYTES
        last = -(-(stop - self.start) // POPULATED_BYTES)
        if not self._populated[first:last].all():
            low, high = first * POPULATED_BYTES, min(last * POPULATED_BYTES, len(self.data))
            if _refuses(self.data.ctypes.data + low, high - low):
                return False
            self._populated[first:last] = True
        return True


def _refuses(address: int, nbytes: int) -> bool:
    """Populate mapped pages; return whether one of them cannot be read."""
    if sys.platform != "linux":
        return False
    # Python's ``mmap.madvise`` would hold the GIL while the disk is read.
    pages = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
    status = libc().madvise(*pages, MADV_POPULATE_READ)
    return bool(status) and ctypes.get_errno() in {errno.EFAULT, EHWPOISON}


class Mapped(_Local):
    """Maps a window of a file at a time, without a copy.

    Touching a page beyond the end of a file ends the process, so the file is checked before each
    window is used. It is checked again afterwards, so that two versions of it never mix.
    """

    def __init__(self) -> None:
        super().__init__()
        self._maps: dict[File, _Map] = {}
        self._window = _window(thread_limit())

    def windows(
        self,
        ranges: ReadRanges,
        limit: int | None = None,
        *,
        read: bool = True,  # noqa: ARG002
    ) -> Iterator[Window]:
        """Map the file around each window, unless it is mapped already."""
        sparse = _spread(ranges) > SPARSE
        for part in self.parts(ranges, limit):
            mapped = self._around(part.file, *part.span, sparse=sparse)
            yield Window(part, mapped.data, mapped.start)

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Map a file around a byte range."""
        mapped = self._around(file, start, stop, sparse=False)
        return mapped.data[start - mapped.start : stop - mapped.start]

    def view(self, file: File, start: int, stop: int) -> Bytes | None:
        """Map a file around a byte range."""
        return self(file, start, stop)

    def fill(self, file: File, start: int, out: Bytes) -> bool:
        """Copy mapped bytes in large parts: memcpy then writes without loading the destination."""
        for first in range(0, len(out), self._window):
            part = out[first : first + self._window]
            np.copyto(part, self(file, start + first, start + first + len(part)))
        return True

    def parts(self, ranges: ReadRanges, limit: int | None) -> Iterator[ReadRanges]:
        """Split read ranges into those of windows."""
        return ranges.split(min(self._window, limit or self._window))

    @contextmanager
    def lease(self, file: File) -> Iterator[int]:
        """Hold a lease of a file: see :func:`leased`.

        It has a descriptor of its own, as leases of other windows of the file may end earlier.
        """
        with lent_fd(file, release=self.give_back) as fd, leased(fd) as refused:
            yield refused

    def _around(self, file: File, start: int, stop: int, *, sparse: bool) -> _Map:
        mapped = self._maps.get(file)
        if mapped is None or start < mapped.start or stop > mapped.stop:
            mapped = self._maps[file] = self._map(file, start, stop, sparse=sparse)
        file.check(os.fstat(self._fd(file)))
        return mapped

    def _map(self, file: File, start: int, stop: int, *, sparse: bool) -> _Map:
        stop = max(stop, min(start + self._window, file.size))
        return self._made(file, start, stop, sparse=sparse)

    def _made(self, file: File, start: int, stop: int, **options: Any) -> _Map:
        # mmap duplicates the descriptor.
        make = lambda: _Map(self._fd(file), start, stop, **options)  # noqa: E731
        try:
            return with_room(make, file.path, self.give_back)
        except ValueError:  # raised by mmap for a file that is too short
            file.check(os.fstat(self._fd(file)))
            raise

    def give_back(self) -> None:
        """Release all descriptors, and drop the maps, which hold some."""
        self._maps.clear()
        super().give_back()

    def __exit__(self, *error: object) -> None:
        self._maps.clear()
        super().__exit__(*error)


def _window(limit: int | None) -> int:
    """Return the size of a window for the memory limit of a thread."""
    share = MAPPED_BYTES if limit is None else limit // MAPPED_SHARE
    return min(MAPPED_BYTES, max(LEAST_MAPPED_BYTES, share))


class Resting(Mapped):
    """Maps files that have not changed for a while, and populates pages before they are touched."""

    def takes(self, file: File) -> bool:  # noqa: ARG002
        """Return True unless a worker of a cluster reads: such files may be mapped."""
        return not on_a_cluster()

    def keeps(self, file: File) -> _Map | None:  # noqa: ARG002
        """Return the map of a whole file if it is kept between chunks."""
        return None

    def _around(self, file: File, start: int, stop: int, *, sparse: bool) -> _Map:
        mapped = super()._around(file, start, stop, sparse=sparse)
        if not sparse:
            self._populate(mapped, file, start, stop)
        return mapped

    def private(self, file: File, start: int, stop: int) -> Bytes | None:
        """Map bytes as private pages, on Linux."""
        if sys.platform != "linux":
            return None
        mapped = self._made(file, start, stop, access=mmap.ACCESS_COPY)
        file.check(os.fstat(self._fd(file)))
        self._populate(mapped, file, start, stop)
        return mapped.data[start - mapped.start :]

    def _populate(self, mapped: _Map, file: File, start: int, stop: int) -> None:
        if not mapped.populate(start, stop):
            file.check(os.fstat(self._fd(file)))
            raise OSError(errno.EIO, os.strerror(errno.EIO), file.path)


class Kept(Resting):
    """Keeps small files mapped between chunks.

    Their pages count as memory of the process; the system reclaims them on demand.
    """

    def keeps(self, file: File) -> _Map | None:
        """Return the kept map of a whole file, or map the file; None if the limits are exceeded."""
        found = _kept.get(file)
        if found is None and file.size <= KEPT_BYTES:
            try:
                sizes = [mapped.stop for mapped in _kept.values()]
            except RuntimeError:  # another thread has just mapped a file
                return None
            if len(sizes) < allowed(KEPT_MAPS) and sum(sizes) + file.size <= KEPT_BYTES:
                found = _kept.setdefault(file, super()._map(file, 0, file.size, sparse=False))
        return found

    def parts(self, ranges: ReadRanges, limit: int | None) -> Iterator[ReadRanges]:
        """Split read ranges, counting only pages that are read; the others are mapped anyway."""
        return ranges.split((limit or self._window) * max(1, int(_spread(ranges, mmap.PAGESIZE))))

    def _map(self, file: File, start: int, stop: int, *, sparse: bool) -> _Map:
        return self.keeps(file) or super()._map(file, start, stop, sparse=sparse)


class Buffered(_Local):
    """Reads a block at a time into one buffer.

    The file is checked after each read, so that two versions of it are never mixed.
    """

    def __init__(self, release: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._buffer = np.empty(0, np.uint8)
        self._release = release

    def windows(
        self, ranges: ReadRanges, limit: int | None = None, *, read: bool = True
    ) -> Iterator[Window]:
        """Read the span of each window, or frames one by one if they lie far apart."""
        (low, high), spread = ranges.units.reach, _spread(ranges)
        far, fits = spread > GAPS, high - low <= BLOCK_BYTES
        if not read and (far or (fits and spread >= 1)):  # frames do not interleave
            yield from self._requests(ranges, limit or MAPPED_BYTES)
        elif far:
            yield from self._gather(ranges)
        else:
            for part in ranges.split(min(limit or BLOCK_BYTES, BLOCK_BYTES)):
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

    def takes(self, file: File) -> bool:  # noqa: ARG002
        """Return True: every file can be read."""
        return True

    def keeps(self, file: File) -> None:
        """Return None: nothing is mapped."""

    def give_back(self) -> None:
        """Release all descriptors, also those of the mapped backend."""
        super().give_back()
        self._release()

    def _requests(self, ranges: ReadRanges, limit: int) -> Iterator[Window]:
        """Yield windows that a kernel reads into the buffer, until it has read all frames."""
        file, (low, high) = ranges.file, ranges.units.reach
        count = max(1, limit // (high - low))
        for first in range(0, len(ranges.offsets), count):
            some, failed = slice(first, first + count), -1
            part = ranges._replace(offsets=ranges.offsets[some], frames=ranges.frames[some])
            wanted = self._request(part)
            while wanted[DONE] < len(part.offsets):
                wanted[FD] = self._fd(file)
                yield Window(part, self._buffer, 0, wanted)
                file.check(os.fstat(self._fd(file)))
                if wanted[DONE] < len(part.offsets):
                    # Repeated to raise its error, unless a signal interrupted the kernel.
                    self._read(file, int(wanted[START]), int(wanted[STOP]))
                    if wanted[DONE] == failed:
                        problem = "bytes could not be read by a kernel, but by Python"
                        raise OSError(errno.EIO, problem, file.path)
                    failed = int(wanted[DONE])

    def _request(self, part: ReadRanges) -> Index:
        """Request frames in any order, as many at a time as fit into a block."""
        (low, high), align = part.units.reach, ALIGNMENT if self.direct else LINE_BYTES
        width = high - low
        near = min(int(GAPS * width), width + ALIGNMENT)
        most = max(near, width + 2 * align)  # bytes that a frame adds to those before it
        depth = min(max(1, round(KERNEL_BYTES / most)), len(part.offsets))
        self._reserve(depth * most + 2 * align)
        return request(depth, low, high, near, align)

    def _gather(self, ranges: ReadRanges) -> Iterator[Window]:
        from dask_tiled.kernels import gathering
        from dask_tiled.kernels.decoding import compiled

        gather = compiled("dask_tiled.kernels.gathering:gather", gathering.SIGNATURE)
        for part, data, _, wanted in self._requests(ranges, BLOCK_BYTES):
            some = slice(int(wanted[DONE]), int(wanted[DONE] + wanted[DEPTH]))
            offsets, frames = part.offsets[some], part.frames[some]
            places = np.empty_like(offsets)
            if gather(wanted, data, offsets, places):
                part.file.check(os.fstat(self._fd(part.file)))
                yield Window(part._replace(offsets=places, frames=frames), data, 0)
                wanted[DONE] += len(offsets)

    def _reserve(self, size: int) -> None:
        if len(self._buffer) < size:
            self._buffer = _aligned(max(size, BLOCK_BYTES + 2 * ALIGNMENT))

    def _read(self, file: File, start: int, stop: int) -> tuple[Bytes, int]:
        start -= start % ALIGNMENT
        wanted = stop - start
        size = wanted + -wanted % ALIGNMENT if self.direct else wanted
        self._reserve(size)
        self._read_into(file, start, self._buffer[:size], wanted)
        return self._buffer[:wanted], start

    def _read_into(self, file: File, start: int, out: Bytes, wanted: int) -> None:
        """Read bytes of a file into memory that may be larger."""
        fd, done = self._fd(file), 0
        while done < wanted:
            try:
                count = os.preadv(fd, [out[done:].data], start + done)
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
        file.check(os.fstat(fd))


class Direct(Buffered):
    """Reads blocks with O_DIRECT, for files much larger than memory: the page cache is bypassed."""

    direct = True


class Leased(Backend):
    """Maps windows of files that may change, each under a lease; without a lease, reads them.

    Under a lease no other program can truncate the file: opening it for writing blocks until the
    work on the window is done. User functions never run under a lease.
    """

    def __init__(self, mapped: Kept, buffered: Buffered) -> None:
        super().__init__()
        self._mapped, self._buffered = mapped, buffered

    def takes(self, file: File) -> bool:
        """Return whether a file may be mapped under a lease.

        HDF5 files may not: h5py waits for the end of the lease while it holds the GIL, which the
        thread with the lease needs.
        """
        return can_rest(file) and self._mapped.takes(file) and not self._is_hdf5(file)

    def keeps(self, file: File) -> _Map | None:
        """Return the map of a whole file if it is kept between chunks."""
        return self._mapped.keeps(file)

    def _is_hdf5(self, file: File) -> bool:
        with lent_fd(file, release=self._buffered.give_back) as fd:
            return any(os.pread(fd, len(HDF5), at) == HDF5 for at in (0, 512))

    def windows(
        self, ranges: ReadRanges, limit: int | None = None, *, read: bool = True
    ) -> Iterator[Window]:
        """Map each window if its lease is granted, else read it."""
        for part in self._mapped.parts(ranges, limit):
            with self._mapped.lease(part.file) as refused:
                if not refused:
                    yield from self._mapped.windows(part, limit, read=read)
            if refused:
                yield from self._buffered.windows(part, limit, read=read)

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Read a byte range into a buffer."""
        return self._buffered(file, start, stop)

    def fill(self, file: File, start: int, out: Bytes) -> bool:
        """Read bytes into ``out``."""
        return self._buffered.fill(file, start, out)


class Auto(Backend):
    """Maps files that cannot change, or are leased; reads all others.

    Small files stay mapped between chunks. Larger files, and all files with ``once``, are mapped a
    window at a time; frames that lie far apart are read. Workers of a cluster map nothing, as
    mapped pages count towards their memory limit.
    """

    def __init__(self, *, once: bool = False) -> None:
        super().__init__()
        kept = Kept()
        self._mapped = Resting() if once else kept
        self._buffered = Buffered(self._mapped.give_back)
        self._unsafe = self._buffered if once else Leased(kept, self._buffered)
        self._chosen: dict[File, Resting | Leased | Buffered] = {}

    def windows(
        self, ranges: ReadRanges, limit: int | None = None, *, read: bool = True
    ) -> Iterator[Window]:
        """Fetch windows with the backend chosen for the file, or read frames that lie far apart."""
        chosen = self._of(ranges.file)
        far = _spread(ranges) > GAPS and chosen.keeps(ranges.file) is None
        return (self._buffered if far else chosen).windows(ranges, limit, read=read)

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Fetch a byte range with the backend chosen for the file."""
        return self._of(file)(file, start, stop)

    def view(self, file: File, start: int, stop: int) -> Bytes | None:
        """View bytes with the backend chosen for the file."""
        return self._of(file).view(file, start, stop)

    def private(self, file: File, start: int, stop: int) -> Bytes | None:
        """Map private pages with the backend chosen for the file."""
        return self._of(file).private(file, start, stop)

    def fill(self, file: File, start: int, out: Bytes) -> bool:
        """Read into ``out`` with the backend chosen for the file."""
        return self._of(file).fill(file, start, out)

    def _of(self, file: File) -> Resting | Leased | Buffered:
        if file not in self._chosen:
            with lent_fd(file, release=self._buffered.give_back) as fd:
                first = self._mapped if rests(file, fd) else self._unsafe
            self._chosen[file] = first if first.takes(file) else self._buffered
        return self._chosen[file]

    def __exit__(self, *error: object) -> None:
        self._chosen.clear()
        with ExitStack() as stack:  # exit all, even if one raises
            for leave in (super().__exit__, self._buffered.__exit__, self._mapped.__exit__):
                stack.callback(leave, *error)


def _spread(ranges: ReadRanges, least: int = 1) -> float:
    """Return the spacing of frames, relative to the bytes read of each, at least ``least``."""
    start, stop = ranges.span
    low, high = ranges.units.reach
    return (stop - start) / (max(high - low, least) * len(ranges.offsets))


def _aligned(size: int) -> Bytes:
    memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size]


BACKENDS: dict[str, type[Backend]] = {"mmap": Mapped, "buffered": Buffered, "direct": Direct}


def backend_for(io: str) -> Backend:
    """Create the backend with a name; "once" is "auto" for a single pass over the files."""
    if io in ("auto", "once"):
        return Auto(once=io == "once")
    return BACKENDS[io]()
