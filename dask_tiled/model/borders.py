"""Borders: where a file may lie that another one leads to, by name or as a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

from dask_tiled.errors import OutsideFolderError
from dask_tiled.remote.session import is_url


class Border:
    """The folders of the files that a user has named, and of what these lead to if they are links.

    What is a folder itself counts as such.
    What the user has named may lie anywhere. All else counts as what links lead to, and may lie
    outside only if `outside` says so.
    """

    def __init__(self, paths: Iterable[str], *, outside: bool = False) -> None:
        self.outside = outside
        self._named = {_absolute(path): None for path in paths}  # in their order
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
        full = _absolute(path)
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
        """Tell of most files that they lie inside: no links, in a folder that is known."""
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


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.fspath(path) if is_url(path) else os.path.abspath(path)


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
    """Give the border that holds; None where there is none, as in tasks."""
    return _border.get()


def check_inside(path: str | os.PathLike[str], found: os.stat_result | None = None) -> None:
    """Make sure that a file lies inside of the border, if there is one; see :class:`Border`."""
    known = _border.get()
    if known is not None:
        known.check(path, found)
