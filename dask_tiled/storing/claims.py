"""The temporary folder next to the path of an export: created, locked, resumed and removed."""

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
from dask_tiled.files.paths import listed
from dask_tiled.storing.disk import writing_to
from dask_tiled.storing.locks import locked
from dask_tiled.storing.nodes import files, foreign, reading_of, remove, unknown_key
from dask_tiled.storing.places import discard_warning

_REPLACED = "replaced"
_HEX = "[0-9a-f]{32}"
_ATTEMPT = re.compile(f"{_HEX}-{_HEX}")
_LEFT = re.compile(
    rf"{_HEX}"
    rf"|({_REPLACED}|old-{_HEX})/(?P<node>.*)"
    rf"|(gone|{_HEX})-{_HEX}/((journal|writing)/((?:.+/)?{_HEX}|.*/)?|store/(?P<store>.*))?"
)
"""Files and folders (with a slash) that a stopped export leaves."""
_WAITS = (0, 0.01, 0.02, 0.05, 0.1)
"""Seconds between tries to remove an attempt."""


@contextmanager
def claimed(path: str, attempts: Sequence[str] = ()) -> Iterator[str]:
    """Create and lock the folder next to a path, and yield the path of the folder.

    Raise a DatasetError if the folder holds other files; nothing is removed.
    """
    part = f"{path}.part"
    around = [folder for folder in Path(part).parents if not os.path.lexists(folder)]
    try:
        with locked(part, partial(_make, part)):
            try:
                _clear(part, path, attempts)
                yield part
            finally:
                with suppress(OSError):  # not empty: there is an attempt to resume
                    os.rmdir(part)
    finally:
        with suppress(OSError):  # parent folders that remained empty
            for folder in around:
                folder.rmdir()


def set_aside(part: str, path: str) -> None:
    """Move the node at a path into the folder."""
    os.rename(path, os.path.join(part, _REPLACED))


def put_back(part: str, path: str) -> None:
    """Move the node that was set aside back to its path, if there is one."""
    with suppress(FileNotFoundError):
        os.rename(os.path.join(part, _REPLACED), path)


def remove_replaced(part: str) -> None:
    """Remove the node that was set aside; renamed first, as half of it must never be put back."""
    old = os.path.join(part, f"old-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        os.rename(os.path.join(part, _REPLACED), old)
        discard(old)


def _make(part: str) -> None:
    """Create the folder if it is missing."""
    if os.path.lexists(part) and (os.path.islink(part) or not os.path.isdir(part)):
        raise foreign(part)
    with writing_to(part):
        os.makedirs(part, exist_ok=True)


def _clear(part: str, path: str, attempts: Sequence[str]) -> None:
    """Remove files that other exports left; warn if one of them could have been resumed."""
    with reading_of(part):
        folders: list[str] = []
        keys = [*files(part, folders), *folders[1:]]
    odd = next((key for key in keys if not _is_left(key)), None)
    if odd is not None:
        raise foreign(part, odd)
    with writing_to(path):
        if os.path.lexists(path):
            remove_replaced(part)
        else:
            put_back(part, path)
        found = {*listed(part)} - {_REPLACED}
        for name in found - {*attempts}:
            left = os.path.join(part, name)
            afresh = attempts and attempts[-1] not in found and _ATTEMPT.fullmatch(name)
            if afresh and not _is_moved(left):
                warn(discard_warning(part, name, attempts[-1]))
            discard(left)


def _is_left(key: str) -> bool:
    """Return whether a file or folder is one that a stopped export leaves."""
    found = _LEFT.fullmatch(key)
    if found is None or key.endswith("/"):
        return found is not None
    inside = found["node"] or found["store"]
    return inside is None or unknown_key([inside], whole=False) is None


def _is_moved(attempt: str) -> bool:
    """Return whether the store of an attempt has been moved to its path."""
    store, journal = (os.path.join(attempt, name) for name in ("store", "journal"))
    return os.path.isdir(journal) and not os.path.lexists(store)


def discard(left: str) -> None:
    """Remove files that an export left; renamed first, so that tasks still writing there fail."""
    part, name = os.path.split(left)
    gone = os.path.join(part, f"gone-{uuid.uuid4().hex}")
    with suppress(OSError):  # the next export removes the rest
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
