"""Folders of zarr stores: on disk, behind URLs, and in zip files."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dask_tiled.errors import DatasetError, TruncatedFileError
from dask_tiled.files.file import File
from dask_tiled.files.paths import (
    in_folder,
    is_file,
    is_link,
    is_url,
    list_folder,
    list_folders,
)
from dask_tiled.formats.tools.zips import MAGIC, FolderEntry, ZipIndex


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
        names = [self.prefix + key for key in keys]
        found = [name for name in names if name in self.index.members]
        entries = dict(zip(found, self.index.entries(found), strict=True))
        return [entries.get(name) for name in names]

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
