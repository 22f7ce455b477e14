"""Open files: a process may have only so many, those that wait here for the next chunk included."""

from __future__ import annotations

import errno
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dask_tiled.errors import DatasetError

if TYPE_CHECKING:
    from dask_tiled.model.files import File

T = TypeVar("T")

IDLE = 32
"""So many open descriptors, and no more, wait in each process for the next chunk."""
SHARE = 8
"""One part of so many of what a process may have open is kept for one purpose, and no more."""
PATIENCE = 2.0
"""Seconds to wait for the descriptors of other threads."""
PAUSE = 0.02
SHORT = {errno.EMFILE, errno.ENFILE}
HINT = "ulimit -n sets how many there may be"

Key = tuple["File", bool]
"""A version of a file, and whether reads go past the page cache."""

# A deque, whose operations need no lock that a fork or a garbage collection could leave locked.
_idle: deque[tuple[Key, int]] = deque()

GIVES_BACK: list[Callable[[], None]] = []
"""What else to call to have fewer descriptors open."""


def allowed(most: int) -> int:
    """Tell how many descriptors may be kept: so many, or fewer where a process may have few."""
    try:
        import resource
    except ImportError:  # Windows
        return most
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, soft // SHARE))


def give_back() -> None:
    """Close all descriptors that nobody uses now."""
    _shorten(0)
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


@contextmanager
def lent_fd(
    file: File, *, direct: bool = False, release: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """Lend a descriptor of a file that is still the one that was opened, before and after.

    ``release`` is that of :func:`with_room`.
    """
    file.check()  # opening something else that has its name could wait for ever
    key = replace(file), direct  # another object: arrays that are gone have no file any more
    fd = _take(key)
    if fd is None:
        fd = with_room(partial(_open, file.path, direct=direct), file.path, release)
    try:
        file.check(os.fstat(fd))
        yield fd
        file.check(os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    _idle.append((key, fd))
    _shorten(allowed(IDLE))


def _shorten(most: int) -> None:
    """Close those that have waited the longest."""
    while len(_idle) > most:
        try:
            os.close(_idle.popleft()[1])
        except IndexError:  # another thread was quicker
            break


if hasattr(os, "register_at_fork"):
    # A child would share the open files, and the leases on them, with its parent.
    os.register_at_fork(after_in_child=partial(_shorten, 0))


def _take(key: Key) -> int | None:
    try:
        entries = tuple(_idle)
    except RuntimeError:  # another thread changed the deque; a further descriptor does no harm
        return None
    for entry in entries:
        if entry[0] == key:
            try:
                _idle.remove(entry)
            except (ValueError, IndexError):  # another thread was quicker, or changed the deque
                continue
            return entry[1]
    return None


def _open(path: str, *, direct: bool) -> int:
    if not direct:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_DIRECT)
    except (OSError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno in SHORT:
            raise
        raise DatasetError(
            "the file system does not do direct reads",
            path=path,
            expected="a file system that takes O_DIRECT",
            found=str(error),
            hint="Use io='buffered'.",
        ) from error
