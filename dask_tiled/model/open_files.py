"""Opening files: a process may have only so many open at once."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

SHARE = 8
"""One part of so many of what a process may have open is kept for one purpose, and no more."""
PATIENCE = 2.0
"""Seconds to wait for the descriptors of other threads."""
PAUSE = 0.02
SHORT = {errno.EMFILE, errno.ENFILE}
HINT = "ulimit -n sets how many there may be"

GIVES_BACK: list[Callable[[], None]] = []
"""Functions that close descriptors which nobody uses now."""


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
