"""Forks of this process: threads finish what they would leave half done in the child.

No other thread exists in a child. What it was changing stays half changed, and its locks locked
for ever: a child that imports the same module, or compiles, would never go on. So a fork waits
until no thread imports, and takes the locks itself. State that a child must not share is reset.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from threading import get_ident
from typing import Any

from dask_tiled.system.names import offered

PATIENCE = 60.0
"""Seconds for which a fork waits for other threads: longer than a kernel compiles."""
POLL_SECONDS = 0.001

_register = offered("os", "register_at_fork")
# Locks of modules by name, without which forks do not wait for imports.
_importing: dict[str, Any] = getattr(import_module("importlib._bootstrap"), "_module_locks", {})
_locks: list[Any] = []
_held: dict[int, list[Any]] = {}
"""Locks that a thread has taken for its fork."""
_listed: dict[int, list[Any]] = {}
"""Locks that other threads may hold when a thread forks."""


def after_fork(function: Callable[[], None]) -> None:
    """Call a function in each forked child of this process."""
    if _register is not None:
        _register(after_in_child=function)


def before_fork(function: Callable[[], None]) -> None:
    """Call a function before each fork of this process."""
    if _register is not None:
        _register(before=function)


def held_at_fork(lock: Any) -> None:
    """Hold a lock while this process forks: what it protects is whole in the child, and free.

    Locks are taken in the reverse order of these calls, so the inner one of two comes first here.
    One that is not free within `PATIENCE` is replaced in the child.

    Parameters
    ----------
    lock : Lock or RLock
        Anything else is ignored: a lock of another package may no longer exist.
    """
    if hasattr(lock, "_at_fork_reinit"):  # as threading and logging do
        _locks.insert(0, lock)


def _before() -> None:
    end = time.monotonic() + PATIENCE
    while True:
        while _others_import() and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        left = max(0.0, end - time.monotonic())
        _held[get_ident()] = [lock for lock in _locks if lock.acquire(timeout=left)]
        if not _others_import() or time.monotonic() >= end:
            break
        _in_parent()
    _listed[get_ident()] = [*_locks_of_properties()]


def _others_import() -> bool:
    """Return whether another thread imports a module."""
    some = [find() for find in [*_importing.values()]]
    owners = {owner for lock in some if (owner := getattr(lock, "owner", None)) is not None}
    return bool(owners - {get_ident()})


def _in_parent() -> None:
    _listed.pop(get_ident(), None)
    for lock in reversed(_held.pop(get_ident(), ())):
        lock.release()


def _in_child() -> None:
    _held.clear()
    for lock in (*_locks, *_listed.pop(get_ident(), ())):
        lock._at_fork_reinit()  # noqa: SLF001 - as threading and logging do
    _listed.clear()


def _locks_of_properties() -> Iterator[Any]:
    """Yield the locks of cached properties of all classes, which Python 3.11 has.

    A thread that optimises a graph of dask holds one, for too long to wait. They are listed before
    the fork: a child that looks at all classes copies their memory.
    """
    if sys.version_info >= (3, 12) or len(sys._current_frames()) == 1:  # noqa: SLF001
        return
    seen: set[type] = {object}
    classes: list[type] = [object]
    while classes:
        new: set[type] = {*type.__subclasses__(classes.pop())} - seen
        seen |= new
        classes += new
    for one in seen:
        for value in list(vars(one).values()):
            if isinstance(value, cached_property) and hasattr(value, "lock"):
                yield value.lock


if _register is not None:
    _register(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
