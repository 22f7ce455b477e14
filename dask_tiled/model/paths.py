"""Paths: what the system, or a server, has there, which files may be read, and opening them.

``os.path.split``, ``join`` and ``splitext`` do for paths and URLs; what looks at files is here.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from typing import Any, TypeVar

from dask_tiled.errors import OutsideFolderError
from dask_tiled.remote.session import join, session

T = TypeVar("T")

SHARE = 8
"""One part of so many of what a process may have open is kept for one purpose, and no more."""
PATIENCE = 2.0
"""Seconds to wait for the descriptors of other threads."""
PAUSE = 0.02
SHORT = {errno.EMFILE, errno.ENFILE}
HINT = "ulimit -n sets how many there may be"

OF_AXES = ".axes.json"
"""What is added to the name of a scan for the file that keeps its axes."""
OF_ZARR = "zarr.json", ".zarray", ".zgroup"
"""The documents of arrays and groups of zarr, in folders of their own."""

GIVES_BACK: list[Callable[[], None]] = []
"""Functions that close descriptors which nobody uses now."""


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL."""
    scheme, mark, _ = os.fspath(path).partition("://")
    return bool(mark) and scheme.isascii() and scheme.replace("+", "").replace("-", "").isalnum()


def absolute(path: str | os.PathLike[str]) -> str:
    """Write a path from the root on; a URL stays as it is."""
    return os.fspath(path) if is_url(path) else os.path.abspath(path)


def real(path: str | os.PathLike[str]) -> str:
    """Return what links lead to; a URL is none."""
    return os.fspath(path) if is_url(path) else os.path.realpath(path)


def is_link(path: str) -> bool:
    """Return whether a path is a symbolic link."""
    return not is_url(path) and os.path.islink(path)


def is_file(path: str) -> bool:
    """Return whether there is a file. What a server does not let us see is not there."""
    if not is_url(path):
        return os.path.isfile(path)
    try:
        session().look(path)
    except OSError:
        return False
    return True


def file_size(path: str) -> int:
    """Return the length of a file."""
    return session().look(path)[1].size if is_url(path) else os.path.getsize(path)


def named_in(folder: str, name: str) -> str:
    """Return the path of a file in a folder, by its name as it is written in another file."""
    return join(folder, name) if is_url(folder) else os.path.normpath(os.path.join(folder, name))


def list_folder(folder: str) -> list[str] | None:
    """List what a folder holds, of URLs only files; None where the server does not tell."""
    if is_url(folder):
        return session().names(folder)
    folder = folder or "."
    return listed(folder)


def names_in(folder: str, *guesses: str) -> list[str]:
    """List what a folder holds; where the server does not tell, those of the guesses there are."""
    names = list_folder(folder)
    if names is None:
        names = [name for name in guesses if is_file(os.path.join(folder, name))]
    return names


def axes_file(path: str) -> str:
    """Return where axes are kept of a scan whose first file lies there.

    They are kept beside that; of what lies in a folder of zarr, beside the outermost such folder.
    """
    if os.path.basename(path) in OF_ZARR and not is_url(path):
        above = os.path.dirname(path)
        while any(os.path.isfile(os.path.join(above, name)) for name in OF_ZARR):
            path, above = above, os.path.dirname(above)
    return path + OF_AXES


def allowed(most: int) -> int:
    """Return how many descriptors may be kept: so many, or fewer where a process may have few."""
    try:
        import resource
    except ImportError:  # Windows
        return most
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, soft // SHARE))


def give_back() -> None:
    """Close all descriptors that nobody uses now."""
    for release in GIVES_BACK:
        release()


def with_room(open_: Callable[[], T], path: str, release: Callable[[], None] = lambda: None) -> T:
    """Open something; where the process has too much open already, close what nobody uses.

    Parameters
    ----------
    open_ : callable
        It may be called again, but not after it has opened anything.
    path : str
        What to name in errors.
    release : callable, optional
        Gives up what the caller itself holds: threads that all hold something and wait for more
        would wait for each other.

    Raises
    ------
    OSError
        Whatever `open_` raises; EMFILE where others have too much open, and do not close it.
    """
    end = None
    while True:
        try:
            return open_()
        except OSError as error:
            if error.errno not in SHORT:
                raise
            now = time.monotonic()
            if end is not None:
                if now > end:
                    raise OSError(error.errno, f"{error.strerror} ({HINT})", path) from error
                time.sleep(random.uniform(0, PAUSE))  # noqa: S311 - so that threads take turns
            end = end or now + PATIENCE
        release()
        give_back()


def open_file(path: str, mode: str = "rb", **options: Any) -> Any:
    """Open a file as Python does, by :func:`with_room`."""
    return with_room(partial(open, path, mode, **options), path)


def listed(folder: str) -> list[str]:
    """List the names in a folder, by :func:`with_room`."""
    return with_room(partial(os.listdir, folder), folder)


class Border:
    """The folders of the files that a user has named, and of what these lead to if they are links.

    What is a folder itself counts as such.
    What the user has named may lie anywhere. All else counts as what links lead to, and may lie
    outside only if `outside` says so.
    """

    def __init__(self, paths: Iterable[str], *, outside: bool = False) -> None:
        self.outside = outside
        self._named = {absolute(path): None for path in paths}  # in their order
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
        homes |= {os.path.dirname(url) for url in self._named.keys() - local}
        return tuple(home.rstrip("/") + "/" for home in homes)

    def check(self, path: str | os.PathLike[str], found: os.stat_result | None = None) -> None:
        """Make sure that a file lies inside.

        Parameters
        ----------
        path : path-like
        found : os.stat_result, optional
            What was found there: it has to be the file that is checked.

        Raises
        ------
        OutsideFolderError
            It does not.
        """
        full = absolute(path)
        if self.outside or full in self._named or (not is_url(full) and self._beside(full, found)):
            return
        target = full if is_url(full) else os.path.realpath(full)
        if not target.startswith(self._homes) or not _is_same(target, found):
            raise OutsideFolderError(
                "the file lies outside of the folder that was opened",
                path=full,
                expected=f"a file in {os.path.dirname(next(iter(self._named)))}",
                found=target,
                hint="Pass outside_folder=True if you trust the file.",
            )

    def _beside(self, path: str, found: os.stat_result | None) -> bool:
        """Return whether a file is no link, in a folder that is known."""
        try:
            folder = os.path.dirname(path)
            above, here = os.stat(folder), os.lstat(path)
        except OSError:
            return False
        known = folder, above.st_dev, above.st_ino  # it may have been replaced
        if known not in self._inside:
            self._inside[known] = (os.path.realpath(folder) + "/").startswith(self._homes)
        same = found is None or os.path.samestat(here, found)
        return self._inside[known] and same and not stat.S_ISLNK(here.st_mode)


def _is_same(path: str, found: os.stat_result | None) -> bool:
    try:
        return found is None or os.path.samestat(os.lstat(path), found)
    except OSError:
        return False


_border: ContextVar[Border | None] = ContextVar("border", default=None)


@contextmanager
def within(border: Border | None) -> Iterator[None]:
    """Let a border hold."""
    token = _border.set(border)
    try:
        yield
    finally:
        _border.reset(token)


def border() -> Border | None:
    """Return the border that holds; None where there is none, as in tasks."""
    return _border.get()


def check_inside(path: str | os.PathLike[str], found: os.stat_result | None = None) -> None:
    """Make sure that a file lies inside of the border, if there is one; see :class:`Border`."""
    known = _border.get()
    if known is not None:
        known.check(path, found)
