"""What an export has written, as it records it beside the pixels, and what is not in that record.

Attributes prove nothing: whoever copies an array copies them. The record is an object of its own,
written first and removed last, so whatever an export leaves when it is stopped is known as its own.
Of a folder it says which one it is, as the file system counts them: a copy is another one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby, islice
from typing import Any, NamedTuple

from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.encoding import fingerprint
from dask_tiled.export.zarr.group import DATA
from dask_tiled.model.paths import give_back, open_file, with_room

FOLDER = ".dask_tiled/"
"""Lies beside the chunks of the array: whoever lists the members of a group does not meet it."""

_RECORD = f"{FOLDER}export.json"
_JOURNAL = f"{FOLDER}journal/"
_HEX = "[0-9a-f]{32}"
_NAME = re.compile(_HEX)
_HALF = re.compile(rf"(.+)\.{_HEX}\.partial")
"""What a store of zarr in a folder leaves when it is killed; it takes the end off some names."""
_CHUNK = re.compile(r"(?P<array>(?:.+/)?)c(?P<place>(?:/(?:0|[1-9]\d*))*)")

Read = Callable[[str], "bytes | None"]


class Record(NamedTuple):
    """What one export writes."""

    id: str
    """Random: no two exports have the same."""
    attempt: str
    """What it is made of: the same for those that may go on with each other."""
    prefix: str
    """That of the array's keys."""
    documents: Mapping[str, list[int]]
    """Fingerprints of all that is stored beside the pixels, by key."""
    grids: Mapping[str, list[int]]
    """How many keys each array of pixels has along its axes, by the prefix of its keys."""
    folder: int | None = None
    """Inode of the folder that all of it is in; a store has none."""

    @property
    def key(self) -> str:
        """Where the record itself is stored."""
        return self.prefix + _RECORD

    @property
    def journal(self) -> str:
        """What keys of the journal begin with, where it is stored beside the pixels."""
        return self.prefix + _JOURNAL

    def to_bytes(self) -> bytes:
        """Write the record as JSON."""
        return json.dumps(self._asdict()).encode()

    def is_chunk(self, key: str) -> bool:
        """Return whether pixels are stored under a key."""
        found = _CHUNK.fullmatch(key)
        grid = self.grids.get(found["array"]) if found else None
        if found is None or grid is None:
            return False
        place = [int(k) for k in found["place"].split("/")[1:]]
        return len(place) == len(grid) and all(k < n for k, n in zip(place, grid, strict=True))

    def has(self, key: str, read: Read) -> bool:
        """Return whether what is stored under a key was written by this export."""
        if key in self.documents:
            data = read(key)
            return data is None or fingerprint(data) == self.documents[key]
        half = _HALF.fullmatch(key)
        if half is not None:
            whole = half[1]
            return f"{whole}.json" in {*self.documents, self.key} or self.has(whole, lambda _: None)
        in_journal = key.startswith(self.journal) and is_name(key.removeprefix(self.journal))
        return key == self.key or in_journal or self.is_chunk(key)

    def order(self, key: str) -> tuple[int, int, str]:
        """Sort keys as they may go: first what shows the array, last what tells whose it is."""
        if key == self.key:
            return 2, 0, key
        return (0 if key in self.documents else 1), key.count("/"), key


def find_record(keys: Iterable[str], read: Read) -> Record | None:
    """Read the record of an export among what is stored; None where there is not exactly one."""
    found = [key for key in keys if f"/{key}".endswith(f"/{_RECORD}")]
    with suppress(ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        if len(found) == 1:
            record = Record(**json.loads(read(found[0]) or b""))
            grids = {prefix: [*map(int, grid)] for prefix, grid in record.grids.items()}
            known = record._replace(documents=dict(record.documents), grids=grids)
            return known if record.key == found[0] else None
    return None


def is_begun(keys: Sequence[str]) -> bool:
    """Return whether there is only a record that is not whole yet."""
    whole = (half[1] + ".json" if (half := _HALF.fullmatch(key)) else key for key in keys)
    return all(key in {_RECORD, f"{DATA}/{_RECORD}"} for key in whole)


def stranger(keys: Sequence[str], record: Record | None, read: Read) -> str | None:
    """Find a key that the export of a record has not written; None where all are its own."""
    if record is None:
        return next(iter(keys), None)
    return next((key for key in keys if not record.has(key, read)), None)


def files(path: str, folders: list[str] | None = None) -> Iterator[str]:
    """List what is below a folder, as keys. What is no plain file there is nobody's.

    Folders that it goes through are put into a list.
    """
    folders = [] if folders is None else folders
    folders.append("")
    mounted = _mounted_below(path)
    for folder in folders:
        place = os.path.join(path, folder)
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
                    yield key if entry.is_file() else f"{key}, no file"


def _mounted_below(path: str) -> set[str]:
    """List what is mounted below a folder, as keys, as far as Linux tells."""
    root = os.fsencode(os.path.join(os.path.realpath(path), ""))
    with suppress(FileNotFoundError), open_file("/proc/self/mountinfo") as file:
        escaped = (line.split(b" ")[4] for line in file)
        places = [re.sub(rb"\\(\d{3})", lambda x: bytes([int(x[1], 8)]), x) for x in escaped]
        return {os.fsdecode(x.removeprefix(root)) for x in places if x.startswith(root)}
    return set()


def reads(path: str) -> Read:
    """Read the files below a folder by their keys."""

    def read(key: str) -> bytes | None:
        with suppress(FileNotFoundError), open_file(os.path.join(path, key)) as file:
            return bytes(file.read())
        return None

    return read


def check_ours(path: str) -> None:
    """Make sure that there is nothing in a folder but what one export wrote there.

    Raises
    ------
    DatasetError
        There is something else, or something else than a folder.
    """
    if os.path.islink(path) or not os.path.isdir(path):
        raise foreign(path)
    read = reads(path)
    with reading_of(path):
        # Who has no record may have a whole disk below: one file tells enough.
        known = any(os.path.lexists(os.path.join(path, key, _RECORD)) for key in ("", DATA))
        keys = [*islice(files(path), None if known else 1)]
        record = find_record(keys, read)
        found = stranger(keys, record, read)
        inode = os.stat(path).st_ino
    if found is not None:
        raise foreign(path, found)
    if record is not None and record.folder != inode:
        raise foreign(path, record.key, "It was not written in this folder.")


def foreign(path: str, where: str | None = None, hint: str | None = None) -> DatasetError:
    """Say that nothing is done to what somebody else made or changed."""
    if hint is None and where is not None:
        hint = "Only what was written here, and not changed since, is removed."
    return DatasetError("something else is there, and stays", path=path, where=where, hint=hint)


@contextmanager
def reading_of(path: str) -> Iterator[None]:
    """Name the place where the system does not let somebody look at what is there."""
    try:
        yield
    except OSError as error:
        problem = "what is there cannot be read, and stays"
        where, found = os.fsdecode(error.filename or path), error.strerror
        raise DatasetError(problem, path=path, where=where, found=found) from error


def remove(path: str) -> None:
    """Remove what one export wrote below a folder, and nothing that comes there meanwhile."""
    keys, read = [*files(path)], reads(path)
    record = find_record(keys, read)
    if record is not None:
        ours = (key for key in keys if record.has(key, read))
        with suppress(OSError):  # what cannot go stays with its record: who comes next tries again
            at_once(lambda x: os.remove(os.path.join(path, x)), ours, lambda x: record.order(x)[:2])
    remove_empty(path)


def remove_empty(path: str) -> None:
    """Remove a folder, and those inside of it, unless there are files."""

    def try_remove(folder: str) -> None:
        with suppress(OSError):
            os.rmdir(folder)

    give_back()  # to walk through folders needs a descriptor, and nothing says that there is none
    at_once(try_remove, (x for x, _, _ in os.walk(path)), lambda folder: -folder.count(os.sep))


def at_once(
    func: Callable[[str], None], names: Iterable[str], turn: Callable[[str], Any] = lambda _: 0
) -> None:
    """Have the system do something to many files at once, since it is the disk that it waits for.

    Parameters
    ----------
    turn : callable
        Those that it gives less for are done before.
    """
    with ThreadPoolExecutor() as pool:
        for _, some in groupby(sorted(names, key=turn), turn):
            for _ in pool.map(func, some):
                pass


def is_name(name: str) -> bool:
    """Return whether a file has one of the random names that are given here."""
    return _NAME.fullmatch(name) is not None
