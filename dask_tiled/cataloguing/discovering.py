"""The datasets below folders, one after the other."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from dask_tiled.apart.calls import EndedError
from dask_tiled.cataloguing.belonging import Belongings
from dask_tiled.cataloguing.headers import FileHeader, PictureHeader, prepared, read_header
from dask_tiled.cataloguing.readers import HeaderReaders
from dask_tiled.cataloguing.store import HeaderStore
from dask_tiled.cataloguing.walking import FolderFiles, FolderWalk, Stamp
from dask_tiled.errors import DatasetError
from dask_tiled.formats.registry import pickled_formats
from dask_tiled.formats.tools.files import NUMBERED, natural_key
from dask_tiled.tiling.machine import processors

SECONDS = 10.0
"""CPU seconds for the headers of a file; by the clock, they may take ten times as long."""
MOST_READERS = 8
AHEAD = 8
"""Files that wait for each reader."""


class FoundDataset(NamedTuple):
    """A dataset below a folder.

    Attributes
    ----------
    path : str
        The path to open.
    format : str
        Name of its format; empty if it cannot be read.
    pictures : tuple of PictureHeader
        Its pictures, each with the options of ``open_dataset`` that it needs.
    files : tuple of str
        All files that belong to it, the path first.
    stamp : Stamp
        Bytes of the files, and their latest change.
    problem : str
        Why it cannot be opened; empty if it can.
    """

    path: str
    format: str
    pictures: tuple[PictureHeader, ...]
    files: tuple[str, ...]
    stamp: Stamp
    problem: str = ""


class Discovery:
    """The datasets below some paths; iterating reads their headers, in child processes.

    Parameters
    ----------
    paths : path-like or sequence of path-like
        Folders and files.
    pattern : str or sequence of str, optional
        Patterns of file names; by default all files are tried.
    recursive : bool
        Whether to search the folders in folders.
    seconds : float
        CPU seconds for the headers of a file; by the clock, they may take ten times as long.
    store : HeaderStore, optional
        Headers of an earlier run; those of new and changed files are added.

    Attributes
    ----------
    read : int
        Number of files whose headers were read, so far.
    others : int
        Number of files that belong to no dataset, so far.
    problems : dict
        Why folders and links cannot be followed, by path.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        pattern: str | Sequence[str] | None = None,
        recursive: bool = True,
        seconds: float = SECONDS,
        store: HeaderStore | None = None,
    ) -> None:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else [*paths]
        self.others = self.read = 0
        self.problems: dict[str, str] = {}
        report = self.problems.__setitem__
        self._walk = FolderWalk(given, pattern, recursive=recursive, report=report)
        self._seconds, self._store = seconds, store

    def __iter__(self) -> Iterator[FoundDataset]:
        """Find the datasets, folder by folder in natural order."""
        self.others = self.read = 0
        self._claimed = set[str]()
        self.problems.clear()
        count = min(processors(), MOST_READERS)
        waiting = deque[_Pending]()
        with (
            HeaderReaders(self._seconds, partial(prepared, pickled_formats())) as readers,
            ThreadPoolExecutor(count) as threads,
        ):
            try:
                for folder in self._walk:
                    known = self._store.known(folder) if self._store is not None else {}
                    pending = _Pending(folder, self._claimed, known)
                    waiting.append(pending)
                    for path in pending.order():
                        pending.begin(threads, partial(_header_of, readers), path)
                        while sum(one.open for one in waiting) >= AHEAD * count:
                            waiting[0].wait()
                            yield from self._finished(waiting)
                    pending.begun = True
                    yield from self._finished(waiting)
                while waiting:
                    waiting[0].wait()
                    yield from self._finished(waiting)
            finally:
                threads.shutdown(cancel_futures=True)

    def _finished(self, waiting: deque[_Pending]) -> Iterator[FoundDataset]:
        """Yield the datasets of the first folders, if all their headers are read."""
        while waiting and waiting[0].begun and not waiting[0].open:
            pending = waiting.popleft()
            folder = pending.folder
            new = [one for path, one in pending.headers.items() if path not in pending.known]
            self.read += len(new)
            if self._store is not None:
                self._store.keep(folder, (one for one in new if one.is_lasting))
            found = Belongings(pending.headers.values(), self._claimed)
            self.others += folder.others + found.others
            for path in sorted(found.datasets, key=natural_key):
                files, header = found.datasets[path], pending.headers[path]
                self._claimed.update(one for one in files if one not in folder.stamps)
                stamp = _stamp_of(files, folder.stamps)
                head = path, header.format, header.pictures
                yield FoundDataset(*head, tuple(files), stamp, header.problem)


class _Pending:
    """A folder whose headers are being read."""

    def __init__(
        self, folder: FolderFiles, claimed: set[str], known: Mapping[str, FileHeader]
    ) -> None:
        self.folder, self.known = folder, known
        self.begun = False
        """Whether the headers of all files are being read."""
        self._claimed, self._parts = claimed, set[str]()
        self._futures: deque[Future[FileHeader | None]] = deque()
        self.headers = dict(known)
        for one in known.values():
            self._note_parts(one)

    @property
    def open(self) -> int:
        """Number of files whose headers were not collected yet."""
        while self._futures and self._futures[0].done():
            self.wait()
        return len(self._futures)

    def order(self) -> list[str]:
        """Return the unknown files, without a number first: these may be masters of the others."""

        def key(path: str) -> tuple[object, ...]:
            return NUMBERED.fullmatch(path) is not None, natural_key(path)

        return sorted(self.folder.stamps.keys() - self.known.keys(), key=key)

    def begin(
        self, threads: ThreadPoolExecutor, read: Callable[[str], FileHeader], path: str
    ) -> None:
        """Read the headers of a file, unless it turns out to be a part of another one."""
        self._futures.append(threads.submit(self._read, read, path))

    def _read(self, read: Callable[[str], FileHeader], path: str) -> FileHeader | None:
        if path in self._parts or path in self._claimed:
            return None
        found = read(path)
        self._note_parts(found)
        return found

    def _note_parts(self, header: FileHeader) -> None:
        """Note the files that need not be read; the first one may be the better one to open."""
        self._parts.update(sorted(header.pixels, key=natural_key)[1:])

    def wait(self) -> None:
        """Collect the header of the next file."""
        if self._futures:
            found = self._futures.popleft().result()
            if found is not None:
                self.headers[found.path] = found


def _header_of(readers: HeaderReaders, path: str) -> FileHeader:
    try:
        return readers.read(read_header, path, alone=partial(read_header, alone=True))
    except (EndedError, DatasetError) as error:
        return FileHeader(path, problem=f"it cannot be read: {error}", is_lasting=False)


def _stamp_of(files: Sequence[str], known: dict[str, Stamp]) -> Stamp:
    """Return the bytes of files, and their latest change."""
    nbytes, latest = 0, 0
    for path in files:
        stamp = known.get(path)
        if stamp is None:
            with suppress(OSError):  # removed meanwhile
                found = os.stat(path)
                stamp = Stamp(found.st_size, found.st_mtime_ns)
        if stamp is not None:
            nbytes, latest = nbytes + stamp.nbytes, max(latest, stamp.mtime_ns)
    return Stamp(nbytes, latest)
