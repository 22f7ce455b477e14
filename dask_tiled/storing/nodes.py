"""Recognise the keys of zarr nodes: nothing else is ever replaced or removed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import OF_ZARR, give_back, open_file, with_room
from dask_tiled.storing.disk import at_once
from dask_tiled.system.mounts import mounted_below

OWN = ".dask_tiled/"
"""Prefix of the notes that an export keeps in a store while it runs."""
RECORD, JOURNAL = f"{OWN}export.json", f"{OWN}journal/"

_DOCUMENTS = {*OF_ZARR, ".zattrs", ".zmetadata"}
_HEX = "[0-9a-f]{32}"
_CHUNK = re.compile(r"(?:c|\d+)(?:[./]\d+)*|refs\.\d+\.parq")  # last: references to chunks
_NOTES = re.compile(rf"(?:.+/)?{re.escape(OWN)}(?:export\.json|journal/(?:.+/)?{_HEX})")
_HALF = re.compile(rf"(.+)\.{_HEX}\.partial")
"""Unfinished files of a killed LocalStore, which strips the suffix of some names."""


def below(folder: str, key: str) -> str:
    """Return the path of a key."""
    return os.path.join(folder, *key.split("/"))


def is_document(key: str) -> bool:
    """Return whether a key is that of zarr metadata."""
    return key.rpartition("/")[2] in _DOCUMENTS


def is_note(key: str) -> bool:
    """Return whether a key is a note of an export, complete or not."""
    half = _HALF.fullmatch(key)
    names = [key] if half is None else [half[1], f"{half[1]}.json"]
    return any(map(_NOTES.fullmatch, names))


def lies_in(key: str, nodes: Collection[str]) -> bool:
    """Return whether a key lies in one of some nodes, such as ``A`` or ``A/1/0``."""
    parts = key.split("/")
    return any("/".join(parts[:k]) in nodes for k in range(1, len(parts) + 1))


def is_metadata(data: bytes | None) -> bool:
    """Return whether bytes are the metadata of a zarr node."""
    with suppress(ValueError, RecursionError):
        told = json.loads(data or b"")
        return isinstance(told, dict) and told.get("zarr_format") in (2, 3)
    return False


def unknown_key(keys: Collection[str], *, whole: bool = True) -> str | None:
    """Return a key that belongs to no zarr node; None if all do.

    Parameters
    ----------
    whole : bool
        Whether chunks need the metadata of their array, as in a complete node.
    """
    arrays = {key.rpartition("/")[0] for key in keys if is_document(key)} if whole else None
    return next((key for key in keys if not _is_known(key, arrays)), None)


def _is_known(key: str, arrays: Collection[str] | None) -> bool:
    half = _HALF.fullmatch(key)
    if half is not None:
        return _is_known(half[1], arrays) or _is_known(f"{half[1]}.json", arrays)
    if is_document(key) or is_note(key):
        return True
    parts = key.split("/")
    splits = (("/".join(parts[:k]), "/".join(parts[k:])) for k in range(len(parts)))
    return any(
        _CHUNK.fullmatch(chunk) and (arrays is None or array in arrays) for array, chunk in splits
    )


def files(path: str, folders: list[str] | None = None) -> Iterator[str]:
    """Yield the files below a folder, as keys; links, mounts and devices with a suffix.

    Subfolders are appended to ``folders``.
    """
    folders = [] if folders is None else folders
    folders.append("")
    mounted = with_room(partial(mounted_below, path), path)
    for folder in folders:
        place = below(path, folder)
        with with_room(partial(os.scandir, place), place) as entries:
            for entry in entries:
                key = folder + entry.name
                if entry.is_symlink():
                    yield f"{key}, a link"
                elif key in mounted:
                    yield f"{key}, a mount"
                elif entry.is_dir():
                    folders.append(f"{key}/")
                else:
                    yield key if entry.is_file() else f"{key}, not a regular file"


def check_node(path: str) -> None:
    """Refuse a path that is not a zarr node, or holds other files.

    Raise a DatasetError if the path is not a folder, not a zarr node, or holds other files.
    """
    if os.path.islink(path) or not os.path.isdir(path):
        raise foreign(path)
    with reading_of(path):
        # Do not list all of another folder, which may be a whole disk.
        if any(_shows_node(os.path.join(path, name)) for name in OF_ZARR):
            odd = unknown_key([*files(path)])
        else:
            odd = next(files(path), "")
    if odd is not None:
        raise foreign(path, odd or None)


def _shows_node(path: str) -> bool:
    """Return whether a file is the metadata of a zarr node."""
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open_file(path) as file:
        return is_metadata(bytes(file.read()))


def foreign(path: str, where: str | None = None) -> DatasetError:
    """Return the error that a path exists and may not be replaced."""
    hint = (
        "Only zarr arrays and groups without other files are replaced: use another path."
        if where
        else None
    )
    return DatasetError(
        "the path holds other data, which are not replaced", path=path, where=where, hint=hint
    )


@contextmanager
def reading_of(path: str) -> Iterator[None]:
    """Convert OSErrors of reading a folder to a DatasetError with the path."""
    try:
        yield
    except OSError as error:
        problem = "the existing folder cannot be read, and is not replaced"
        where, found = os.fsdecode(error.filename or path), error.strerror
        raise DatasetError(problem, path=path, where=where, found=found) from error


def remove(path: str, is_ours: Callable[[str], bool]) -> None:
    """Remove the files of a folder for which ``is_ours`` is true, and empty folders."""
    with suppress(OSError):  # the next export removes the rest
        # Metadata are removed first: the node disappears at once.
        ours = filter(is_ours, files(path))
        at_once(lambda key: os.remove(below(path, key)), ours, lambda x: not is_document(x))

    def try_remove(folder: str) -> None:
        with suppress(OSError):
            os.rmdir(folder)

    give_back()  # os.walk needs a descriptor, and ignores errors
    at_once(try_remove, (x for x, _, _ in os.walk(path)), lambda folder: -folder.count(os.sep))
