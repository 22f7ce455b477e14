"""Backends: how the bytes of read ranges are fetched."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np

from dask_tiled.errors import StaleFileError
from dask_tiled.model.files import File
from dask_tiled.model.indexing import Bytes
from dask_tiled.model.paths import GIVES_BACK, allowed, with_room
from dask_tiled.reading.cluster import on_a_cluster, thread_limit
from dask_tiled.reading.descriptors import lent_fd
from dask_tiled.reading.planning import Ranges
from dask_tiled.reading.ranges import ReadRanges, Window
from dask_tiled.reading.rest import can_rest, leased, rests

MAPPED_BYTES = 32 << 20
"""So much is mapped at a time: touched pages count as memory of the process."""
LEAST_MAPPED_BYTES = 1 << 20
"""So much even where memory is short."""
MAPPED_SHARE = 64
"""One part of so many of what a thread of a worker may use is mapped at a time, and no more."""
BLOCK_BYTES = 2 << 20
"""Bytes that are read at a time: they stay in a core's share of the cache."""
SHOWN_BYTES = 8 << 20
"""So much of it is shown at a time: what is decoded of it stays in the outer cache."""
KEPT_BYTES = 1 << 30
"""So much of files, and no more, stays mapped from one chunk to the next."""
KEPT_MAPS = 8
"""So many files, and no more, stay mapped."""
OPEN_FILES = 8
"""So many files are mapped at once for one chunk."""
GAPS = 1.25
"""Frames that lie so many times farther apart than what is read of them are read one by one."""
POPULATED_BYTES = 1 << 18
"""Pages of so many bytes are asked for at once."""
MADV_POPULATE_READ, EHWPOISON = 22, 133  # Python does not name them
SPARSE = 16
"""Of frames that lie so many times farther apart, mapped pages are read one by one."""
ALIGNMENT = 4096
"""Direct reads begin and end at multiples of this, in the file and in memory."""

_kept: WeakKeyDictionary[File, _Map] = WeakKeyDictionary()
"""Whole files, for as long as the array lives that was the first to read them."""
GIVES_BACK.append(_kept.clear)


class Backend(ABC):
    """Fetches bytes for the work on one chunk, in one thread."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._kept: dict[Hashable, Any] = {}

    @abstractmethod
    def windows(self, ranges: ReadRanges, limit: int | None = None) -> Iterator[Window]:
        """Fetch the bytes of read ranges, window by window.

        Parameters
        ----------
        ranges : ReadRanges
        limit : int, optional
            Largest span of a window in bytes; by default that of the backend, which need not show
            as much.

        Yields
        ------
        Window
            Of a part of the read ranges; valid until the next one is asked for.
        """

    def expect(self, ranges: Iterable[Ranges]) -> None:  # noqa: B027 - most need not know
        """Get to know what will be asked for, before it is."""

    @abstractmethod
    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Fetch some bytes of a file; they are valid until the next ones are asked for."""

    def view(self, file: File, start: int, stop: int) -> Bytes | None:  # noqa: ARG002
        """Show some bytes where they lie, until the chunk is done; None if they do not."""
        return None

    def fill(self, file: File, start: int, out: Bytes) -> bool:  # noqa: ARG002
        """Fetch bytes to where they are wanted; tell whether that is done, or is no way to go."""
        return False

    def keep(self, key: Hashable, make: Callable[[], AbstractContextManager[Any]]) -> Any:
        """Enter what is made for a key, once, and leave it when the work on the chunk is done."""
        if key not in self._kept:
            self._kept[key] = self._open.enter_context(make())
        return self._kept[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._kept.clear()
        self._open.close()


class _Local(Backend):
    """Fetches bytes of files of this machine, a few of which stay open until the chunk is done.

    Descriptors are given back early where there are not enough of them.
    """

    direct = False

    def __init__(self) -> None:
        super().__init__()
        self._fds: dict[File, int] = {}
        self._lent = ExitStack()

    def give_back(self) -> None:
        """Give back all descriptors."""
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
        close: Callable[..., object] = self._lent.__exit__  # after an error, not to be lent again
        with ExitStack() as stack:
            stack.callback(super().__exit__, *error)
            stack.callback(close, *error)


class _Map:
    """Some bytes of a file, mapped: not closed by hand, but gone with the last array on them."""

    def __init__(self, fd: int, start: int, stop: int, *, sparse: bool = False) -> None:
        self.start, self.stop = start - start % mmap.ALLOCATIONGRANULARITY, stop
        view = mmap.mmap(fd, stop - self.start, access=mmap.ACCESS_READ, offset=self.start)
        if sparse:
            view.madvise(mmap.MADV_RANDOM)
        self.data: Bytes = np.frombuffer(view, np.uint8)
        self._populated = np.zeros(-(-len(self.data) // POPULATED_BYTES), bool)

    def populate(self, start: int, stop: int) -> bool:
        """Have pages before they are touched, once; tell whether none is refused.

        Other systems, and kernels before 5.14, have them when they are touched.
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
    """Ask for mapped pages, and tell whether one of them cannot be had."""
    if sys.platform != "linux":
        return False
    # Not by the mmap of Python, which has other threads wait for the disk.
    pages = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
    status = _libc().madvise(*pages, MADV_POPULATE_READ)
    return bool(status) and ctypes.get_errno() in {errno.EFAULT, EHWPOISON}


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class Mapped(_Local):
    """Maps a window of a file at a time: nothing is copied.

    To touch a page that a file has no more ends the process. So it is looked at before each window
    is shown; and afterwards, so that two versions of it never mix.
    """

    def __init__(self) -> None:
        super().__init__()
        self._maps: dict[File, _Map] = {}
        self._window = _window(thread_limit())

    def windows(self, ranges: ReadRanges, limit: int | None = None) -> Iterator[Window]:
        """Map the file around each window, unless that was done before."""
        sparse = _spread(ranges) > SPARSE
        for part in self.parts(ranges, limit):
            mapped = self._around(part.file, *part.span, sparse=sparse)
            yield Window(part, mapped.data, mapped.start)

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Map a file around some bytes."""
        mapped = self._around(file, start, stop, sparse=False)
        return mapped.data[start - mapped.start : stop - mapped.start]

    def view(self, file: File, start: int, stop: int) -> Bytes | None:
        """Map a file around some bytes."""
        return self(file, start, stop)

    def fill(self, file: File, start: int, out: Bytes) -> bool:
        """Copy mapped bytes, many at once: the C library does not read the memory it writes to."""
        for first in range(0, len(out), self._window):
            part = out[first : first + self._window]
            np.copyto(part, self(file, start + first, start + first + len(part)))
        return True

    def parts(self, ranges: ReadRanges, limit: int | None) -> Iterator[ReadRanges]:
        """Cut read ranges into those of windows."""
        return ranges.split(min(self._window, limit or SHOWN_BYTES))

    @contextmanager
    def lease(self, file: File) -> Iterator[int]:
        """Hold a lease of a file: see :func:`leased`.

        It has a descriptor of its own: leases of other windows of the file may end before.
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
        # A map takes a second descriptor.
        make = lambda: _Map(self._fd(file), start, stop, sparse=sparse)  # noqa: E731
        try:
            return with_room(make, file.path, self.give_back)
        except ValueError:  # Python finds the file too short
            file.check(os.fstat(self._fd(file)))
            raise

    def give_back(self) -> None:
        """Give back all descriptors, and the maps that take some."""
        self._maps.clear()
        super().give_back()

    def __exit__(self, *error: object) -> None:
        self._maps.clear()
        super().__exit__(*error)


def _window(limit: int | None) -> int:
    """Return the bytes to map at a time, of those that a thread may use."""
    share = MAPPED_BYTES if limit is None else limit // MAPPED_SHARE
    return min(MAPPED_BYTES, max(LEAST_MAPPED_BYTES, share))


class Resting(Mapped):
    """Maps files that rest, and has each of their pages before it is touched."""

    def __init__(self) -> None:
        super().__init__()
        self._window = min(self._window, SHOWN_BYTES)

    def takes(self, file: File) -> bool:  # noqa: ARG002
        """Return whether a file that rests is mapped."""
        return not on_a_cluster()

    def _around(self, file: File, start: int, stop: int, *, sparse: bool) -> _Map:
        mapped = super()._around(file, start, stop, sparse=sparse)
        if not sparse and not mapped.populate(start, stop):
            file.check(os.fstat(self._fd(file)))
            raise OSError(errno.EIO, os.strerror(errno.EIO), file.path)
        return mapped


class Kept(Resting):
    """Leaves small files mapped.

    That is memory of the process, which the system takes back when it needs it.
    """

    def takes(self, file: File) -> bool:
        """Return whether there is room for a file among those that stay mapped."""
        return super().takes(file) and self.keeps(file) is not None

    def keeps(self, file: File) -> _Map | None:
        """Map a whole file to stay so, unless that is done; None where it would be too much."""
        found = _kept.get(file)
        if found is None and file.size <= KEPT_BYTES:
            try:
                sizes = [mapped.stop for mapped in _kept.values()]
            except RuntimeError:  # another thread has mapped a file
                return None
            if len(sizes) < allowed(KEPT_MAPS) and sum(sizes) + file.size <= KEPT_BYTES:
                found = _kept.setdefault(file, super()._map(file, 0, file.size, sparse=False))
        return found

    def parts(self, ranges: ReadRanges, limit: int | None) -> Iterator[ReadRanges]:
        """Count only the pages that are read: those between them are mapped as well."""
        most = limit or min(self._window, SHOWN_BYTES)
        return ranges.split(most * max(1, int(_spread(ranges, mmap.PAGESIZE))))

    def _map(self, file: File, start: int, stop: int, *, sparse: bool) -> _Map:
        return self.keeps(file) or super()._map(file, start, stop, sparse=sparse)


class Buffered(_Local):
    """Reads a block at a time into one buffer.

    After each read the file is looked at, so that nobody decodes a mixture of two versions.
    """

    def __init__(self, release: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._buffer = np.empty(0, np.uint8)
        self._release = release

    def windows(self, ranges: ReadRanges, limit: int | None = None) -> Iterator[Window]:
        """Read the span of each window, or of each frame where frames lie far apart."""
        if not self.direct and _spread(ranges) > GAPS:
            yield from self._gather(ranges)
            return
        for part in ranges.split(min(limit or BLOCK_BYTES, BLOCK_BYTES)):
            yield Window(part, *self._read(part.file, *part.span))

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Read some bytes."""
        data, origin = self._read(file, start, stop)
        return data[start - origin : stop - origin]

    def fill(self, file: File, start: int, out: Bytes) -> bool:
        """Read bytes to where they are wanted, unless these may not be read there."""
        if not self.direct:
            self._read_into(file, start, out, len(out))
        return not self.direct

    def takes(self, file: File) -> bool:  # noqa: ARG002
        """Return True: every file can be read."""
        return True

    def give_back(self) -> None:
        """Give back all descriptors, and what somebody else can."""
        super().give_back()
        self._release()

    def _gather(self, ranges: ReadRanges) -> Iterator[Window]:
        from dask_tiled.kernels import decoding as kernels
        from dask_tiled.kernels import gathering

        gather = kernels.compiled("dask_tiled.kernels.gathering:gather", gathering.SIGNATURE)
        low, high = ranges.units.reach
        width = high - low
        step = max(1, BLOCK_BYTES // width)
        for first in range(0, len(ranges.offsets), step):
            offsets = ranges.offsets[first : first + step] + low
            frames = ranges.frames[first : first + step]
            self._reserve(len(offsets) * width)
            fd = self._fd(ranges.file)
            done = gather(fd, offsets, width, self._buffer)
            if done < len(offsets):
                start = int(offsets[done])
                self._read(ranges.file, start, start + width)  # once more, to learn why
                raise OSError(errno.EIO, "bytes could not be read at once", ranges.file.path)
            ranges.file.check(os.fstat(fd))
            places = np.arange(len(offsets)) * width - low
            part = ranges._replace(offsets=places, frames=frames, ascending=True)
            yield Window(part, self._buffer[: len(offsets) * width], 0)

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
        """Read bytes of a file to memory that may have room for more."""
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
                    "the file ends too early",
                    path=file.path,
                    where=f"byte {start + done}",
                    expected=f"{file.size} bytes",
                    found=f"{start + done} bytes",
                )
            done += count
        file.check(os.fstat(fd))


class Direct(Buffered):
    """Reads a block at a time past the page cache, for files that are much larger than memory."""

    direct = True


class Leased(Backend):
    """Maps windows of small files that do not rest, each under a lease, and reads all else.

    While there is a lease, no other program can cut the file short. Whoever opens it for writing
    waits until the work on one window is done, which is never that of a user's function.
    """

    def __init__(self, mapped: Kept, buffered: Buffered) -> None:
        super().__init__()
        self._mapped, self._buffered = mapped, buffered

    def takes(self, file: File) -> bool:
        """Return whether a file may be mapped while there is a lease of it."""
        return can_rest(file) and self._mapped.takes(file)

    def windows(self, ranges: ReadRanges, limit: int | None = None) -> Iterator[Window]:
        """Map the windows for which there is a lease."""
        for part in self._mapped.parts(ranges, limit):
            with self._mapped.lease(part.file) as refused:
                if not refused:
                    yield from self._mapped.windows(part, limit)
            if refused:
                yield from self._buffered.windows(part, limit)

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Read some bytes."""
        return self._buffered(file, start, stop)

    def fill(self, file: File, start: int, out: Bytes) -> bool:
        """Read bytes to where they are wanted."""
        return self._buffered.fill(file, start, out)


class Auto(Backend):
    """Maps files that rest, or of which there is a lease, and reads all others.

    Pages that stay mapped are neither read nor mapped again. Files that are gone through ``once``
    are mapped a window at a time, unless few of its pages are wanted. Workers of a cluster, which
    stop at some size of the process, map none.
    """

    def __init__(self, *, once: bool = False) -> None:
        super().__init__()
        self._once = once
        kept = Kept()
        self._mapped = Resting() if once else kept
        self._buffered = Buffered(self._mapped.give_back)
        self._unsafe = self._buffered if once else Leased(kept, self._buffered)
        self._chosen: dict[File, Backend] = {}

    def windows(self, ranges: ReadRanges, limit: int | None = None) -> Iterator[Window]:
        """Choose for the file."""
        if self._once and _spread(ranges) > GAPS:
            return self._buffered.windows(ranges, limit)
        return self._of(ranges.file).windows(ranges, limit)

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Choose for the file."""
        return self._of(file)(file, start, stop)

    def view(self, file: File, start: int, stop: int) -> Bytes | None:
        """Choose for the file."""
        return self._of(file).view(file, start, stop)

    def fill(self, file: File, start: int, out: Bytes) -> bool:
        """Choose for the file."""
        return self._of(file).fill(file, start, out)

    def _of(self, file: File) -> Backend:
        if file not in self._chosen:
            with lent_fd(file, release=self._buffered.give_back) as fd:
                one = self._mapped if rests(file, fd) else self._unsafe
            self._chosen[file] = one if one.takes(file) else self._buffered
        return self._chosen[file]

    def __exit__(self, *error: object) -> None:
        self._chosen.clear()
        with ExitStack() as stack:  # all of them, even if one raises
            for leave in (super().__exit__, self._buffered.__exit__, self._mapped.__exit__):
                stack.callback(leave, *error)


def _spread(ranges: ReadRanges, least: int = 1) -> float:
    """Return the distance of frames by the bytes that are read of each, ``least`` or more."""
    start, stop = ranges.span
    low, high = ranges.units.reach
    return (stop - start) / (max(high - low, least) * len(ranges.offsets))


def _aligned(size: int) -> Bytes:
    memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size]


BACKENDS: dict[str, type[Backend]] = {"mmap": Mapped, "buffered": Buffered, "direct": Direct}


def backend_for(io: str) -> Backend:
    """Make the backend of a name; "once" is "auto" for what is gone through from end to end."""
    if io in ("auto", "once"):
        return Auto(once=io == "once")
    return BACKENDS[io]()
