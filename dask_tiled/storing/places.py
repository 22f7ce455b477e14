"""A place that tasks fill with values by key, and that appears when complete."""

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
from dask_tiled.files.paths import OF_ZARR
from dask_tiled.storing.nodes import is_note, unknown_key

Entries = Mapping[str, list[int]]
"""Fingerprints of stored values, by key."""


def fingerprint(data: bytes | memoryview) -> list[int]:
    """Return the length, the CRC32C and the sum of 64-bit words of stored bytes.

    The CRC32C of bytes that end with their own CRC32C depends only on their number: it detects
    damage, but does not distinguish chunks.
    """
    words = np.frombuffer(data, "<u8", count=len(data) // 8)
    return [len(data), crc32c(data), int(words.sum(dtype="u8"))]


class PartReader(Protocol):
    """Reads values, or parts of them, in one thread."""

    is_local: bool
    """Whether the values are files of this machine."""

    def get(self, key: str, part: tuple[int, int | None] = (0, None)) -> bytes | memoryview | None:
        """Return bytes, valid until the next call; None for a missing key.

        Parameters
        ----------
        part : (int, int or None)
            First byte and the byte after the last; ``(-n, None)`` for the last n bytes.
        """


class Namespace(Protocol):
    """Bytes under keys: a folder, or a path in a zarr store."""

    path: str
    """Path of the folder, or name of the store."""

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store bytes under a key, at once or not at all."""

    def reader(self) -> PartReader:
        """Return a reader of the values."""

    def keys(self) -> set[str]:
        """Return all keys."""

    def nbytes(self, key: str) -> int | None:
        """Return the length of a value; None where that takes a request."""

    def remove(self, keys: Iterable[str]) -> None:
        """Remove keys."""

    def below(self, name: str) -> Namespace:
        """Return the keys that begin with a name and a slash, without these."""


class Place:
    """A place that an attempt fills, with its journal.

    The journal holds fingerprints of the stored values. A value counts as stored if it matches its
    fingerprint: neither the key nor the journal alone is sufficient.

    Parameters
    ----------
    path : str
        Name of the place in errors.
    content : Namespace
        The stored values, visible when all are complete.
    journal : Namespace, optional
        Notes, under random keys; None to keep none.
    """

    def __init__(self, path: str, content: Namespace, journal: Namespace | None) -> None:
        self.path, self.content, self.journal = path, content, journal

    def below(self, name: str, attempt: str) -> Place:
        """Return the place of a member of a group, with the journal of an attempt to store it."""
        journal = None if self.journal is None else self.journal.below(f"{name}/{attempt}")
        return Place(f"{self.path}/{name}", self.content.below(name), journal)

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store bytes under a key, at once or not at all."""
        self.content.put(key, data)

    def reader(self) -> PartReader:
        """Return a reader of the values."""
        return self.content.reader()

    def fingerprint_of(self, node: str) -> list[int]:
        """Return the fingerprint of the metadata of a node; empty if it has none."""
        reader = self.reader()
        found = (reader.get(f"{node}/{name}") for name in OF_ZARR)
        return next((fingerprint(data) for data in found if data is not None), [])

    def note(self, entries: Entries) -> None:
        """Note stored values, once they are known to be correct."""
        if entries and self.journal is not None:
            self.journal.put(uuid.uuid4().hex, json.dumps(dict(entries)).encode())

    def noted(self) -> dict[str, list[list[int]]]:
        """Return all notes, by key; damaged ones are skipped."""
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
        """Return the keys whose values match the journal of an earlier attempt."""

        def is_whole(key: str) -> bool:
            data = self.reader().get(key)
            return data is not None and fingerprint(data) in noted[key]

        noted = self.noted()
        with ThreadPoolExecutor() as pool:
            found = zip(noted, pool.map(is_whole, noted), strict=True)
            return {key for key, whole in found if whole}

    def commit(self, documents: Mapping[str, bytes], keys: Iterable[str]) -> None:
        """Store the documents that make the chunks a zarr node, and remove everything else.

        Parameters
        ----------
        documents : mapping of str to bytes
            Metadata and other values to store with the chunks.
        keys : iterable of str
            The keys of all chunks.

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
                found=f"{len(missing)} missing chunks",
                hint="All workers must write to the same file system.",
            )
        others = there - wanted - documents.keys()
        content.remove(x for x in others if not is_note(x) and not unknown_key([x], whole=False))
        self.publish(documents, others)

    def publish(self, documents: Mapping[str, bytes], others: Iterable[str]) -> None:
        """Store the documents that make a node visible, the outermost last; then remove notes.

        Parameters
        ----------
        others : iterable of str
            Other keys, of which notes are removed.
        """
        for key in sorted(documents, key=lambda key: ("zarr.json" in key, -key.count("/"))):
            self.put(key, documents[key])
        self.content.remove(filter(is_note, others))


@contextmanager
def not_cancelled(path: str) -> Iterator[None]:
    """Convert the cancellation of tasks to a DatasetError."""
    try:
        yield
    except CancelledError as error:
        is_lost = getattr(error, "reason", "") == "scheduler-connection-lost"  # says distributed
        problem = "the scheduler was lost" if is_lost else "tasks were cancelled"
        raise DatasetError(problem, path=path, hint="Call it again.") from error


def discard_warning(path: str, other: str, name: str) -> str:
    """Return the warning that a stopped export is discarded, with the reason."""
    same_source = name.partition("-")[0] == other.partition("-")[0]
    had = "other settings" if same_source else "another source"
    return f"{path}: the stopped export had {had}, so it starts again"
