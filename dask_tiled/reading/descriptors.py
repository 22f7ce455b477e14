"""File descriptors, lent to one reader at a time; some stay open for the next chunk."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter

from dask_tiled.errors import DatasetError
from dask_tiled.files.file import File
from dask_tiled.files.paths import GIVES_BACK, SHORT, allowed, with_room
from dask_tiled.reading.limits import IDLE_DESCRIPTORS
from dask_tiled.system.files import DIRECT, HINDERS, TO_READ, fstat_again, open_file
from dask_tiled.system.forks import after_fork

Key = tuple[object, ...]
"""A version of a file, and whether it is read directly."""
_version = attrgetter("__class__", "path", "size", "mtime_ns", "inode", "ctime_ns")

# A deque needs no lock, which a fork or the garbage collector could leave locked.
_idle: deque[tuple[Key, int]] = deque()


@contextmanager
def lent_fd(
    file: File, *, direct: bool = False, release: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """Lend a descriptor in a context; see :func:`lend`."""
    fd = lend(file, direct=direct, release=release)
    try:
        yield fd
    except BaseException:
        os.close(fd)
        raise
    take_back(file, fd, direct=direct)


def lend(file: File, *, direct: bool = False, release: Callable[[], None] = lambda: None) -> int:
    """Lend a descriptor of a file, and check that the file is unchanged.

    ``release`` is passed to :func:`with_room`.
    """
    if not HINDERS:  # opening a FIFO of that name could block forever
        file.check()
    key = *_version(file), direct  # it must not keep alive the File of a dropped array
    fd = _take(key)
    if fd is None:
        try:
            fd = with_room(partial(_open, file.path, direct=direct), file.path, release)
        except (OSError, DatasetError):
            file.check()
            raise
    _check(file, fd, os.fstat)
    return fd


def take_back(file: File, fd: int, *, direct: bool = False) -> None:
    """Keep a descriptor for the next chunk, and check that the file is still unchanged."""
    _check(file, fd, partial(status_again, file))
    _idle.append(((*_version(file), direct), fd))
    _shorten(0 if HINDERS else allowed(IDLE_DESCRIPTORS))


def status_again(file: File, fd: int) -> os.stat_result:
    """Return the status of an open file that was checked when it was opened."""
    return os.fstat(fd) if fstat_again is None else fstat_again(fd, file.inode)


def _check(file: File, fd: int, status: Callable[[int], os.stat_result]) -> None:
    """Check that a file is unchanged; close its descriptor if not."""
    try:
        file.check(status(fd))
    except BaseException:
        os.close(fd)
        raise


def _shorten(most: int) -> None:
    """Close the descriptors idle for the longest time."""
    while len(_idle) > most:
        try:
            os.close(_idle.popleft()[1])
        except IndexError:  # another thread closed it first
            break


GIVES_BACK.append(partial(_shorten, 0))

# A child would share the open files, and the leases on them, with its parent.
after_fork(partial(_shorten, 0))


def _take(key: Key) -> int | None:
    try:
        entries = tuple(_idle)
    except RuntimeError:  # another thread changed the deque; one more open descriptor does no harm
        return None
    for entry in entries:
        if entry[0] == key:
            try:
                _idle.remove(entry)
            except (ValueError, IndexError):  # another thread was first, or changed the deque
                continue
            return entry[1]
    return None


def _open(path: str, *, direct: bool) -> int:
    if not direct:
        return open_file(path, TO_READ)
    try:
        if DIRECT is None:
            raise OSError(errno.ENOTSUP, "the system has no direct reads")  # noqa: TRY301
        return open_file(path, TO_READ | DIRECT)
    except OSError as error:
        if error.errno in SHORT:
            raise
        raise DatasetError(
            "the file system does not support direct reads",
            path=path,
            expected="a file system that supports O_DIRECT",
            found=str(error),
            hint="Use io='buffered'.",
        ) from error
