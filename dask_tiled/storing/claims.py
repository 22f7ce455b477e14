"""The folder beside the place of an export: made, locked, gone on with, and removed."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from dask_tiled.errors import warn
from dask_tiled.model.paths import listed, with_room
from dask_tiled.storing.disk import at_once, telling_of
from dask_tiled.storing.locks import locked
from dask_tiled.storing.nodes import (
    check_node,
    check_parts,
    files,
    foreign,
    is_name,
    reading_of,
    remove,
    remove_empty,
)
from dask_tiled.storing.places import another

_ATTEMPT = re.compile("[0-9a-f]{32}-[0-9a-f]{32}")
_GONE = re.compile("gone-[0-9a-f]{32}")
_OLD = re.compile("old-[0-9a-f]{32}")
_REPLACED = "replaced"
_WAITS = (0, 0.01, 0.02, 0.05, 0.1)
"""Seconds from one look at what is left of an attempt to the next."""


@contextmanager
def claimed(path: str, attempts: Sequence[str] = ()) -> Iterator[str]:
    """Make the folder beside a place that is written to, lock it, and give its path.

    What exports left there that were stopped is removed, but for some attempts; what one of them
    was about to replace is back in its place.

    Raises
    ------
    DatasetError
        There is something else than exports leave; then all of it stays.
    """
    part = f"{path}.part"
    around = [folder for folder in Path(part).parents if not os.path.lexists(folder)]
    try:
        with locked(part, partial(_made, part)):
            try:
                _clear(part, path, attempts)
                yield part
            finally:
                with suppress(OSError):  # there may be something to go on with
                    os.rmdir(part)
    finally:
        with suppress(OSError):  # nor does an error leave folders that were made for nothing
            for folder in around:
                folder.rmdir()


def set_aside(part: str, path: str) -> None:
    """Move what is replaced out of its place."""
    os.rename(path, os.path.join(part, _REPLACED))


def put_back(part: str, path: str) -> None:
    """Move back what was set aside, if there is anything."""
    with suppress(FileNotFoundError):
        os.rename(os.path.join(part, _REPLACED), path)


def remove_replaced(part: str) -> None:
    """Remove what was set aside. From the first moment on, it is nothing to put back."""
    replaced, old = os.path.join(part, _REPLACED), os.path.join(part, f"old-{uuid.uuid4().hex}")
    if os.path.isdir(replaced):
        os.rename(replaced, old)
        remove(old)


def _made(part: str) -> int:
    """Make a folder, or take one of attempts that is there, and open it."""
    if os.path.lexists(part) and (os.path.islink(part) or not os.path.isdir(part)):
        raise foreign(part)
    with telling_of(part):
        os.makedirs(part, exist_ok=True)
        return with_room(partial(os.open, part, os.O_RDONLY), part)


def _clear(part: str, path: str, attempts: Sequence[str]) -> None:
    """Remove what other exports left; say so where that might have been gone on with."""
    with reading_of(part):
        found = listed(part)
        for name in found:
            _check(part, name)
    with telling_of(path):
        if os.path.lexists(path):
            remove_replaced(part)
        else:
            put_back(part, path)
        for name in found:
            left = os.path.join(part, name)
            if is_name(name):
                os.remove(left)
            elif _OLD.fullmatch(name):
                remove(left)
            elif name not in {*attempts, _REPLACED}:
                afresh = attempts and attempts[-1] not in found and _ATTEMPT.fullmatch(name)
                if afresh and not _is_moved(left):
                    warn(another(part, name, attempts[-1]))
                discard(left)


def _is_moved(attempt: str) -> bool:
    """Return whether what was made by an attempt is in its place, or was."""
    store, journal = (os.path.join(attempt, name) for name in ("store", "journal"))
    return os.path.isdir(journal) and not os.path.lexists(store)


def discard(attempt: str) -> None:
    """Remove an attempt. Tasks that still write to it, and those who come next, find nothing."""
    gone = os.path.join(os.path.dirname(attempt), f"gone-{uuid.uuid4().hex}")
    with suppress(OSError):  # what cannot go now goes with the next export
        if _GONE.fullmatch(os.path.basename(attempt)) is None:
            os.rename(attempt, gone)
            attempt = gone
        for seconds in _WAITS:
            time.sleep(seconds)
            with suppress(OSError):
                _remove(attempt)
            if not os.path.lexists(attempt):
                break


def _remove(attempt: str) -> None:
    """Remove what is in an attempt, once: tasks that had found their way there may add to it."""
    for name in ("writing", "journal"):  # all files come from the first: none when it is gone
        folder = os.path.join(attempt, name)
        if os.path.isdir(folder):
            found = filter(is_name, listed(folder))
            at_once(os.remove, [os.path.join(folder, file) for file in found])
            os.rmdir(folder)
    store = os.path.join(attempt, "store")
    if os.path.isdir(store):
        remove(store)
    remove_empty(attempt)


def _check(part: str, name: str) -> None:
    """Make sure that something is what exports leave when they are stopped, and nothing else."""
    left = os.path.join(part, name)
    if is_name(name) and os.path.isfile(left) and not os.path.islink(left):
        return  # a sample file that is not whole
    if name == _REPLACED:
        check_node(left)
        return
    if _OLD.fullmatch(name):
        check_parts(left)
        return
    known = _ATTEMPT.fullmatch(name) or _GONE.fullmatch(name)
    if not known or os.path.islink(left) or not os.path.isdir(left):
        raise foreign(part, name)
    for inside in listed(left):
        folder = os.path.join(left, inside)
        if inside == "store":
            check_parts(folder)
        elif inside not in {"journal", "writing"} or os.path.islink(folder):
            raise foreign(part, f"{name}/{inside}")
        else:
            for key in files(folder):
                if not is_name(key):
                    raise foreign(part, f"{name}/{inside}/{key}")
