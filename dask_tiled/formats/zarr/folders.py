"""Folders of zarr stores: on disk, behind URLs, and in zip files."""

from __future__ import annotations

import os
import posixpath
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.files.file import File, read_exactly
from dask_tiled.files.paths import (
    in_folder,
    is_file,
    is_link,
    is_url,
    list_folder,
    list_folders,
)
from dask_tiled.formats.tools.zips import MAGIC, ZipIndex

MOST_INFLATED = 1 << 25
"""Largest deflated document."""


class FolderEntry(NamedTuple):
    """A file in a folder: a range of bytes of a file."""

    path: str
    """Its path, for errors; in zip files, below the path of the zip file."""
    file: File
    offset: int
    nbytes: int
    """Number of stored bytes."""
    size: int
    """Number of bytes of its content."""
    deflated: bool = False
    crc: int | None = None

    @classmethod
    def of(cls, file: File) -> FolderEntry:
        """Return a whole file."""
        return cls(file.path, file, 0, file.size, file.size)

    def read(self) -> bytes:
        """Return the content.

        Raise a CorruptFileError if it is damaged, or too long to inflate.
        """
        if self.crc is None:
            return self.file.read(self.nbytes, self.offset)
        stored = read_exactly(self.file.path, self.nbytes, self.offset, "a member of the zip file")
        problem, content = "a member of the zip file is damaged", stored
        if self.deflated:
            if self.size > MOST_INFLATED:
                problem = "a deflated document is too long"
                raise CorruptFileError(
                    problem, path=self.path, expected=MOST_INFLATED, found=self.size
                )
            try:
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, self.size + 1)
            except zlib.error as error:
                raise CorruptFileError(problem, path=self.path, found=str(error)) from error
        if len(content) != self.size or zlib.crc32(content) != self.crc:
            expected = f"{self.size} bytes with checksum {self.crc}"
            found = f"{len(content)} bytes with checksum {zlib.crc32(content)}"
            raise CorruptFileError(problem, path=self.path, expected=expected, found=found)
        return content


class StoreFolder(Protocol):
    """A folder of a zarr store."""

    @property
    def path(self) -> str:
        """Path for errors."""

    @property
    def is_remote(self) -> bool:
        """Whether each look at a file is a request."""

    @property
    def above(self) -> StoreFolder | None:
        """The folder around it; None around a whole zip file."""

    def inside(self, *names: str) -> StoreFolder:
        """Return a folder in it, which may not exist."""

    def entry(self, name: str) -> FolderEntry | None:
        """Return a file; None if it does not exist, or a server does not show it."""

    def chunks(self, keys: Sequence[str]) -> list[FolderEntry | None]:
        """Return the files of chunks; None for missing ones.

        Raise a TruncatedFileError for a link that leads nowhere.
        """

    def keys(self, like: str) -> set[str] | None:
        """List the files that may have keys like ``like``, at the same depth; None if unknown."""

    def folders(self) -> list[str] | None:
        """List the names of the folders in it; None if the server cannot list."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A folder on disk or behind a URL."""

    path: str

    @property
    def is_remote(self) -> bool:
        """Whether it is behind a URL."""
        return is_url(self.path)

    @property
    def above(self) -> Directory:
        """The folder around it."""
        return Directory(os.path.dirname(self.path))

    def inside(self, *names: str) -> Directory:
        """Return a folder in it."""
        return Directory(in_folder(self.path, *names))

    def entry(self, name: str) -> FolderEntry | None:
        """Return a file."""
        path = in_folder(self.path, name)
        if is_url(path) and not is_file(path):
            return None
        try:
            return FolderEntry.of(File.at(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def chunks(self, keys: Sequence[str]) -> list[FolderEntry | None]:
        """Return the files of chunks."""
        return [self._chunk(in_folder(self.path, *key.split("/"))) for key in keys]

    def _chunk(self, path: str) -> FolderEntry | None:
        try:
            return FolderEntry.of(File.at(path))
        except FileNotFoundError:
            if is_link(path):
                problem, expected = "a chunk is a dangling link", "a file, or nothing"
                raise TruncatedFileError(problem, path=path, expected=expected) from None
            return None

    def keys(self, like: str) -> set[str] | None:
        """List the files that may have keys like ``like``."""
        try:
            return None if self.is_remote else _keys(self.path, like)
        except PermissionError:  # the folder cannot be listed
            return None

    def folders(self) -> list[str] | None:
        """List the names of the folders in it."""
        return list_folders(self.path)


def _keys(folder: str, like: str) -> set[str]:
    if "/" not in like:
        return {*(list_folder(folder) or ())}
    rest = like.partition("/")[2]
    below = list_folders(folder) or ()
    return {f"{name}/{key}" for name in below for key in _keys(in_folder(folder, name), rest)}


@dataclass(frozen=True, slots=True)
class ZipFolder:
    """A folder in a zip file."""

    index: ZipIndex
    prefix: str = ""
    """Names of its files begin with it: empty, or ending in a slash."""

    is_remote = False

    @property
    def path(self) -> str:
        """Path below that of the zip file."""
        return posixpath.join(self.index.file.path, self.prefix).rstrip("/")

    @property
    def above(self) -> ZipFolder | None:
        """The folder around it."""
        outer = posixpath.dirname(self.prefix[:-1])
        return ZipFolder(self.index, outer and f"{outer}/") if self.prefix else None

    def inside(self, *names: str) -> ZipFolder:
        """Return a folder in it."""
        inner = posixpath.normpath(posixpath.join(self.prefix, *names))
        return ZipFolder(self.index, "" if inner == "." else f"{inner}/")

    def entry(self, name: str) -> FolderEntry | None:
        """Return a file."""
        return self.chunks([name])[0]

    def chunks(self, keys: Sequence[str]) -> list[FolderEntry | None]:
        """Return the files of chunks."""
        known, file = self.index.members, self.index.file
        names = [self.prefix + key for key in keys]
        found = [name for name in names if name in known]
        starts = dict(zip(found, self.index.starts(found), strict=True))
        entries: list[FolderEntry | None] = []
        for name in names:
            if name not in starts:
                entries.append(None)
                continue
            one, path = known[name], posixpath.join(file.path, name)
            deflated = one.method != 0
            if not one.size or (not deflated and one.size != one.nbytes):
                problem, expected = "a member of the zip file has an invalid size", "1 byte or more"
                expected = expected if deflated or not one.size else f"{one.nbytes} bytes"
                raise TruncatedFileError(problem, path=path, expected=expected, found=one.size)
            sizes = starts[name], one.nbytes, one.size
            entries.append(FolderEntry(path, file, *sizes, deflated, one.crc))
        return entries

    def keys(self, like: str) -> set[str]:
        """List the files that may have keys like ``like``."""
        below = (name[len(self.prefix) :] for name in self.index.below(self.prefix))
        return {key for key in below if key.count("/") == like.count("/")}

    def folders(self) -> list[str]:
        """List the names of the folders in it."""
        below = (name[len(self.prefix) :] for name in self.index.below(self.prefix))
        return sorted({key.partition("/")[0] for key in below if "/" in key})


def folder_of(file: File, documents: Sequence[str]) -> tuple[StoreFolder, FolderEntry | None]:
    """Return the folder of a document, or the outermost folder with one in a zip file.

    Parameters
    ----------
    file : File
        A document, or a zip file.
    documents : sequence of str
        Names of documents.

    Returns
    -------
    Folder, Entry or None
        The document of the folder; None if it only contains several folders with documents.

    Raises
    ------
    DatasetError
        The zip file has no document; or as for :class:`~dask_tiled.formats.tools.zips.ZipIndex`.
    """
    if file.read(len(MAGIC)) != MAGIC:
        return Directory(os.path.dirname(file.path)), FolderEntry.of(file)
    index = ZipIndex(file)
    homes = {
        posixpath.split(name)[0] for name in index.names if posixpath.basename(name) in documents
    }
    if not homes:
        problem, expected = "the zip file holds no zarr", f"a member {' or '.join(documents)}"
        raise DatasetError(problem, path=file.path, expected=expected)
    home = posixpath.commonpath(homes) if "" not in homes else ""
    folder = ZipFolder(index, home and f"{home}/")
    return folder, next(filter(None, map(folder.entry, documents)), None)


def holds_documents(path: str, head: bytes, documents: Sequence[str]) -> bool:
    """Return whether a zip file holds documents; most files begin with one.

    Parameters
    ----------
    path, head : str, bytes
        The file, and its first bytes.
    documents : sequence of str
        Their names.
    """
    at = 0
    while (at := head.find(MAGIC, at)) >= 0:
        length = int.from_bytes(head[at + 26 : at + 28], "little")
        name = head[at + 30 : at + 30 + length]
        if os.path.basename(name) in {one.encode() for one in documents}:
            return True
        at += len(MAGIC)
    return any(posixpath.basename(name) in documents for name in ZipIndex(File.at(path)).members)
