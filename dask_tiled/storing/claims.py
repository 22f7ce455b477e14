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
from dask_tiled.storing.disk import telling_of
from dask_tiled.storing.locks import locked
from dask_tiled.storing.nodes import files, foreign, reading_of, remove, stranger
from dask_tiled.storing.places import another

_REPLACED = "replaced"
_HEX = "[0-9a-f]{32}"
_ATTEMPT = re.compile(f"{_HEX}-{_HEX}")
_LEFT = re.compile(
    rf"{_HEX}"
    rf"|({_REPLACED}|old-{_HEX})/(?P<node>.*)"
    rf"|(gone|{_HEX})-{_HEX}/((journal|writing)/({_HEX}|.*/)?|store/(?P<store>.*))?"
)
"""All that exports leave when they are stopped: files, and folders, which end with a slash."""
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
    old = os.path.join(part, f"old-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        os.rename(os.path.join(part, _REPLACED), old)
        discard(old)


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
        folders: list[str] = []
        keys = [*files(part, folders), *folders[1:]]
    odd = next((key for key in keys if not _is_left(key)), None)
    if odd is not None:
        raise foreign(part, odd)
    with telling_of(path):
        if os.path.lexists(path):
            remove_replaced(part)
        else:
            put_back(part, path)
        found = {*listed(part)} - {_REPLACED}
        for name in found - {*attempts}:
            left = os.path.join(part, name)
            afresh = attempts and attempts[-1] not in found and _ATTEMPT.fullmatch(name)
            if afresh and not _is_moved(left):
                warn(another(part, name, attempts[-1]))
            discard(left)


def _is_left(key: str) -> bool:
    """Return whether exports leave such a file or folder when they are stopped, and nobody else."""
    found = _LEFT.fullmatch(key)
    if found is None or key.endswith("/"):
        return found is not None
    inside = found["node"] or found["store"]
    return inside is None or stranger([inside], whole=False) is None


def _is_moved(attempt: str) -> bool:
    """Return whether what was made by an attempt is in its place, or was."""
    store, journal = (os.path.join(attempt, name) for name in ("store", "journal"))
    return os.path.isdir(journal) and not os.path.lexists(store)


def discard(left: str) -> None:
    """Remove what an export left. Tasks that still write to it find nothing, nor does the next."""
    part, name = os.path.split(left)
    gone = os.path.join(part, f"gone-{uuid.uuid4().hex}")
    with suppress(OSError):  # what cannot go now goes with the next export
        if os.path.isfile(left):
            os.remove(left)
            return
        if not name.startswith(("gone-", "old-")):
            os.rename(left, gone)
            left = gone
        for seconds in _WAITS:
            time.sleep(seconds)
            remove(left, lambda key: _is_left(f"{os.path.basename(left)}/{key}"))
            if not os.path.lexists(left):
                break
