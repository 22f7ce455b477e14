"""Folders that one process or thread has open at a time."""

from __future__ import annotations

import os
from collections.abc import Callable

from dask_tiled.system.names import WINDOWS, offered

_flock = offered("fcntl", "flock")
_EXCLUSIVE = offered("fcntl", "LOCK_EX"), offered("fcntl", "LOCK_NB")


def _open_locked(path: str) -> int:
    """Open a folder, and lock it until it is closed.

    Raise a BlockingIOError if it is locked. File systems without locks let several open it.
    """
    opened = os.open(path, os.O_RDONLY)
    try:
        if _flock is not None:
            _flock(opened, _EXCLUSIVE[0] | _EXCLUSIVE[1])
    except BlockingIOError:
        os.close(opened)
        raise
    except OSError:  # a file system without locks
        pass
    return opened


def _is_locked(descriptor: int, path: str) -> bool:
    """Return whether a lock is of the folder that has the path now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


is_locked: Callable[[int, str], bool] = offered(WINDOWS, "is_locked") or _is_locked
open_locked: Callable[[str], int] = offered(WINDOWS, "open_locked") or _open_locked
