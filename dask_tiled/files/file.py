"""Files on disk and behind URLs, and the identity of a version of a file."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import (
    CorruptFileError,
    DatasetError,
    OutsideFolderError,
    StaleFileError,
    TruncatedFileError,
)
from dask_tiled.files.paths import check_inside, is_url, with_room
from dask_tiled.remote.fetching import ask, check, fetch_all
from dask_tiled.remote.session import session
from dask_tiled.remote.stores import FilePlace, Version
from dask_tiled.remote.stream import Stream
from dask_tiled.system.files import TO_READ, open_file, pread

T = TypeVar("T")
HDF5 = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file."""

_following: ContextVar[bool] = ContextVar("following", default=False)
_filling: ContextVar[bool] = ContextVar("filling", default=False)
_at_rest: ContextVar[bool] = ContextVar("at_rest", default=False)
_seen: ContextVar[Mapping[str, File]] = ContextVar("seen", default=MappingProxyType({}))


@contextmanager
def _having(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def following(follow: bool) -> AbstractContextManager[None]:  # noqa: FBT001 - its only argument
    """Treat files looked up in this context as growing."""
    return _having(_following, follow)


def filling(fill: bool) -> AbstractContextManager[None]:  # noqa: FBT001 - its only argument
    """Show frames that are announced or lost as missing ones in this context, without errors."""
    return _having(_filling, fill)


def is_filling() -> bool:
    """Return whether the user accepts missing frames."""
    return _filling.get()


def at_rest(rests: bool) -> AbstractContextManager[None]:  # noqa: FBT001 - its only argument
    """Describe growing files in this context as complete ones: nothing will be appended."""
    return _having(_at_rest, rests)


def is_at_rest() -> bool:
    """Return whether nothing will be appended to growing files."""
    return _at_rest.get()


def seen(files: Iterable[File]) -> AbstractContextManager[None]:
    """Reuse the versions of growing files seen before; the caller checks that they hold."""
    return _having(_seen, {file.path: file for file in files})


def seen_files() -> tuple[File, ...]:
    """Return the files that were seen before."""
    return tuple(_seen.get().values())


def is_following() -> bool:
    """Return whether files are treated as growing."""
    return _following.get()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class File:
    """One version of one file.

    A program that rewrites a file can restore its size and modification time, but not its ctime,
    the time of the last change of its content or status. The ctime also moves when mode, owner,
    name or hard links change: such changes count as new content: opening a file again costs little,
    wrong pixels may cost a lot.

    Attributes
    ----------
    path : str
        Absolute path.
    size : int
        Length in bytes.
    mtime_ns : int
        Time of the last modification, in nanoseconds.
    inode : int
        Inode number; it changes when a file is replaced.
    ctime_ns : int
        Time of the last change of content or status, in nanoseconds; on Windows the time of
        creation.
    """

    path: str
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int

    grows: ClassVar[bool] = False
    """Whether bytes may be appended."""

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> File:
        """Return the present version of a file on disk, or behind a URL.

        Raises
        ------
        FileNotFoundError
            The path does not exist.
        DatasetError
            The path is a directory or a device.
        OutsideFolderError
            The file lies outside of the folders that may be read.
        StaleFileError
            The file was replaced meanwhile.
        TruncatedFileError
            The file is empty.
        PermissionError, RemoteError
            A server refuses the file.
        """
        if is_url(path):
            check_inside(path)
            return RemoteFile.of(*session().look(os.fspath(path)))
        full = os.path.abspath(os.fspath(path))
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
        """Return the file for a format that reads one file at a time.

        Raises
        ------
        DatasetError
            There are several files; or as for :meth:`at`.
        """
        if len(paths) != 1:
            problem, hint = f"{format} opens one file at a time", "Stack files by open_volumes()."
            raise DatasetError(problem, path=paths[0], found=f"{len(paths)} files", hint=hint)
        return cls.at(paths[0])

    def open(self) -> BinaryIO:
        """Open the file for reading; the caller checks the version."""
        return opened(self.path)

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        """Read up to ``nbytes`` bytes at ``offset``; fewer at the end of the file."""
        return read_head(self.path, nbytes, offset)

    def check(self, found: os.stat_result | None = None) -> None:
        """Check that the file is still the version that was opened.

        Parameters
        ----------
        found : os.stat_result, optional
            Result of ``fstat``; by default the path is looked up.

        Raises
        ------
        StaleFileError
            The file was changed, replaced or removed.
        """
        found = self._found() if found is None else found
        now = _version(found)
        then = (self.size, self.mtime_ns, self.inode, self.ctime_ns)
        if not found.st_nlink:  # removing its last name while it is open changes its ctime
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
                "the file has been removed since it was opened",
                path=self.path,
                expected=f"{self.size} bytes",
                found="no file",
                hint="Workers of a cluster need the file at the same path.",
            ) from None


@dataclass(frozen=True, slots=True)
class GrowingFile(File):
    """The bytes that a growing file has now; appending does not change them.

    Its times are those of its first lookup, because appending changes them.
    """

    grows: ClassVar[bool] = True

    @classmethod
    def of(cls, file: File) -> GrowingFile:
        """Treat a file as growing; keep the times at which it was first seen."""
        first = _seen.get().get(file.path, file)
        return cls(file.path, file.size, first.mtime_ns, file.inode, first.ctime_ns)

    def check(self, found: os.stat_result | None = None) -> None:
        """Check that the file is the one that was opened, and not shorter.

        Parameters and errors are those of :meth:`File.check`.
        """
        found = self._found() if found is None else found
        if found.st_ino != self.inode or found.st_size < self.size:
            shorter = found.st_ino == self.inode
            raise StaleFileError(
                f"the file has been {'truncated' if shorter else 'replaced'} since it was opened",
                path=self.path,
                expected=f"{self.size} bytes or more",
                found=_told(*_version(found)),
                hint="Open it again to read its present content.",
            )


@dataclass(frozen=True, slots=True)
class RemoteFile(File):
    """One version of one file behind a URL, which is its path.

    Times and inode are 0; the server's tag identifies the version.

    Attributes
    ----------
    tag : str
        Entity tag, or the time of the last change; empty if the server sends neither.
    query : str
        Digest of the query of the URL, which may hold a secret; empty without a query.
    place : Place
        Resolved location of the URL.
    """

    tag: str
    query: str
    place: FilePlace = field(repr=False)

    @classmethod
    def of(cls, place: FilePlace, version: Version) -> RemoteFile:
        """Return the file at a place, of the version that the server reports.

        Raises
        ------
        TruncatedFileError
            The file is empty.
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
        """Version that every response of the server must match."""
        return Version(self.size, self.tag)

    def open(self) -> BinaryIO:
        """Open the file for reading in blocks."""
        return Stream(self.place, self.version)

    def read(self, nbytes: int, offset: int = 0) -> bytes:
        """Read up to ``nbytes`` bytes at ``offset``; fewer at the end of the file."""
        _check_span(self.path, nbytes, offset)
        return session().read(self.place, self.version, offset, offset + nbytes).tobytes()

    def fetch(self, spans: Sequence[tuple[int, int]]) -> list[npt.NDArray[np.uint8]]:
        """Fetch several byte ranges at once."""
        return fetch_all(self.place, self.version, spans)

    def check(self, found: os.stat_result | None = None) -> None:  # noqa: ARG002
        """Ask the server whether the version has changed; errors are those of :meth:`fetch`."""
        try:
            _, now = ask(self.place, 0, 1)
        except FileNotFoundError:
            now = Version(0, "no file")
        check(self.place, self.version, now)


class _LocalBytes(io.FileIO):
    """A local file whose OSErrors name it."""

    def readinto(self, buffer: Any) -> int | None:
        """Read into a buffer; fewer bytes at the end of the file."""
        with naming(self.name):
            return super().readinto(buffer)


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file or URL for reading."""
    if is_url(path):
        return File.at(path).open()
    return io.BufferedReader(_LocalBytes(os.fspath(path), opener=_regular), 1 << 14)


@contextmanager
def opened_fd(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a local file for ``pread``; OSErrors name the file."""
    path = os.fspath(path)
    fd = _regular(path)
    try:
        with naming(path):
            yield fd
    finally:
        os.close(fd)


def _regular(path: str, _flags: int = os.O_RDONLY) -> int:
    """Open a regular file; refuse anything else, without waiting for a pipe."""
    check_inside(path)  # also before opening, because opening some devices has effects
    fd = with_room(partial(open_file, path, TO_READ), path)
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
    """Return whether an error means that a file exists but may not be read, or was replaced.

    Errors of libraries have no errno.
    """
    nothing_there = (None, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
    kept = isinstance(error, OSError) and error.errno not in nothing_there
    return kept or isinstance(error, (OutsideFolderError, StaleFileError))


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Add the name of the file to OSErrors that have none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


def read_head(path: str | os.PathLike[str], nbytes: int, offset: int = 0) -> bytes:
    """Read up to ``nbytes`` bytes at ``offset``; fewer at the end of the file.

    Raises
    ------
    CorruptFileError
        Offset or length, which are values of the file, are negative.
    DatasetError
        The path is not a regular file: opening a pipe would wait forever.
    OutsideFolderError
        The file lies outside of the folders that may be read.
    StaleFileError
        The file was replaced meanwhile.
    """
    _check_span(path, nbytes, offset)
    if is_url(path):
        check_inside(path)
        place, version = session().look(os.fspath(path))
        return session().read(place, version, offset, offset + nbytes).tobytes()
    with opened_fd(path) as fd:
        # Sizes from a header may exceed memory, and offsets may exceed the file.
        size = os.fstat(fd).st_size
        offset = min(offset, size)
        return pread(fd, min(nbytes, size - offset), offset)


def _check_span(path: str | os.PathLike[str], nbytes: int, offset: int) -> None:
    if offset < 0 or nbytes < 0:
        problem, found = "a negative offset or length", f"{nbytes} bytes at byte {offset}"
        raise CorruptFileError(problem, path=path, found=found)


def read_exactly(path: str | os.PathLike[str], nbytes: int, offset: int, within: str) -> bytes:
    """Read ``nbytes`` bytes at ``offset``.

    Raises
    ------
    TruncatedFileError
        The file ends earlier; ``within`` names the truncated part.
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
    """Format the version of a file for an error message."""
    written, changed = (str(np.datetime64(ns // 1000, "us")) for ns in (mtime_ns, ctime_ns))
    return f"{size} bytes, written {written}, changed {changed} (UTC)"


def is_n5(path: str) -> bool:
    """Return whether a file holds the attributes of a group or a dataset of N5."""
    if os.path.basename(path) != "attributes.json" or not os.path.isfile(path):
        return False
    head = read_head(path, 1 << 14)
    return b'"n5"' in head or (b'"blockSize"' in head and b'"dataType"' in head)


def _no_file(path: str, found: os.stat_result) -> DatasetError:
    is_folder = stat.S_ISDIR(found.st_mode)
    if is_folder and is_n5(os.path.join(path, "attributes.json")):
        return DatasetError(
            "folders of N5 are not supported",
            path=path,
            expected="a zarr store, or a file",
            found="N5",
            hint="Open it by TensorStore (driver 'n5'), and pass dask.array.from_array(...) of it"
            " to to_zarr().",
        )
    kind = "directory" if is_folder else "device, pipe or socket"
    hint = "Pass one of its files, or a pattern such as folder/*.tif." if is_folder else None
    told = {"expected": "a regular file", "found": f"a {kind}", "hint": hint}
    return DatasetError("not a file", path=path, **told)
