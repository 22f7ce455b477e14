"""Paths and URLs: lookup, permission to read, and opening.

``os.path.split`` and ``splitext`` work for both; functions that access files are here.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from threading import get_ident
from typing import Any, TypeVar

from dask_tiled.errors import OutsideFolderError, StaleFileError
from dask_tiled.remote.session import join, session
from dask_tiled.system.resources import NOFILE, UNLIMITED, getrlimit

T = TypeVar("T")

SHARE = 8
"""A cache keeps at most this fraction (1/8) of the file descriptors that the process may open."""
PATIENCE = 5.0
"""Seconds to wait for a descriptor while no other thread of the process gets one."""
LONGEST = 60.0
"""Seconds to wait at most: other threads may open files for ever."""
PAUSE = 0.02
SHORT = {errno.EMFILE, errno.ENFILE}
HINT = "ulimit -n sets the limit"

OF_AXES = ".axes.json"
"""Suffix of the file that saves the axes of a scan."""
OF_ZARR = "zarr.json", ".zarray", ".zgroup"
"""Metadata files of zarr arrays and groups, which are folders."""

GIVES_BACK: list[Callable[[], None]] = []
"""Functions that close idle descriptors, registered by caches."""
_latest = [(0.0, 0)]
"""When a thread got a descriptor for the last time, and its number."""


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL."""
    scheme, mark, _ = os.fspath(path).partition("://")
    return bool(mark) and scheme.isascii() and scheme.replace("+", "").replace("-", "").isalnum()


def absolute(path: str | os.PathLike[str]) -> str:
    """Return an absolute path; URLs are returned unchanged."""
    if is_url(path):
        return os.fspath(path)
    # On Windows, the path of the current folder of a drive, C:, may end with a separator.
    return os.path.normpath(os.path.abspath(path))


def from_the_root(path: Any) -> Any:
    """Make paths absolute, so that they stay valid when the working directory changes."""
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        plain = isinstance(text, str) and text and "\0" not in text and "://" not in text
        return absolute(text) if plain else path
    return [*map(from_the_root, path)] if isinstance(path, (list, tuple)) else path


def without_scheme(text: str) -> str:
    """Return the path in a ``file://`` URL; other texts are returned unchanged."""
    path = text.removeprefix("file://")
    # On Windows, file:///C:/scan.mib names C:/scan.mib.
    return path[1:] if path.startswith("/") and os.path.splitdrive(path[1:])[0] else path


def real(path: str | os.PathLike[str]) -> str:
    """Resolve links; URLs are returned unchanged."""
    return os.fspath(path) if is_url(path) else os.path.realpath(path)


def is_link(path: str) -> bool:
    """Return whether a path is a symbolic link."""
    return not is_url(path) and os.path.islink(path)


def is_file(path: str) -> bool:
    """Return whether a file exists. A file that a server refuses counts as absent."""
    if not is_url(path):
        is_there, looked = os.path.isfile(path), _looked.get()
        if not is_there and looked is not None:
            looked.add(absolute(path))
        return is_there
    try:
        session().look(path)
    except OSError:
        return False
    return True


def file_size(path: str) -> int:
    """Return the size of a file in bytes."""
    return session().look(path)[1].size if is_url(path) else os.path.getsize(path)


def named_in(folder: str, name: str) -> str:
    """Return the path of a file in a folder, given its name as another file writes it."""
    return join(folder, name) if is_url(folder) else os.path.normpath(in_folder(folder, name))


def in_folder(folder: str, *names: str) -> str:
    """Return the path of a name in a folder or below a URL, whose separator is always "/"."""
    return posixpath.join(folder, *names) if is_url(folder) else os.path.join(folder, *names)


def list_folder(folder: str) -> list[str] | None:
    """List the names in a folder, only files for URLs; None if the server cannot list."""
    if is_url(folder):
        return session().names(folder)
    folder = folder or "."
    return listed(folder)


def list_folders(folder: str) -> list[str] | None:
    """List the names of the folders in a folder; None if the server cannot list."""
    if is_url(folder):
        return session().folders(folder)
    return with_room(partial(_folders_in, folder), folder)


def _folders_in(folder: str) -> list[str]:
    """List folders; the type of most entries comes with their names, without a call for each."""
    with os.scandir(folder) as entries:
        return [
            one.name
            for one in entries
            if (os.path.isdir(one.path) if one.is_symlink() else one.is_dir())
        ]


def names_in(folder: str, *guesses: str) -> list[str]:
    """List the names in a folder; if the server cannot list, those of ``guesses`` that exist."""
    names = list_folder(folder)
    if names is None:
        names = [name for name in guesses if is_file(in_folder(folder, name))]
    return names


def axes_file(path: str) -> str:
    """Return the path of the saved axes of a scan, given its first file.

    It is in the folder of the first file or, for zarr, of the outermost zarr folder.
    """
    if os.path.basename(path) in OF_ZARR and not is_url(path):
        above = os.path.dirname(path)
        while any(os.path.isfile(os.path.join(above, name)) for name in OF_ZARR):
            path, above = above, os.path.dirname(above)
    return path + OF_AXES


def allowed(most: int) -> int:
    """Return how many descriptors a cache may keep: ``most``, or a share of the process's limit."""
    if getrlimit is None:
        return most
    soft, _ = getrlimit(NOFILE)
    return most if soft == UNLIMITED else max(1, min(most, soft // SHARE))


def give_back() -> None:
    """Close all idle descriptors."""
    for release in GIVES_BACK:
        release()


def with_room(open_: Callable[[], T], path: str, release: Callable[[], None] = lambda: None) -> T:
    """Call ``open_``; if the process has too many open files, close idle ones and retry.

    Parameters
    ----------
    open_ : callable
        It may be called again after it fails with too many open files.
    path : str
        Path named in errors.
    release : callable, optional
        Function that closes the caller's own files, so that threads that wait for descriptors do
        not wait for each other.

    Raises
    ------
    OSError
        Whatever `open_` raises; EMFILE if no descriptor becomes free in time.
    """
    start = None
    while True:
        try:
            found = open_()
        except OSError as error:
            if error.errno not in SHORT:
                raise
            now = time.monotonic()
            if start is not None:
                if now > _deadline(start):
                    raise OSError(error.errno, f"{error.strerror} ({HINT})", path) from error
                time.sleep(random.uniform(0, PAUSE))  # noqa: S311 - random delays decorrelate threads
            start = start or now
        else:
            _latest[0] = time.monotonic(), get_ident()
            return found
        release()
        give_back()


def _deadline(start: float) -> float:
    """Return until when a thread waits for a descriptor, given when it began.

    Its own successes do not count: `open_` may open one file of two, and close it, each time.
    """
    latest, thread = _latest[0]
    alone = thread == get_ident()
    return min((start if alone else max(start, latest)) + PATIENCE, start + LONGEST)


def open_file(path: str, mode: str = "rb", **options: Any) -> Any:
    """Open a file like :func:`open`, with the retries of :func:`with_room`."""
    return with_room(partial(open, path, mode, **options), path)


def listed(folder: str) -> list[str]:
    """List the names in a folder, with the retries of :func:`with_room`."""
    return with_room(partial(os.listdir, folder), folder)


class Border:
    """The folders in which files may be read: those that the user named, with links resolved.

    Paths that the user named may lie anywhere. Links in all other paths are resolved, and they may
    lie outside only if `outside` is true.
    """

    def __init__(self, paths: Iterable[str], *, outside: bool = False) -> None:
        self.outside = outside
        self._named = {absolute(path): None for path in paths}  # in the order of the user
        self._inside: dict[tuple[str, int, int], bool] = {}

    @cached_property
    def _homes(self) -> tuple[str, ...]:
        local = {path for path in self._named if not is_url(path)}
        folders = {path for path in local if os.path.isdir(path)}
        beside = {os.path.dirname(path) for path in local - folders}
        homes = {os.path.realpath(folder) for folder in folders | beside}
        homes |= {
            os.path.dirname(os.path.realpath(path))
            for path in local - folders
            if os.path.islink(path)
        }
        urls = {os.path.dirname(url) for url in self._named.keys() - local}
        return (*map(_prefix, homes), *(f"{url.rstrip('/')}/" for url in urls))

    def check(self, path: str | os.PathLike[str], found: os.stat_result | None = None) -> None:
        """Check that a file lies inside.

        Parameters
        ----------
        path : path-like
        found : os.stat_result, optional
            Status of the open file, which must be the file that is checked.

        Raises
        ------
        OutsideFolderError
            The file lies outside.
        StaleFileError
            Another file has this path than the one that was opened.
        """
        full = absolute(path)
        if self.outside or full in self._named or (not is_url(full) and self._beside(full, found)):
            return
        target = full if is_url(full) else os.path.realpath(full)
        if not (target if is_url(full) else os.path.normcase(target)).startswith(self._homes):
            raise OutsideFolderError(
                "the file lies outside of the opened folder",
                path=full,
                expected=f"a file in {os.path.dirname(next(iter(self._named)))}",
                found=target,
                hint="Pass outside_folder=True if you trust the file.",
            )
        if not _is_same(target, found):
            raise StaleFileError(
                "the file has been replaced while it was opened",
                path=full,
                hint="Open it again to read its present content.",
            )

    def _beside(self, path: str, found: os.stat_result | None) -> bool:
        """Return whether a file in an allowed folder is not a link."""
        try:
            folder = os.path.dirname(path)
            above, here = os.stat(folder), os.lstat(path)
        except OSError:
            return False
        known = folder, above.st_dev, above.st_ino  # the folder may have been replaced
        if known not in self._inside:
            self._inside[known] = _prefix(os.path.realpath(folder)).startswith(self._homes)
        same = found is None or os.path.samestat(here, found)
        return self._inside[known] and same and not stat.S_ISLNK(here.st_mode)


def _prefix(folder: str) -> str:
    """Return how the paths of files in a folder begin, where their case does not matter."""
    return os.path.normcase(os.path.join(folder, ""))


def _is_same(path: str, found: os.stat_result | None) -> bool:
    try:
        return found is None or os.path.samestat(os.lstat(path), found)
    except OSError:
        return False


_border: ContextVar[Border | None] = ContextVar("border", default=None)
_looked: ContextVar[set[str] | None] = ContextVar("looked", default=None)


@contextmanager
def noting_looked() -> Iterator[set[str]]:
    """Yield a set of the paths of local files that are looked at, or for, in this context."""
    found = set[str]()
    token = _looked.set(found)
    try:
        yield found
    finally:
        _looked.reset(token)


@contextmanager
def within(border: Border | None) -> Iterator[None]:
    """Apply a border in this context."""
    token = _border.set(border)
    try:
        yield
    finally:
        _border.reset(token)


def border() -> Border | None:
    """Return the border in effect; None if there is none, as in tasks."""
    return _border.get()


def check_inside(path: str | os.PathLike[str], found: os.stat_result | None = None) -> None:
    """Check that a file is inside the border in effect, if any; see :class:`Border`."""
    looked = _looked.get()
    if looked is not None and not is_url(path):
        looked.add(absolute(path))
    known = _border.get()
    if known is not None:
        known.check(path, found)
