"""The interface of backends, and the local files that they hold open and mapped."""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from typing import Any, Self

import numpy as np

from dask_tiled.files.file import File
from dask_tiled.files.paths import allowed
from dask_tiled.model.indexing import Bytes
from dask_tiled.reading.descriptors import lend, status_again, take_back
from dask_tiled.reading.limits import OPEN_FILES, POPULATED_BYTES
from dask_tiled.reading.planning import Ranges
from dask_tiled.reading.ranges import ReadRanges, Window
from dask_tiled.system.pages import expect_single, refuses


class Backend(ABC):
    """Fetches bytes for one chunk, in one thread."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}

    @abstractmethod
    def windows(
        self, ranges: ReadRanges, limit: int | None = None, *, at_once: int | None = 0
    ) -> Iterator[Window]:
        """Fetch the bytes of read ranges, window by window.

        Parameters
        ----------
        ranges : ReadRanges
        limit : int, optional
            Maximum span of a window in bytes; by default that of the backend, which may be smaller.
        at_once : int, optional, default: 0
            The bytes may be left to one kernel to read, as the request of the window says: this
            number of frames at once, if they stay in the cache; if 0, only frames that lie far
            apart. If it fails, it gets the window again, and goes on. None if several kernels take
            a window: its bytes are there.

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

    @cached_property
    def _open(self) -> ExitStack:
        return ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._kept:
            self._kept.clear()
            self._open.close()


class Map:
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
            expect_single(view)
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
            if refuses(self.data.ctypes.data + low, high - low):
                return False
            self._populated[first:last] = True
        return True


class Files:
    """Open local files and their maps, for one chunk; a few stay open until it is done.

    They are released early if the process runs short of descriptors.
    """

    def __init__(self, *, direct: bool = False) -> None:
        self.maps: dict[File, Map] = {}
        self._direct = direct
        self._fds: dict[File, int] = {}

    def fd(self, file: File) -> int:
        """Return a descriptor of a file."""
        if file not in self._fds:
            if len(self._fds) >= allowed(OPEN_FILES):
                self.close()
            self._fds[file] = lend(file, direct=self._direct, release=self.close)
        return self._fds[file]

    def check(self, file: File) -> None:
        """Check that a file is unchanged."""
        file.check(status_again(file, self.fd(file)))

    def close(self, *error: Any) -> None:
        """Release all descriptors, and the maps, which hold some; after an error, close them."""
        self.maps.clear()
        try:
            while self._fds and not any(error):
                file, fd = self._fds.popitem()
                take_back(file, fd, direct=self._direct)
        finally:
            while self._fds:
                os.close(self._fds.popitem()[1])


class Local(Backend):
    """Reads local files, which several backends may share."""

    direct = False

    def __init__(self, files: Files | None = None) -> None:
        super().__init__()
        self._files = files or Files(direct=self.direct)

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._files.close(*error)
