"""The files below folders, each listed once."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import OF_ZARR, absolute, is_url, with_room
from dask_tiled.formats.tools.files import natural_key

OF_DATASET = frozenset({*OF_ZARR, ".zmetadata"})
"""Names of files whose folder is a dataset."""

Report = Callable[[str, str], None]
"""Function that receives a path that cannot be read, and why."""


class Stamp(NamedTuple):
    """Size and time of the last change of a file, or of all files of a folder."""

    nbytes: int
    mtime_ns: int


class FolderFiles(NamedTuple):
    """Files of a folder that may be datasets, by path; or a folder that is one dataset."""

    folder: str
    stamps: dict[str, Stamp]
    others: int = 0
    """Number of files whose names do not match the pattern, and of pipes, sockets and devices."""


class FolderWalk:
    """The folders below some paths, each before the folders in it.

    Links to files and folders that are listed by themselves are skipped; others are followed, such
    as links into hidden folders. No folder is listed twice, whatever links lead to it. Names that
    begin with a dot are skipped.

    Parameters
    ----------
    paths : sequence of path-like
        Folders and files.
    pattern : str or sequence of str, optional
        Patterns of file names, such as ``"*_master.h5"``; by default all.
    recursive : bool
        Whether to list the folders in folders.
    report : callable
        Function that receives the path and the problem of what cannot be listed.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        pattern: str | Sequence[str] | None,
        *,
        recursive: bool,
        report: Report,
    ) -> None:
        self._paths = [absolute(path) for path in paths]
        for path in filter(is_url, self._paths):
            hint = "Pass a list of URLs to open_dataset."
            raise DatasetError("URLs are not catalogued", path=path, hint=hint)
        self._patterns = None if pattern is None else _listed(pattern)
        self._recursive, self._report = recursive, report

    def __iter__(self) -> Iterator[FolderFiles]:
        """List the folders, in natural order.

        Raises
        ------
        FileNotFoundError
            A given path does not exist.
        """
        self._seen = set[tuple[int, int]]()
        self._roots = [os.path.join(os.path.realpath(path), "") for path in self._paths]
        given: dict[str, dict[str, Stamp]] = {}
        for path in self._paths:
            found = os.stat(path)
            if stat.S_ISDIR(found.st_mode):
                yield from self._below(path)
            elif not stat.S_ISREG(found.st_mode):
                self._report(path, "it is a pipe, socket or device")
            else:
                given.setdefault(os.path.dirname(path), {})[path] = _stamp(found)
        yield from (FolderFiles(folder, stamps) for folder, stamps in given.items())

    def _below(self, root: str) -> Iterator[FolderFiles]:
        waiting = [root]
        while waiting:
            folder = waiting.pop()
            try:
                found = os.stat(folder)
                if (found.st_dev, found.st_ino) in self._seen:
                    continue
                self._seen.add((found.st_dev, found.st_ino))
                folders, files, others, is_dataset = self._split(folder)
            except OSError as error:
                self._report(folder, error.strerror or str(error))
                continue
            if is_dataset:
                yield FolderFiles(folder, {folder: self._whole(folder)})
                continue
            kept = files
            if self._patterns is not None:
                kept = {path: one for path, one in files.items() if self._matches(path)}
            others += len(files) - len(kept)
            if kept or others:
                yield FolderFiles(folder, kept, others)
            if self._recursive:
                waiting += sorted(folders, key=natural_key, reverse=True)

    def _matches(self, path: str) -> bool:
        name = os.path.basename(path)
        patterns = self._patterns
        return patterns is None or any(fnmatch.fnmatchcase(name, one) for one in patterns)

    def _split(self, folder: str) -> tuple[list[str], dict[str, Stamp], int, bool]:
        """Return folders, stamps of files and the number of others, and whether it is a dataset."""
        folders, files, others = list[str](), dict[str, Stamp](), 0
        links = list[os.DirEntry[str]]()
        for entry in _entries(folder):
            if entry.name in OF_DATASET:
                return [], {}, 0, True
            if entry.name.startswith("."):
                continue
            try:
                if entry.is_symlink():
                    links.append(entry)
                elif entry.is_dir():
                    folders.append(entry.path)
                elif entry.is_file():
                    files[entry.path] = _stamp(entry.stat())
                else:
                    others += 1
            except OSError as error:
                self._report_lost(entry.path, error)
        for path, stamp in self._follow(links):
            if stamp is None:
                folders.append(path)
            else:
                files[path] = stamp
        return folders, files, others, False

    def _follow(self, links: list[os.DirEntry[str]]) -> Iterator[tuple[str, Stamp | None]]:
        """Yield links that are not listed by themselves; folders have no stamp, and come first."""
        for link in sorted(links, key=lambda one: not os.path.isdir(one.path)):
            try:
                if self._is_listed(link.path):
                    continue
                if link.is_dir():
                    yield link.path, None
                    if self._recursive:
                        self._roots.append(os.path.join(os.path.realpath(link.path), ""))
                elif link.is_file():
                    yield link.path, _stamp(link.stat())
                elif os.path.exists(link.path):
                    self._report(link.path, "the link leads to a pipe, socket or device")
                else:
                    self._report(link.path, "the link leads nowhere")
            except OSError as error:
                self._report_lost(link.path, error)

    def _report_lost(self, path: str, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed meanwhile
            self._report(path, error.strerror or str(error))

    def _is_listed(self, link: str) -> bool:
        """Return whether a link leads to what is listed by itself."""
        target = os.path.realpath(link)
        below = os.path.join(target, "")
        is_folder, is_file = os.path.isdir(target), os.path.isfile(target)
        for root in self._roots:
            steps = below.removeprefix(root).split(os.sep)[:-1]
            if not below.startswith(root) or any(step.startswith(".") for step in steps):
                continue
            is_reached = self._recursive or len(steps) <= is_file
            if not steps or (is_reached and (is_folder or self._matches(target))):
                return is_folder or is_file
        return False

    def _whole(self, folder: str) -> Stamp:
        """Return the bytes of all files below a folder, and their latest change."""
        nbytes, latest, waiting = 0, os.stat(folder).st_mtime_ns, [folder]
        while waiting:
            place = waiting.pop()
            try:
                for entry in _entries(place):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    with suppress(OSError):  # removed meanwhile
                        found = _stamp(entry.stat())
                        nbytes, latest = nbytes + found.nbytes, max(latest, found.mtime_ns)
            except OSError as error:
                self._report(place, error.strerror or str(error))
        return Stamp(nbytes, latest)


def _listed(pattern: str | Sequence[str]) -> tuple[str, ...]:
    patterns = (pattern,) if isinstance(pattern, str) else tuple(pattern)
    if not patterns or not all(isinstance(one, str) and one for one in patterns):
        expected = 'a pattern of names, such as "*.mib", or a list of patterns'
        raise DatasetError("invalid pattern", expected=expected, found=repr(pattern))
    return patterns


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """List a folder, which may have a million entries, one by one."""
    with with_room(partial(os.scandir, folder), folder) as entries:
        yield from entries


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_size, found.st_mtime_ns)
