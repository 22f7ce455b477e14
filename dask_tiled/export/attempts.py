"""The folder beside the place of an export: made, locked, gone on with, and removed."""

from __future__ import annotations

import os
import re
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from dask_tiled.export.locking import locked
from dask_tiled.export.ownership import (
    at_once,
    check_ours,
    files,
    foreign,
    is_name,
    remove,
    remove_empty,
)
from dask_tiled.export.targets import telling_of

_ATTEMPT = re.compile("[0-9a-f]{32}-[0-9a-f]{32}")
_GONE = re.compile("gone-[0-9a-f]{32}")


@contextmanager
def claimed(part: str) -> Iterator[None]:
    """Make the folder that is written to, or take one that an export left, and lock it."""
    with locked(part, partial(_made, part)):
        yield


def _made(part: str) -> int:
    """Make a folder, or take one of attempts that is there, and open it."""
    if os.path.lexists(part):
        _check_names(part)
    with telling_of(part):
        os.makedirs(part, exist_ok=True)
        return os.open(part, os.O_RDONLY)


def clear(part: str, name: str | None) -> None:
    """Remove what other exports left; say so where that might have been gone on with.

    Raises
    ------
    DatasetError
        There is something that no export has written; then all of it stays.
    """
    for other in os.listdir(part):
        _check_attempt(os.path.join(part, other))
    for other in os.listdir(part):
        if other == name:
            continue
        if name is not None and _ATTEMPT.fullmatch(other):
            warnings.warn(another(part, other, name), stacklevel=4)
        discard(os.path.join(part, other))


def another(path: str, other: str, name: str) -> str:
    """Say that an export that was stopped is thrown away, and why."""
    same_source = name.partition("-")[0] == other.partition("-")[0]
    had = "other settings" if same_source else "another source"
    return f"{path}: the export that was stopped there had {had}; it starts afresh"


def discard(attempt: str) -> None:
    """Remove an attempt. Tasks that still write to it, and those who come next, find nothing."""
    gone = os.path.join(os.path.dirname(attempt), f"gone-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        if _GONE.fullmatch(os.path.basename(attempt)) is None:
            os.rename(attempt, gone)
            attempt = gone
        for name in ("journal", "writing"):
            folder = os.path.join(attempt, name)
            found = filter(is_name, os.listdir(folder) if os.path.isdir(folder) else ())
            at_once(os.remove, [os.path.join(folder, file) for file in found])
        store = os.path.join(attempt, "store")
        if os.path.isdir(store):
            remove(store)
        remove_empty(attempt)


def _check_names(part: str) -> None:
    """Refuse a folder of anything else than attempts."""
    if os.path.islink(part) or not os.path.isdir(part):
        raise foreign(part)
    for name in os.listdir(part):
        attempt = os.path.join(part, name)
        known = _ATTEMPT.fullmatch(name) or _GONE.fullmatch(name)
        if not known or os.path.islink(attempt) or not os.path.isdir(attempt):
            raise foreign(part, name)


def _check_attempt(attempt: str) -> None:
    """Make sure that there is nothing but what exports leave when they are stopped."""
    part, name = os.path.split(attempt)
    for inside in os.listdir(attempt):
        folder = os.path.join(attempt, inside)
        if inside == "store":
            check_ours(folder)
            continue
        if inside not in {"journal", "writing"} or os.path.islink(folder):
            raise foreign(part, f"{name}/{inside}")
        for key in files(folder):
            if not is_name(key):
                raise foreign(part, f"{name}/{inside}/{key}")
