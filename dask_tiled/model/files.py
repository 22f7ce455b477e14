"""Which file, exactly: its path and what tells one version of it from another."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError, OutsideFolderError, StaleFileError, TruncatedFileError
from dask_tiled.model.paths import check_inside, is_url, with_room
from dask_tiled.remote.fetching import ask, check, fetch_all
from dask_tiled.remote.session import session
from dask_tiled.remote.stores import Place, Version
from dask_tiled.remote.stream import Stream

_following: ContextVar[bool] = ContextVar("following", default=False)
_seen: ContextVar[Mapping[str, File]] = ContextVar("seen", default=MappingProxyType({}))


@contextmanager
def following(follow: bool) -> Iterator[None]:  # noqa: FBT001 - what it is called for
    """Take files that are looked at for such as may still grow."""
    token = _following.set(follow)
    try:
        yield
    finally:
        _following.reset(token)


@contextmanager
def seen(files: Iterable[File]) -> Iterator[None]:
    """Take files that grow for the same as were seen before; who does so has to make sure."""
    token = _seen.set({file.path: file for file in files})
    try:
        yield
    finally:
        _seen.reset(token)


def seen_files() -> tuple[File, ...]:
    """List the files that were seen before."""
    return tuple(_seen.get().values())


def is_following() -> bool:
    """Return whether files are taken for such as may still grow."""
    return _following.get()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class File:
    """One version of one file.

    What rewrites a file can put its size and its time of modification back, but not the time at
    which the system last changed anything about it. That time moves with the file's mode, owner,
    name and hard links too: what cannot be told from new content counts as new content, since to
    open a file again costs little, and wrong pixels much.

    Attributes
    ----------
    path : str
        Absolute path.
    size : int
        Length in bytes.
    mtime_ns : int
        Time of the last modification, in nanoseconds.
    inode : int
        Number of the file in its file system; it changes when a file is replaced.
    ctime_ns : int
        Time of the last change of content or status, in nanoseconds. Windows gives the time of
        creation.
    """

    path: str
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int

    grows: ClassVar[bool] = False
    """Whether bytes may come after those that it has."""

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> File:
        """Look at a file on disk, or behind a URL.

        Raises
        ------
        FileNotFoundError
            Nothing has that path.
        DatasetError
            It is a directory or a device, or this system has no calls to read it with.
        OutsideFolderError
            It lies outside of the border that holds.
        TruncatedFileError
            It is empty.
        PermissionError, RemoteError
            A server does not give it.
        """
        if is_url(path):
            check_inside(path)
            return RemoteFile.of(*session().look(os.fspath(path)))
        full = os.path.abspath(os.fspath(path))
        if not hasattr(os, "preadv"):
            problem, hint = "files are not read on Windows", "Use the Windows Subsystem for Linux."
            raise DatasetError(problem, path=full, expected="Linux or macOS", hint=hint)
        found = os.stat(full)
        check_inside(full, found)
        if not stat.S_ISREG(found.st_mode):
            raise _no_file(full, found)
        if found.st_size == 0:
            raise TruncatedFileError(
                "the file is empty", path=full, expected="at least one frame", found="0 bytes"
            )
        file = cls(full, *_version(found))
        return GrowingFile.of(file) if is_following() else file

    @classmethod
    def only(cls, paths: Sequence[str], format: str) -> File:
        """Look at the file that a format of single files is given.

        Raises
        ------
        DatasetError
            It is given several; or as for :meth:`at`.
        """
        if len(paths) != 1:
            raise DatasetError(
                f"{format} opens one file at a time", path=paths[0], found=f"{len(paths)} files"
            )
        return cls.at(paths[0])

    def open(self) -> BinaryIO:
        """Open it for reading; who reads it checks the version."""
        return opened(self.path)

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        """Read up to ``nbytes`` bytes at ``offset``; fewer where it ends."""
        return read_head(self.path, nbytes, offset)

    def check(self, found: os.stat_result | None = None) -> None:
        """Make sure that the file is still the one that was opened.

        Parameters
        ----------
        found : os.stat_result, optional
            What an open descriptor says; by default the path is looked up.

        Raises
        ------
        StaleFileError
            It was changed, replaced or removed.
        """
        found = self._found() if found is None else found
        now = _version(found)
        then = (self.size, self.mtime_ns, self.inode, self.ctime_ns)
        if not found.st_nlink:  # to lose its name while it is open had to change its ctime
            now = (*now[:3], self.ctime_ns)
        if now != then:
            replaced = found.st_ino != self.inode
            raise StaleFileError(
                f"the file has {'been replaced' if replaced else 'changed'} since it was opened",
                path=self.path,
                expected=_told(*then),
                found=_told(*now),
                hint="Open it again to read its present content.",
            )

    def _found(self) -> os.stat_result:
        try:
            return os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            raise StaleFileError(
                "the file has gone since it was opened",
                path=self.path,
                expected=f"{self.size} bytes",
                found="no file",
                hint="Workers of a cluster need it at the same path.",
            ) from None


@dataclass(frozen=True, slots=True)
class GrowingFile(File):
    """The bytes that a file has which may still grow: what comes after them changes none of them.

    Its times, which change with that, are those at which it was seen for the first time.
    """

    grows: ClassVar[bool] = True

    @classmethod
    def of(cls, file: File) -> GrowingFile:
        """Take a file for one that may grow; for that which was seen before, if it was."""
        first = _seen.get().get(file.path, file)
        return cls(file.path, file.size, first.mtime_ns, file.inode, first.ctime_ns)

    def check(self, found: os.stat_result | None = None) -> None:
        """Make sure that the file is the one that was opened, and has become no shorter.

        Parameters and errors are those of :meth:`File.check`.
        """
        found = self._found() if found is None else found
        if found.st_ino != self.inode or found.st_size < self.size:
            shorter = found.st_ino == self.inode
            raise StaleFileError(
                f"the file has been {'cut off' if shorter else 'replaced'} since it was opened",
                path=self.path,
                expected=f"{self.size} bytes or more",
                found=_told(*_version(found)),
                hint="Open it again to read its present content.",
            )


@dataclass(frozen=True, slots=True)
class RemoteFile(File):
    """One version of one file behind a URL, which is its path.

    Times and inode are 0: instead there is what the server says of the version.

    Attributes
    ----------
    tag : str
        Entity tag, or the time of the last change; empty where the server tells neither.
    query : str
        Digest of the query of the URL, which may be a secret; empty where it has none.
    place : Place
        How to get there.
    """

    tag: str
    query: str
    place: Place = field(repr=False)

    @classmethod
    def of(cls, place: Place, version: Version) -> RemoteFile:
        """Take what a server says of a file.

        Raises
        ------
        TruncatedFileError
            It is empty.
        """
        size, tag = version
        if size == 0:
            raise TruncatedFileError(
                "the file is empty", path=place.url, expected="at least one frame", found="0 bytes"
            )
        query = place.query and hashlib.blake2b(place.query.encode(), digest_size=8).hexdigest()
        return cls(place.url, size, 0, 0, 0, tag, query, place)

    @property
    def version(self) -> Version:
        """What every answer of the server has to say of it."""
        return Version(self.size, self.tag)

    def open(self) -> BinaryIO:
        """Open it for reading, by blocks."""
        return Stream(self.place, self.version)

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        """Read up to ``nbytes`` bytes at ``offset``; fewer where it ends."""
        stop = offset + max(0, nbytes)
        return session().read(self.place, self.version, offset, stop).tobytes()

    def fetch(self, spans: Sequence[tuple[int, int]]) -> list[npt.NDArray[np.uint8]]:
        """Fetch several spans at once."""
        return fetch_all(self.place, self.version, spans)

    def check(self, found: os.stat_result | None = None) -> None:  # noqa: ARG002
        """Ask whether it is still the one that was opened; errors are those of :meth:`fetch`."""
        try:
            _, now = ask(self.place, 0, 1)
        except FileNotFoundError:
            now = Version(0, "no file")
        check(self.place, self.version, now)


class _LocalBytes(io.FileIO):
    """The bytes of a file of this machine; what the system says of them names it."""

    def readinto(self, buffer: Any) -> int | None:
        """Read as much as there is room for, or less at the end."""
        with naming(self.name):
            return super().readinto(buffer)


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading."""
    if is_url(path):
        return File.at(path).open()
    return io.BufferedReader(_LocalBytes(os.fspath(path), opener=_regular), 1 << 14)


@contextmanager
def opened_fd(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a file of this machine, for reading at places; what goes wrong names it."""
    path = os.fspath(path)
    fd = _regular(path)
    try:
        with naming(path):
            yield fd
    finally:
        os.close(fd)


def _regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a file of bytes; anything else is refused, and a pipe not waited for."""
    check_inside(path)  # before, too: to open some devices does something
    flags |= os.O_CLOEXEC | os.O_NONBLOCK
    fd = with_room(partial(os.open, path, flags), path)
    found = os.fstat(fd)
    try:
        check_inside(path, found)
        if not stat.S_ISREG(found.st_mode):
            raise _no_file(os.path.abspath(path), found)
    except DatasetError:
        os.close(fd)
        raise
    return fd


def is_refusal(error: Exception) -> bool:
    """Return whether what is there is not given, or must not be read.

    Errors of libraries have no number.
    """
    nothing_there = (None, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
    kept = isinstance(error, OSError) and error.errno not in nothing_there
    return kept or isinstance(error, OutsideFolderError)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Give errors of the system the name of the file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


def read_head(path: str | os.PathLike[str], nbytes: int, offset: int = 0) -> bytes:
    """Read up to ``nbytes`` bytes at ``offset``; fewer where the file ends.

    Raises
    ------
    DatasetError
        It is no file: to open a pipe for reading would wait for ever.
    OutsideFolderError
        It lies outside of the border that holds.
    """
    if is_url(path):
        check_inside(path)
        place, version = session().look(os.fspath(path))
        return session().read(place, version, offset, offset + nbytes).tobytes()
    with opened_fd(path) as fd:
        # What a header asks for may be more than there is memory, and farther than files reach.
        size = os.fstat(fd).st_size
        offset = min(offset, size)
        return os.pread(fd, min(nbytes, size - offset), offset)


def read_exactly(path: str | os.PathLike[str], nbytes: int, offset: int, within: str) -> bytes:
    """Read ``nbytes`` bytes at ``offset``.

    Raises
    ------
    TruncatedFileError
        The file ends before; ``within`` says inside of what.
    """
    data = read_head(path, nbytes, offset)
    if len(data) < nbytes:
        raise TruncatedFileError(
            f"the file ends inside {within}",
            path=path,
            where=f"byte {offset}",
            expected=f"{nbytes} bytes",
            found=f"{len(data)} bytes",
        )
    return data


def _version(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns


def _told(size: int, mtime_ns: int, _: int, ctime_ns: int) -> str:
    """Tell the version of a file to people."""
    written, changed = (str(np.datetime64(ns // 1000, "us")) for ns in (mtime_ns, ctime_ns))
    return f"{size} bytes, written {written}, changed {changed} (UTC)"


def _no_file(path: str, found: os.stat_result) -> DatasetError:
    is_folder = stat.S_ISDIR(found.st_mode)
    kind = "directory" if is_folder else "device, pipe or socket"
    hint = "Pass one of its files, or a pattern such as folder/*.tif." if is_folder else None
    told = {"expected": "a regular file", "found": f"a {kind}", "hint": hint}
    return DatasetError("not a file", path=path, **told)
