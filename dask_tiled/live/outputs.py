"""The file that a stream is written to: whole frames, within a bound."""

from __future__ import annotations

import glob
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from dask_tiled.errors import DatasetError, StreamError, format_bytes
from dask_tiled.system.files import FULL
from dask_tiled.system.locks import open_locked
from dask_tiled.system.names import offered

STOP, DROP, SPILL = "stop", "drop", "spill"
PARTS = 16
"""Files of a bounded recording that drops or spills: at least one of them is kept."""
ASIDE = ".replaced"
"""Suffix of files that are kept until another recording has content."""
KEPT = "What has come before is in the file."
MOST_VIEWS = 512
"""Views written at once; systems allow 1024."""
_writev: Any = offered("os", "writev")
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | (offered("os", "O_BINARY") or 0)


class Bound(NamedTuple):
    """How large a recording may become, and what happens then."""

    nbytes: int = 0
    """Bytes of frames; 0 is unbounded."""
    when_full: str = STOP
    """``stop``, ``drop`` the oldest frames, or ``spill`` later ones to another folder."""
    spill_folder: str = ""

    @property
    def is_series(self) -> bool:
        """Whether the recording is a numbered series of files."""
        return self.nbytes > 0 and self.when_full != STOP


class StreamFile:
    """A file that whole records are appended to; a numbered series of files if it drops or spills.

    A record that is not complete, since the process was killed, is at the end of a file only.

    Parameters
    ----------
    path : str
        The file; of a series, ``scan_000001.mib`` and so on for ``scan.mib``.
    bound : Bound

    Attributes
    ----------
    records, nbytes : int
        Whole records that are written and kept, and their bytes.
    dropped : int
        Records that were removed.
    """

    def __init__(self, path: str, bound: Bound) -> None:
        self.path, self._bound = path, bound
        self.records = self.nbytes = self.dropped = 0
        self._begun = 0  # bytes of all records that were begun and are kept
        self._kept = list[tuple[str, int, int]]()  # earlier files: path, bytes, records
        self._number = self._before = 0  # of this file, and records of earlier files
        self._size = self._written = self._whole = 0  # bytes begun, written, and of whole records
        self._views = list[memoryview]()
        self._ends = deque[int]()  # of records that are not counted yet
        self._spills = False
        self._fd = self._next()

    @property
    def room(self) -> float:
        """Bytes that are left within the bound."""
        return self._bound.nbytes - self._begun if self._bound.nbytes else math.inf

    def begin(self, nbytes: int) -> None:
        """Begin a record of some bytes.

        Raises
        ------
        StreamError
            The recording is full.
        """
        bound = self._bound.nbytes
        if self._bound.is_series and self._size and (self._size + nbytes) * PARTS > bound:
            self._begin_file()
        if bound and not self._spills and self._begun + nbytes > bound:
            self._make_room(nbytes)
        self._size += nbytes
        self._begun += nbytes

    def add(self, view: memoryview) -> None:
        """Append bytes of the record, which must not change before the next flush."""
        self._views.append(view)
        if len(self._views) >= MOST_VIEWS:
            self.flush()

    def end(self) -> None:
        """End the record."""
        self._ends.append(self._size)

    def flush(self) -> None:
        """Write what was added.

        Raises
        ------
        StreamError
            The disk is full, or refuses the bytes otherwise.
        """
        views, self._views = self._views, []
        try:
            for count in write_views(self._fd, views):
                self._written += count
        except OSError as error:
            raise disk_error(error, self.present) from error
        finally:
            self._count()

    def close(self) -> None:
        """Close the file, without a record that is not complete."""
        if self._fd < 0:
            return
        with suppress(StreamError, OSError):
            self.flush()
        if self._written != self._whole:
            os.ftruncate(self._fd, self._whole)
        self._close()

    @property
    def present(self) -> str:
        """The file that records are appended to now."""
        if not self._bound.is_series:
            return self.path
        stem, suffix = os.path.splitext(self.path)
        return f"{stem}_{self._number:06d}{suffix}"

    def _count(self) -> None:
        """Count the records that are written whole."""
        while self._ends and self._ends[0] <= self._written:
            self.nbytes += self._ends[0] - self._whole
            self._whole = self._ends.popleft()
            self.records += 1

    def _close(self) -> None:
        os.close(self._fd)
        os.close(self._lock)
        self._fd = -1

    def _next(self) -> int:
        """Create the next file; of one that spills, a link to it."""
        self._number += 1
        self._size = self._written = self._whole = 0
        self._before = self.records
        path = self.present
        if self._spills:
            elsewhere = os.path.join(self._bound.spill_folder, os.path.basename(path))
            fd = os.open(elsewhere, _FLAGS, 0o666)
            os.symlink(elsewhere, path)
        else:
            fd = os.open(path, _FLAGS, 0o666)
        self._lock = open_locked(path)  # another recording must not replace the file
        return fd

    def _begin_file(self) -> None:
        """Go on in another file."""
        self.flush()
        self._close()
        self._kept.append((self.present, self._whole, self.records - self._before))
        self._fd = self._next()

    def _make_room(self, nbytes: int) -> None:
        """Do what is asked for when the bound is reached."""
        when_full, bound = self._bound.when_full, self._bound.nbytes
        if when_full == SPILL:
            self._spills = True
            if self._size:
                self._begin_file()
            else:
                self._close()
                os.unlink(self.present)
                self._number -= 1
                self._fd = self._next()
            return
        while when_full == DROP and self._kept and self._begun + nbytes > bound:
            path, size, records = self._kept.pop(0)
            os.unlink(path)
            self._begun -= size
            self.nbytes -= size
            self.records -= records
            self._before -= records
            self.dropped += records
        if self._begun + nbytes > bound:
            what, expected = "the recording is full", f"{format_bytes(bound)} at most"
            raise StreamError(what, path=self.path, expected=expected, hint=KEPT)


def files_to_replace(path: str, beside: str, bound: Bound, *, overwrite: bool) -> list[str]:
    """Return the files of an earlier recording that a recording replaces.

    Parameters
    ----------
    path : str
        The target.
    beside : str
        Suffix of the file beside it; empty if there is none.
    bound : Bound
    overwrite : bool
        Whether existing files may be replaced.

    Raises
    ------
    DatasetError
        The target exists, is a folder, or is written by another recording; or ``spill_folder`` has
        files of another recording.
    """
    second = beside and os.path.splitext(path)[0] + beside
    old = [one for one in (path, second) if os.path.lexists(one)]
    if bound.is_series:
        old += _numbered(path)
    if bound.spill_folder:
        folder = os.path.dirname(path)
        if os.path.samefile(folder, bound.spill_folder):
            problem, expected = "spill_folder is that of the target itself", "another folder"
            raise DatasetError(problem, path=folder, expected=expected)
        elsewhere = os.path.join(bound.spill_folder, os.path.basename(path))
        links = {os.path.realpath(one) for one in old if os.path.islink(one)}
        for one in _numbered(elsewhere):
            if os.path.realpath(one) not in links:
                problem, hint = "spill_folder has a file of another recording", "Move it away."
                raise DatasetError(problem, path=one, hint=hint)
            old.append(one)
    for one in old:
        _check_replaceable(one, overwrite=overwrite)
    return old


class ReplacedFiles:
    """Files of an earlier recording, which are kept beside until another one has content.

    Parameters
    ----------
    paths : sequence of str
        They are renamed, and return if they are not removed.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list[str]()
        for path in paths:
            try:
                os.rename(path, path + ASIDE)
            except OSError:
                self.close()
                raise
            self._paths.append(path)

    def remove(self) -> None:
        """Remove the files."""
        while self._paths:
            os.unlink(self._paths.pop() + ASIDE)

    def close(self) -> None:
        """Let the files return, unless they have been removed."""
        while self._paths:
            path = self._paths.pop()
            os.replace(path + ASIDE, path)


def _numbered(path: str) -> list[str]:
    """Return the existing files of the series of a target."""
    stem, suffix = os.path.splitext(path)
    return glob.glob(f"{glob.escape(stem)}_{6 * '[0-9]'}{glob.escape(suffix)}")


def _check_replaceable(path: str, *, overwrite: bool) -> None:
    """Raise a DatasetError if a file must not be replaced."""
    if not overwrite:
        hint = "Pass overwrite=True, or another target."
        raise DatasetError("the target exists", path=path, hint=hint)
    if os.path.isdir(path) and not os.path.islink(path):
        raise DatasetError("the target is a folder", path=path, expected="a file")
    if os.path.lexists(path + ASIDE):
        problem = "a recording that was killed, or somebody, has left a file beside the target"
        hint = "It may be an earlier recording: move it away, or rename it back."
        raise DatasetError(problem, path=path + ASIDE, expected="no such file", hint=hint)
    with suppress(FileNotFoundError):  # a link that leads nowhere
        try:
            os.close(open_locked(path))
        except BlockingIOError:
            problem = "another recording writes the target"
            raise DatasetError(problem, path=path) from None


def disk_error(error: OSError, path: str, hint: str = KEPT) -> StreamError:
    """Return the error of a disk that refuses bytes."""
    what = "the disk is full" if error.errno in FULL else "the disk refuses the file"
    return StreamError(what, path=path, found=os.strerror(error.errno or 0), hint=hint)


def write_views(fd: int, views: Sequence[bytes | memoryview]) -> Iterator[int]:
    """Write views to a file; yield how many bytes each call of the system has written."""
    while views:
        count = os.write(fd, views[0]) if _writev is None else _writev(fd, views[:MOST_VIEWS])
        yield count
        views = _rest(views, count)


def _rest(views: Sequence[bytes | memoryview], written: int) -> Sequence[bytes | memoryview]:
    """Return what is left of some views after so many bytes."""
    at = 0
    while at < len(views) and written >= len(views[at]):
        written -= len(views[at])
        at += 1
    return [views[at][written:], *views[at + 1 :]] if written else views[at:]
