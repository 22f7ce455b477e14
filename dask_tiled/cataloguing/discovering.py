"""The datasets below folders, one after the other."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from dask_tiled.apart.calls import EndedError
from dask_tiled.cataloguing.belonging import Belongings
from dask_tiled.cataloguing.headers import (
    FileHeader,
    PictureHeader,
    prepared,
    read_header,
    read_headers,
)
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
"""Groups of files that wait for each reader."""
MOST_TOGETHER = 64
"""Files whose headers are read in one call."""
DIGITS = re.compile(r"\d+")
Headers = list[tuple[str, FileHeader | bool | None]]
"""Files with what :func:`read_headers` returns for each."""


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
        CPU seconds for the headers of a file.
    stall : float, optional
        Seconds by the clock for the headers of a file; by default ten times as many.
    store : HeaderStore, optional
        Headers of an earlier run; those of new and changed files are added.
    longer : str
        Option that an error by the clock proposes.

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
        stall: float | None = None,
        longer: str = "larger seconds=",
        store: HeaderStore | None = None,
    ) -> None:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else [*paths]
        self.others = self.read = 0
        self.problems: dict[str, str] = {}
        report = self.problems.__setitem__
        self._walk = FolderWalk(given, pattern, recursive=recursive, report=report)
        self._seconds, self._stall, self._longer, self._store = seconds, stall, longer, store

    def __iter__(self) -> Generator[FoundDataset]:
        """Find the datasets, folder by folder in natural order."""
        self.others = self.read = 0
        self._claimed = set[str]()
        self.problems.clear()
        count = min(processors(), MOST_READERS)
        waiting = deque[_Pending]()
        prepare = partial(prepared, pickled_formats())
        with (
            ThreadPoolExecutor(count) as threads,
            HeaderReaders(self._seconds, prepare, self._stall, self._longer) as readers,
        ):
            read = partial(_headers_of, readers)
            try:
                for folder in self._walk:
                    known = self._store.known(folder) if self._store is not None else {}
                    pending = _Pending(folder, self._claimed, known)
                    waiting.append(pending)
                    for paths in pending.groups(count):
                        pending.begin(threads, read, paths)
                        while sum(one.open for one in waiting) >= AHEAD * count:
                            waiting[0].wait()
                            yield from self._finished(waiting)
                    pending.begun = True
                    yield from self._finished(waiting)
                while waiting:
                    waiting[0].wait()
                    yield from self._finished(waiting)
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    def _finished(self, waiting: deque[_Pending]) -> Iterator[FoundDataset]:
        """Yield the datasets of the first folders, if all their headers are read."""
        while waiting and waiting[0].begun and not waiting[0].open:
            pending = waiting.popleft()
            folder = pending.folder
            self.read += pending.read
            if self._store is not None:
                self._store.keep(folder, pending.new())
            found = Belongings(pending.headers.values(), pending.others.keys(), self._claimed)
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
        self._futures: deque[Future[Headers]] = deque()
        self.headers = {path: one for path, one in known.items() if one.is_dataset}
        """The datasets, also damaged ones."""
        self.others = dict.fromkeys(known.keys() - self.headers.keys(), True)
        """Whether each file that is no dataset is none as long as no file changes."""
        self.read = 0
        """Number of files whose headers were read."""
        for one in known.values():
            self._parts |= one.parts

    @property
    def open(self) -> int:
        """Number of groups of files whose headers were not collected yet."""
        while self._futures and self._futures[0].done():
            self.wait()
        return len(self._futures)

    def groups(self, readers: int) -> Iterator[list[str]]:
        """Yield the unknown files, without a number first: these may be masters of the others."""

        def key(path: str) -> str:
            # The order of numbers as one text: a million of natural keys would take 0.5 GB.
            last = "1" if NUMBERED.fullmatch(path) else "0"
            return last + DIGITS.sub(lambda digits: digits[0].rjust(20, "0"), path)

        left = sorted(self.folder.stamps.keys() - self.known.keys(), key=key)
        size = max(1, min(MOST_TOGETHER, len(left) // (AHEAD * readers)))
        for k in range(0, len(left), size):
            yield left[k : k + size]

    def begin(
        self, threads: ThreadPoolExecutor, read: Callable[[list[str]], Headers], paths: list[str]
    ) -> None:
        """Read the headers of files, except for those that turn out to be parts of others."""
        self._futures.append(threads.submit(self._read, read, paths))

    def _read(self, read: Callable[[list[str]], Headers], paths: list[str]) -> Headers:
        left = [path for path in paths if path not in self._parts and path not in self._claimed]
        found = read(left) if left else []
        for _, header in found:
            if isinstance(header, FileHeader):
                self._parts |= header.parts
        return found

    def wait(self) -> None:
        """Collect the headers of the next files."""
        for path, header in self._futures.popleft().result() if self._futures else ():
            self.read += header is not None
            if isinstance(header, FileHeader):
                self.headers[path] = header
            elif header is not None:
                self.others[path] = header

    def new(self) -> Iterator[FileHeader]:
        """Yield the headers that were read, and are valid as long as no file changes."""
        for path, header in self.headers.items():
            if header.is_lasting and path not in self.known:
                yield header
        for path, is_lasting in self.others.items():
            if is_lasting and path not in self.known:
                yield FileHeader(path)


def _headers_of(readers: HeaderReaders, paths: list[str]) -> Headers:
    """Read the headers of files together; one by one if a file ends its reader."""
    if len(paths) > 1:
        with suppress(EndedError, DatasetError):
            return [*zip(paths, readers.read(read_headers, paths), strict=True)]
    found, parts = Headers(), set[str]()
    for path in paths:
        if path not in parts:
            header = _header_of(readers, path)
            parts |= header.parts
            found.append((path, header if header.is_dataset else header.is_lasting))
    return found


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
