"""Backends: how the bytes of read ranges are fetched, and where mapping is no good choice."""

from __future__ import annotations

import errno
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import StaleFileError
from dask_tiled.model.descriptors import GIVES_BACK, SHORT, allowed, descriptor, with_room
from dask_tiled.model.files import File
from dask_tiled.model.paths import is_url
from dask_tiled.reading.cluster import on_a_cluster, thread_limit
from dask_tiled.reading.planning import Ranges
from dask_tiled.reading.ranges import ReadRanges, Window

Bytes = npt.NDArray[np.uint8]

MAPPED_BYTES = 32 << 20
"""So much is mapped at a time: touched pages count as memory of the process."""
LEAST_MAPPED_BYTES = 1 << 20
"""So much even where memory is short."""
MAPPED_SHARE = 64
"""One part of so many of what a thread of a worker may use is mapped at a time, and no more."""
BLOCK_BYTES = 1 << 20
"""So much is read at a time: what stays in a core's share of the cache."""
LIVING_MAPS = 32
"""So many maps, and no more, live on in results: each holds a descriptor."""
KEPT_BYTES = 1 << 30
"""So much of files, and no more, stays mapped from one chunk to the next."""
KEPT_MAPS = 8
"""So many files, and no more, stay mapped."""
OPEN_FILES = 8
"""So many files are mapped at once for one chunk."""
GAPS = 1.25
"""Frames that lie so many times farther apart than what is read of them are read one by one."""
SPARSE = 16
"""Frames that lie so many times farther apart are not mapped where the choice is free."""
ALIGNMENT = 4096
"""Direct reads begin and end at multiples of this, in the file and in memory."""

_living: WeakSet[mmap.mmap] = WeakSet()
_kept: WeakKeyDictionary[File, Bytes] = WeakKeyDictionary()
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
            Largest span of a window in bytes, where it is less than the backend's own.

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


class Mapped(Backend):
    """Maps a window of a file at a time: nothing is copied.

    A mapping past the end of a file ends the process when it is touched, so the file is looked at
    before, and afterwards too, so that two versions of it never mix.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fds: dict[File, int] = {}
        self._maps: dict[File, tuple[Bytes, int]] = {}
        self._window = _window(thread_limit())

    def windows(self, ranges: ReadRanges, limit: int | None = None) -> Iterator[Window]:
        """Map the file around each window, unless that was done before."""
        sparse = _spread(ranges) > SPARSE
        most = self._most(ranges.file)
        for part in ranges.split(min(limit or most, most)):
            yield Window(part, *self._around(part.file, *part.span, sparse=sparse))

    def _most(self, file: File) -> int:  # noqa: ARG002
        """Tell how much of a file is shown at once."""
        return self._window

    def around(self, ranges: ReadRanges) -> tuple[Bytes, int] | None:
        """Map all of the span of read ranges at once, unless there are many maps already."""
        if len(_living) >= allowed(LIVING_MAPS) and self._most(ranges.file) == self._window:
            return None
        return self._around(ranges.file, *ranges.span, sparse=False)

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Map a file around some bytes."""
        data, origin = self._around(file, start, stop, sparse=False)
        return data[start - origin : stop - origin]

    def _around(self, file: File, start: int, stop: int, *, sparse: bool) -> tuple[Bytes, int]:
        data, origin = self._maps.get(file, (None, 0))
        if data is None or start < origin or stop > origin + len(data):
            data, origin = self._map(file, start, stop, sparse=sparse)
            self._maps[file] = data, origin
        return data, origin

    def _map(self, file: File, start: int, stop: int, *, sparse: bool) -> tuple[Bytes, int]:
        start -= start % mmap.ALLOCATIONGRANULARITY
        stop = max(stop, min(start + self._window, file.size))
        return self._mapped(file, start, stop, sparse=sparse), start

    def _mapped(self, file: File, start: int, stop: int, *, sparse: bool) -> Bytes:
        """Map some bytes, which takes a second descriptor."""
        make = lambda: _map(self._fd(file), start, stop, sparse=sparse)  # noqa: E731
        return with_room(make, file.path, self.__exit__)

    def _fd(self, file: File) -> int:
        if file not in self._fds:
            if len(self._fds) >= allowed(OPEN_FILES):
                self.__exit__()
            self._fds[file] = self._open.enter_context(descriptor(file, release=self.__exit__))
        return self._fds[file]

    def __exit__(self, *error: object) -> None:
        self._maps.clear()
        self._fds.clear()
        super().__exit__(*error)


def _window(limit: int | None) -> int:
    """Give the bytes to map at a time, of those that a thread may use."""
    share = MAPPED_BYTES if limit is None else limit // MAPPED_SHARE
    return min(MAPPED_BYTES, max(LEAST_MAPPED_BYTES, share))


def _map(fd: int, start: int, stop: int, *, sparse: bool) -> Bytes:
    """Map some bytes of a file: not closed by hand, but gone with the last array on it."""
    view = mmap.mmap(fd, stop - start, access=mmap.ACCESS_READ, offset=start)
    if sparse:
        view.madvise(mmap.MADV_RANDOM)
    _living.add(view)
    return np.frombuffer(view, dtype=np.uint8)


class Buffered(Backend):
    """Reads a block at a time into one buffer."""

    direct = False

    def __init__(self, release: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._buffer = np.empty(0, np.uint8)
        self._release = release

    def windows(self, ranges: ReadRanges, limit: int | None = None) -> Iterator[Window]:
        """Read the span of each window, or of each frame where frames lie far apart."""
        with descriptor(ranges.file, direct=self.direct, release=self._release) as fd:
            if not self.direct and _spread(ranges) > GAPS:
                yield from self._gather(fd, ranges)
                return
            for part in ranges.split(min(limit or BLOCK_BYTES, BLOCK_BYTES)):
                yield Window(part, *self._read(fd, part.file, *part.span))

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Read some bytes."""
        with descriptor(file, direct=self.direct, release=self._release) as fd:
            data, origin = self._read(fd, file, start, stop)
        return data[start - origin : stop - origin]

    def _gather(self, fd: int, ranges: ReadRanges) -> Iterator[Window]:
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
            done = gather(fd, offsets, width, self._buffer)
            if done < len(offsets):
                start = int(offsets[done])
                self._read(fd, ranges.file, start, start + width)  # once more, to learn why
                raise OSError(errno.EIO, "bytes could not be read at once", ranges.file.path)
            places = np.arange(len(offsets)) * width - low
            part = ranges._replace(offsets=places, frames=frames, ascending=True)
            yield Window(part, self._buffer[: len(offsets) * width], 0)

    def _reserve(self, size: int) -> None:
        if len(self._buffer) < size:
            self._buffer = _aligned(max(size, BLOCK_BYTES + 2 * ALIGNMENT))

    def _read(self, fd: int, file: File, start: int, stop: int) -> tuple[Bytes, int]:
        start -= start % ALIGNMENT
        wanted = stop - start
        size = wanted + -wanted % ALIGNMENT if self.direct else wanted
        self._reserve(size)
        view = self._buffer[:size].data
        done = 0
        while done < wanted:
            try:
                count = os.preadv(fd, [view[done:]], start + done)
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
        return self._buffer[:wanted], start


class Direct(Buffered):
    """Reads a block at a time past the page cache, for files that are much larger than memory."""

    direct = True


class Auto(Mapped):
    """Maps what is dense or stays mapped, and reads what else is sparse frame by frame.

    To map pages once more takes about as long as to decode what is in them, so small files stay
    mapped. That is memory of the process, which the system takes back when it needs it; workers of
    a cluster, which stop at some size of the process, keep none.
    """

    def windows(self, ranges: ReadRanges, limit: int | None = None) -> Iterator[Window]:
        """Choose for each piece."""
        if _spread(ranges) > SPARSE and self._whole(ranges.file) is None:
            return Buffered(self.__exit__).windows(ranges, limit)
        return super().windows(ranges, limit)

    def _most(self, file: File) -> int:
        return file.size if file in _kept else self._window

    def _map(self, file: File, start: int, stop: int, *, sparse: bool) -> tuple[Bytes, int]:
        data = self._whole(file)
        return super()._map(file, start, stop, sparse=sparse) if data is None else (data, 0)

    def _whole(self, file: File) -> Bytes | None:
        """Map a whole file to stay so, unless that is done; None where it would be too much."""
        self._fd(file)  # which looks at it, also where it is mapped
        found = _kept.get(file)
        if found is None and file.size <= KEPT_BYTES and not on_a_cluster():
            try:
                sizes = [len(data) for data in _kept.values()]
            except RuntimeError:  # another thread has mapped a file
                return None
            if len(sizes) < allowed(KEPT_MAPS) and sum(sizes) + file.size <= KEPT_BYTES:
                found = _kept.setdefault(file, self._mapped(file, 0, file.size, sparse=False))
        return found


def _spread(ranges: ReadRanges) -> float:
    """Tell how many times farther apart frames lie than what is read of each."""
    start, stop = ranges.span
    low, high = ranges.units.reach
    return (stop - start) / ((high - low) * len(ranges.offsets))


def _aligned(size: int) -> Bytes:
    memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size]


BACKENDS: dict[str, type[Backend]] = {"mmap": Mapped, "buffered": Buffered, "direct": Direct}


def backend_for(io: str, path: str) -> Backend:
    """Make the backend of a name; for "auto", the one that suits the place where a file lies.

    On a network file system a page that cannot be had ends a process that has mapped it, so files
    there are read.
    """
    if io != "auto":
        return BACKENDS[io]()
    return Buffered() if is_remote(path) else Auto()


# fmt: off
REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "orangefs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
}
# fmt: on
"""Types of network file systems; everything in user space counts as one, too,
but for what lies on a block device of this machine."""


MOUNTS = "/proc/self/mountinfo"
_mounts: dict[tuple[int, int], str] = {}


def is_remote(path: str) -> bool:
    """Tell whether a file lies on a network file system, where mapped pages can fail to come.

    Where the system has no table of mounts to look it up in, it counts as local.
    """
    if is_url(path):
        return True
    try:
        device = os.stat(path).st_dev
    except OSError:
        return False
    number = os.major(device), os.minor(device)
    if number not in _mounts:  # never looked up, or mounted since
        _mounts.update({number: "", **_types()})
    return _mounts[number] in REMOTE


def _types() -> dict[tuple[int, int], str]:
    """List the types of the mounted file systems by device."""
    try:
        table = with_room(partial(open, MOUNTS, encoding="utf-8", errors="surrogateescape"), MOUNTS)
    except OSError as error:
        if error.errno in SHORT:
            raise
        return {}
    with table:
        lines = table.readlines()
    return dict(map(parse_mount, lines))


def parse_mount(line: str) -> tuple[tuple[int, int], str]:
    """Read device and type from a line of ``/proc/self/mountinfo``."""
    before, _, after = line.partition(" - ")
    major, _, minor = before.split()[2].partition(":")
    kind = after.split()[0]
    in_user_space = kind == "fuse" or kind.startswith("fuse.")
    return (int(major), int(minor)), "nfs" if in_user_space else kind
