"""A place that any number of tasks fill with bytes under keys, and that shows when all is there."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Protocol

import numpy as np

from dask_tiled.codecs.checksums import crc32c
from dask_tiled.errors import DatasetError
from dask_tiled.storing.nodes import is_note, stranger

Entries = Mapping[str, list[int]]
"""Fingerprints of stored bytes, by key."""


def fingerprint(data: bytes | memoryview) -> list[int]:
    """Return what tells stored bytes from any others: length, CRC32C, and sum of 64-bit words.

    The CRC32C of bytes that end with their own CRC32C depends on their number alone: it tells
    damage, but not one chunk from another.
    """
    words = np.frombuffer(data, "<u8", count=len(data) // 8)
    return [len(data), crc32c(data), int(words.sum(dtype="u8"))]


class PartReader(Protocol):
    """Reads parts of what is stored under keys, for one thread."""

    is_local: bool
    """Whether it reads files of this machine."""

    def get(self, key: str, part: tuple[int, int | None] = (0, None)) -> bytes | memoryview | None:
        """Return bytes, valid until the next call; None where nothing is.

        Parameters
        ----------
        part : (int, int or None)
            First byte and the one after the last; ``(-n, None)`` for the last n bytes.
        """


class Namespace(Protocol):
    """Bytes under keys: a folder, or a path in a zarr store."""

    path: str
    """That of the folder; of a store, its name."""

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store bytes under a key, at once or not at all."""

    def reader(self) -> PartReader:
        """Return what reads what is stored."""

    def keys(self) -> set[str]:
        """List the keys under which something is stored."""

    def nbytes(self, key: str) -> int | None:
        """Return how many bytes are stored under a key; None where that takes a request."""

    def remove(self, keys: Iterable[str]) -> None:
        """Remove keys."""


class Place:
    """A place that an attempt fills, and the journal of it.

    A journal tells those who go on with it what was stored, by fingerprints: a key that is there
    proves nothing by itself, nor does the journal.

    Parameters
    ----------
    path : str
        Its name in errors.
    content : Namespace
        What is shown when all of it is there.
    journal : Namespace, optional
        What is noted, by random keys; without one, nothing is.
    """

    def __init__(self, path: str, content: Namespace, journal: Namespace | None) -> None:
        self.path, self.content, self.journal = path, content, journal

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store bytes under a key, at once or not at all."""
        self.content.put(key, data)

    def reader(self) -> PartReader:
        """Return what reads what is stored."""
        return self.content.reader()

    def note(self, entries: Entries) -> None:
        """Note what was stored, when it is certain that it was right."""
        if entries and self.journal is not None:
            self.journal.put(uuid.uuid4().hex, json.dumps(dict(entries)).encode())

    def noted(self) -> dict[str, list[list[int]]]:
        """Return all that was noted of keys. What cannot be read was not written."""
        found: dict[str, list[list[int]]] = {}
        if self.journal is None:
            return found
        notes, reader = self.journal.keys(), self.journal.reader()
        for note in notes:
            with suppress(ValueError, TypeError, AttributeError, RecursionError):
                for key, entry in json.loads(bytes(reader.get(note) or b"")).items():
                    length, *rest = map(int, entry)
                    found.setdefault(key, []).append([length, *rest])
        return found

    def whole(self) -> set[str]:
        """Find the keys that were stored and noted before this attempt goes on, and are whole."""

        def is_whole(key: str) -> bool:
            data = self.reader().get(key)
            return data is not None and fingerprint(data) in noted[key]

        noted = self.noted()
        with ThreadPoolExecutor() as pool:
            found = zip(noted, pool.map(is_whole, noted), strict=True)
            return {key for key, whole in found if whole}

    def commit(self, documents: Mapping[str, bytes], keys: Iterable[str]) -> None:
        """Store what makes a node of zarr of all that is there, and remove what is no part of it.

        Parameters
        ----------
        documents : mapping of str to bytes
            What is stored beside the chunks.
        keys : iterable of str
            Those of all chunks.

        Raises
        ------
        DatasetError
            A chunk is missing: zarr would read it as zeros.
        """
        content, wanted = self.content, {*keys}
        there = content.keys()
        sizes = {key: content.nbytes(key) for key in wanted & there}
        missing = sorted(wanted - there)
        if None not in sizes.values():
            noted = self.noted()
            lengths = {key: {entry[0] for entry in noted.get(key, ())} for key in wanted}
            missing = sorted(key for key in wanted if sizes.get(key) not in lengths[key])
        if missing:
            raise DatasetError(
                "chunks of the export are missing",
                path=self.path,
                where=missing[0],
                found=f"{len(missing)} of them",
                hint="All workers have to write to the same file system.",
            )
        others = there - wanted - documents.keys()
        content.remove(x for x in others if not is_note(x) and not stranger([x], whole=False))
        # What makes all of it visible comes last.
        for key in sorted(documents, key=lambda key: ("zarr.json" in key, -key.count("/"))):
            self.put(key, documents[key])
        content.remove(filter(is_note, others))


@contextmanager
def not_cancelled(path: str) -> Iterator[None]:
    """Say where an export was writing whose tasks somebody has cancelled."""
    try:
        yield
    except CancelledError as error:
        hint = "Call it again to go on."
        raise DatasetError("tasks of the export were cancelled", path=path, hint=hint) from error


def is_stop(error: BaseException) -> bool:
    """Return whether somebody has stopped an export, who may go on with it."""
    return not isinstance(error, Exception) or isinstance(error.__cause__, CancelledError)


def another(path: str, other: str, name: str) -> str:
    """Say that an export that was stopped is thrown away, and why."""
    same_source = name.partition("-")[0] == other.partition("-")[0]
    had = "other settings" if same_source else "another source"
    return f"{path}: the export that was stopped there had {had}; it starts afresh"
