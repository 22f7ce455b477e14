"""Locks of files and folders, which end with the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dask_tiled.errors import DatasetError

_held: set[int] = set()


@contextmanager
def locked(path: str, open_it: Callable[[], int]) -> Iterator[int]:
    """Open a path with ``open_it``, lock it, and yield the descriptor.

    Raise a DatasetError if another process or thread holds the lock.
    """
    while True:
        descriptor = open_it()
        _held.add(descriptor)
        try:
            _lock(descriptor, path)
            # The previous holder may have moved or removed the path meanwhile.
            if _is_at(descriptor, path):
                yield descriptor
                return
        finally:
            _held.discard(descriptor)
            os.close(descriptor)


def _lock(descriptor: int, path: str) -> None:
    import fcntl  # missing on Windows, where this module must still be importable

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DatasetError(
            "another export is writing to this path", path=path, hint="Wait until it is finished."
        ) from None
    except OSError:  # a file system without locks
        pass


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _let_go() -> None:
    """Close the descriptors in a forked child, which may outlive its parent."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
