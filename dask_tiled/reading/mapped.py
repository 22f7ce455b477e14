"""Map files: pixels are decoded from the page cache, without a copy."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dask_tiled.files.file import File
from dask_tiled.files.paths import GIVES_BACK, allowed, with_room
from dask_tiled.model.indexing import Bytes
from dask_tiled.reading.backend import Files, Local, Map
from dask_tiled.reading.cluster import thread_limit
from dask_tiled.reading.limits import (
    KEPT_BYTES,
    KEPT_MAPS,
    KEPT_WINDOW_BYTES,
    LEAST_MAPPED_BYTES,
    MAPPED_BYTES,
    MAPPED_SHARE,
    SPARSE,
)
from dask_tiled.reading.ranges import ReadRanges, Window
from dask_tiled.system.files import HINDERS
from dask_tiled.system.pages import HAS_PRIVATE_PAGES

_kept: WeakKeyDictionary[File, Map] = WeakKeyDictionary()
"""Maps of whole files; a map lives as long as the array that was the first to read the file."""
GIVES_BACK.append(_kept.clear)


class MappedWindows(Local):
    """Maps a window of a file at a time, without a copy.

    Touching a page beyond the end of a file ends the process, so the file is checked before each
    window is used, unless mapped files cannot be truncated. It is checked again afterwards, so that
    two versions of it never mix.
    """

    def __init__(self, files: Files | None = None) -> None:
        super().__init__(files)
        self._window = _window(thread_limit())

    def windows(
        self,
        ranges: ReadRanges,
        limit: int | None = None,
        *,
        at_once: int | None = 0,  # noqa: ARG002
    ) -> Iterator[Window]:
        """Map the file around each window, unless it is mapped already."""
        sparse = ranges.spread() > SPARSE
        for part in self.parts(ranges, limit):
            mapped = self._around(part.file, *part.span, sparse=sparse)
            yield Window(part, mapped.data, mapped.start)

    def __call__(self, file: File, start: int, stop: int) -> Bytes:
        """Map a file around a byte range."""
        mapped = self._around(file, start, stop, sparse=False)
        return mapped.data[start - mapped.start : stop - mapped.start]

    view = __call__

    def fill(self, file: File, start: int, out: Bytes) -> bool:
        """Copy mapped bytes in large parts: memcpy then writes without loading the destination."""
        for first in range(0, len(out), self._window):
            part = out[first : first + self._window]
            np.copyto(part, self(file, start + first, start + first + len(part)))
        return True

    def parts(self, ranges: ReadRanges, limit: int | None) -> Iterator[ReadRanges]:
        """Split read ranges into those of windows."""
        return ranges.split(min(self._window, limit or self._window))

    def _around(self, file: File, start: int, stop: int, *, sparse: bool) -> Map:
        mapped = self._files.maps.get(file)
        if mapped is None or start < mapped.start or stop > mapped.stop:
            mapped = self._files.maps[file] = self._map(file, start, stop, sparse=sparse)
        elif HINDERS:  # a mapped file keeps its length
            return mapped
        self._files.check(file)
        return mapped

    def _map(self, file: File, start: int, stop: int, *, sparse: bool) -> Map:
        stop = max(stop, min(start + self._window, file.size))
        return self._made(file, start, stop, sparse=sparse)

    def _made(self, file: File, start: int, stop: int, **options: Any) -> Map:
        # mmap duplicates the descriptor.
        make = lambda: Map(self._files.fd(file), start, stop, **options)  # noqa: E731
        try:
            return with_room(make, file.path, self._files.close)
        except ValueError:  # raised by mmap for a file that is too short
            self._files.check(file)
            raise


def _window(limit: int | None) -> int:
    """Return the size of a window for the memory limit of a thread."""
    share = MAPPED_BYTES if limit is None else limit // MAPPED_SHARE
    return min(MAPPED_BYTES, max(LEAST_MAPPED_BYTES, share))


class Resting(MappedWindows):
    """Maps files that have not changed for a while, and populates pages before they are touched."""

    def keeps(self, file: File) -> Map | None:  # noqa: ARG002
        """Return the map of a whole file if it is kept between chunks."""
        return None

    def _around(self, file: File, start: int, stop: int, *, sparse: bool) -> Map:
        mapped = super()._around(file, start, stop, sparse=sparse)
        if not sparse:
            self._populate(mapped, file, start, stop)
        return mapped

    def private(self, file: File, start: int, stop: int) -> Bytes | None:
        """Map bytes as private pages, where the system can make them independent of the file."""
        if not HAS_PRIVATE_PAGES:
            return None
        mapped = self._made(file, start, stop, access=mmap.ACCESS_COPY)
        self._files.check(file)
        self._populate(mapped, file, start, stop)
        return mapped.data[start - mapped.start :]

    def _populate(self, mapped: Map, file: File, start: int, stop: int) -> None:
        if not mapped.populate(start, stop):
            self._files.check(file)
            raise OSError(errno.EIO, os.strerror(errno.EIO), file.path)


class Kept(Resting):
    """Keeps small files mapped between chunks.

    Their pages count as memory of the process; the system reclaims them on demand.
    """

    def keeps(self, file: File) -> Map | None:
        """Return the kept map of a whole file, or map the file; None if the limits are exceeded."""
        kept = _kept.get(file)
        if kept is None and file.size <= KEPT_BYTES:
            try:
                sizes = [mapped.stop for mapped in _kept.values()]
            except RuntimeError:  # another thread has just mapped a file
                return None
            if len(sizes) < allowed(KEPT_MAPS) and sum(sizes) + file.size <= KEPT_BYTES:
                kept = _kept.setdefault(file, super()._map(file, 0, file.size, sparse=False))
        return kept

    def parts(self, ranges: ReadRanges, limit: int | None) -> Iterator[ReadRanges]:
        """Split read ranges, counting only pages that are read; the others are mapped anyway."""
        nbytes = limit or (KEPT_WINDOW_BYTES if self.keeps(ranges.file) else self._window)
        return ranges.split(nbytes * max(1, int(ranges.spread(mmap.PAGESIZE))))

    def _map(self, file: File, start: int, stop: int, *, sparse: bool) -> Map:
        return self.keeps(file) or super()._map(file, start, stop, sparse=sparse)
