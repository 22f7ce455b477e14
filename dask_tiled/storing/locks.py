"""Locks of folders, which end with the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import with_room
from dask_tiled.system.forks import after_fork
from dask_tiled.system.locks import is_locked, open_locked

_held: set[int] = set()


class LockedError(DatasetError):
    """Another process or thread holds the lock."""


@contextmanager
def locked(path: str, make: Callable[[], None]) -> Iterator[int]:
    """Make a folder by ``make``, lock it, and yield its descriptor.

    Raise a LockedError if another process or thread holds the lock.
    """
    while True:
        make()
        try:
            descriptor = with_room(partial(open_locked, path), path)
        except FileNotFoundError:  # the previous holder has just removed it
            continue
        except BlockingIOError:
            problem = "another export or computation is writing to this path"
            hint = "Wait until it is finished."
            raise LockedError(problem, path=path, hint=hint) from None
        _held.add(descriptor)
        try:
            # The previous holder may have moved or removed the path meanwhile.
            if is_locked(descriptor, path):
                yield descriptor
                return
        finally:
            _held.discard(descriptor)
            os.close(descriptor)


def _let_go() -> None:
    """Close the descriptors in a forked child, which may outlive its parent."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


after_fork(_let_go)
