"""What tasks write the parts of an array to: a folder with a journal, or a zarr store."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.encoding import fingerprint
from dask_tiled.export.zarr.levels import Stack
from dask_tiled.export.zarr.ownership import Record, at_once, files, find_record, reads
from dask_tiled.export.zarr.parts import Pixels
from dask_tiled.model.indexing import Array, Box
from dask_tiled.model.paths import listed, open_file, with_room
from dask_tiled.reading.reader import Source, Workspace
from dask_tiled.remote.stores import said

if TYPE_CHECKING:
    from zarr.abc.store import Store

Result = TypeVar("Result")
Entries = Mapping[str, list[int]]
"""What was stored under keys, by which it is known again."""


class Place(Protocol):
    """Where stored bytes go."""

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Store bytes under a key, at once or not at all."""

    def get(self, key: str) -> bytes | None:
        """Return what is stored under a key; None where nothing is."""

    def note(self, entries: Entries) -> None:
        """Note that all of this is stored."""


class JournaledFolder:
    """A folder that is written to beside the place of an export, and the journal of that.

    Parameters
    ----------
    root : str
        It holds the folders ``store``, ``journal``, and ``writing`` for files that are not whole.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.store, self.journal, self.writing = (
            os.path.join(root, name) for name in ("store", "journal", "writing")
        )

    def make(self) -> None:
        """Make the folders."""
        with telling_of(self.root):
            for folder in (self.store, self.journal, self.writing):
                os.makedirs(folder, exist_ok=True)

    def record(self) -> Record | None:
        """Read what the export that began here says of itself; None where none has."""
        return find_record(files(self.store), reads(self.store))

    def begin(self, record: Record) -> None:
        """Write down what is going to be written. Of that, no loss of power may leave half."""
        own = record._replace(folder=os.stat(self.store).st_ino)
        self.put(own.key, own.to_bytes())
        flush_folders(self._path(own.key))

    def is_unused(self) -> bool:
        """Return whether nothing was noted in the journal."""
        return not os.path.isdir(self.journal) or not listed(self.journal)

    def flush(self) -> None:
        """Have the system bring to the disk all that is in the store.

        In one go at the end: that takes less time than file by file.
        """
        folders: list[str] = []
        with telling_of(self.root):
            keys = [*files(self.store, folders)]
            at_once(_flush, [os.path.join(self.store, key) for key in keys + folders])

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Write a file of the store."""
        self._write(self._path(key), data)

    def get(self, key: str) -> bytes | None:
        """Read a file of the store."""
        return reads(self.store)(key)

    def note(self, entries: Entries) -> None:
        """Write a file of the journal."""
        if entries:
            text = json.dumps(dict(entries)).encode()
            self._write(os.path.join(self.journal, uuid.uuid4().hex), text)

    def _write(self, path: str, data: bytes | bytearray) -> None:
        part = os.path.join(self.writing, uuid.uuid4().hex)
        try:
            with open_file(part, "xb", buffering=0) as file:
                # To find room for all at once takes half the time; macOS has no call for it.
                if data and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, len(data))
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
            self._make_folders(os.path.dirname(path))
            os.replace(part, path)
        except FileNotFoundError:
            raise DatasetError(
                "the export has been stopped, or cannot be seen from here",
                path=self.root,
                hint="All workers have to write to the same file system.",
            ) from None
        except BaseException as error:
            with suppress(OSError):
                os.remove(part)
            if isinstance(error, OSError):
                raise unwritable(path, error) from error
            raise

    def _make_folders(self, path: str) -> None:
        """Make folders of the store, but not those of the export: they are gone when it is over."""
        if path not in {self.store, self.journal} and not os.path.isdir(path):
            self._make_folders(os.path.dirname(path))
            with suppress(FileExistsError):
                os.mkdir(path)

    def noted(self) -> dict[str, list[list[int]]]:
        """Read the journal: all that was noted of keys. What cannot be read was not written."""
        return _gathered(map(reads(self.journal), listed(self.journal)))

    def is_proven(self, key: str, entries: Sequence[Any]) -> bool:
        """Return whether a file of the store is one that was noted."""
        try:
            with open_file(self._path(key)) as file:
                return fingerprint(file.read()) in entries
        except FileNotFoundError:
            return False

    def missing(self, keys: Iterable[str]) -> list[str]:
        """List the keys whose files are not there, or not as long as was noted."""
        noted = self.noted()
        lengths = ((key, self._length(key)) for key in keys)
        return [key for key, n in lengths if n not in {entry[0] for entry in noted.get(key, ())}]

    def _length(self, key: str) -> int:
        try:
            return os.stat(self._path(key)).st_size
        except FileNotFoundError:
            return -1

    def _path(self, key: str) -> str:
        return os.path.join(self.store, *key.split("/"))


class StorePlace:
    """A path in a zarr store; its keys are those below that."""

    def __init__(self, store: Store, prefix: str) -> None:
        from zarr.storage import StorePath

        self.store = store
        self.prefix = prefix
        with telling_of(str(store)):
            _wait(StorePath.open(store, ""))  # zip files are not opened by themselves

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Set the bytes of a key."""
        from zarr.buffer import default_buffer_prototype

        buffer = default_buffer_prototype().buffer.from_bytes(data)
        try:
            _wait(self.store.set(self.prefix + key, buffer))
        except Exception as error:  # each store has its own
            hint = "What is stored so far stays: call it again to go on."
            raise unwritable(str(self.store), error, key, hint) from error

    def get(self, key: str, part: tuple[int, int | None] | None = None) -> bytes | None:
        """Get the bytes of a key; None where there are none.

        Parameters
        ----------
        part : (int, int or None), optional
            First byte and the one after the last; ``(-n, None)`` for the last n bytes.
        """
        from zarr.abc.store import RangeByteRequest, SuffixByteRequest
        from zarr.buffer import default_buffer_prototype

        wanted: Any = None
        if part is not None:
            start, stop = part
            wanted = SuffixByteRequest(-start) if stop is None else RangeByteRequest(start, stop)
        found = _wait(self.store.get(self.prefix + key, default_buffer_prototype(), wanted))
        return None if found is None else found.to_bytes()

    def has(self, key: str) -> bool:
        """Return whether there are bytes under a key."""
        return _wait(self.store.exists(self.prefix + key))

    def keys(self) -> list[str]:
        """List the keys."""

        async def listed() -> list[str]:
            return [key async for key in self.store.list_prefix(self.prefix)]

        return [key.removeprefix(self.prefix) for key in _wait(listed())]

    def remove(self, keys: Sequence[str]) -> None:
        """Remove keys one after the other."""
        for key in keys:
            _wait(self.store.delete(self.prefix + key))

    def note(self, entries: Entries) -> None:
        """Keep no journal."""

    def journaled(self, record: Record) -> JournaledStore:
        """Return the same place, as the export writes to it that has this record there."""
        return JournaledStore(self.store, self.prefix, record)


class JournaledStore(StorePlace):
    """A path in a zarr store that one export writes to, with a journal beside the pixels.

    Stores have no locks. An export whose record is no longer the one in the store stops.
    """

    def __init__(self, store: Store, prefix: str, record: Record) -> None:
        super().__init__(store, prefix)
        self.record = record

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Set the bytes of a key, unless another export has begun since."""
        # Zip files, from which nothing can be removed, are not read while they are written.
        alone = not self.store.supports_deletes
        if not alone and find_record([self.record.key], self.get) != self.record:
            raise DatasetError("another export has begun to write there", path=str(self.store))
        super().put(key, data)

    def note(self, entries: Entries) -> None:
        """Set a key of the journal, where it can be removed in the end."""
        if entries and self.store.supports_deletes:
            super().put(self.record.journal + uuid.uuid4().hex, json.dumps(dict(entries)).encode())

    def noted(self) -> dict[str, list[list[int]]]:
        """Read the journal: all that was noted of keys."""
        keys = (key for key in self.keys() if key.startswith(self.record.journal))
        return _gathered(map(self.get, keys))

    def is_proven(self, key: str, entries: Sequence[Any]) -> bool:
        """Return whether what is stored is what was noted."""
        data = self.get(key)
        return data is not None and fingerprint(data) in entries


def _gathered(texts: Iterable[bytes | None]) -> dict[str, list[list[int]]]:
    """Put the parts of a journal together. What cannot be read was not written."""
    found: dict[str, list[list[int]]] = {}
    for text in texts:
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            for key, entry in json.loads(text or b"").items():
                length, *rest = map(int, entry)
                found.setdefault(key, []).append([length, *rest])
    return found


def unwritable(
    path: str, error: BaseException, where: str | None = None, hint: str | None = None
) -> DatasetError:
    """Say that something cannot be written, and why."""
    found = getattr(error, "strerror", None) or said(error)
    return DatasetError("it cannot be written", path=path, where=where, found=found, hint=hint)


@contextmanager
def telling_of(path: str) -> Iterator[None]:
    """Name the place where the system refuses to write."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def flush_folders(path: str) -> None:
    """Have the system bring a file or the names in a folder, and those around it, to the disk."""
    with telling_of(path), suppress(PermissionError):  # some may not be opened
        for each in (path, *map(str, Path(path).parents)):
            _flush(each)


def _flush(path: str) -> None:
    opened = with_room(partial(os.open, path, os.O_RDONLY), path)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # of folders, some systems cannot
            raise
    finally:
        os.close(opened)


def _wait(coroutine: Coroutine[Any, Any, Result]) -> Result:
    try:
        from zarr.core.sync import sync
    except ImportError:  # not public: without it, an event loop of its own
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, coroutine).result()
    return sync(coroutine)


class Target:
    """A zarr array, and the levels of its pyramid, that tasks write to: one value for dask.

    A store in memory is not copied when it is pickled, since a copy would take the chunks with it,
    nor is a zip file, which a copy would empty: they are found again in the process that holds
    them, and nowhere else.
    """

    def __init__(self, stack: Stack, place: Place | None) -> None:
        self.stack = stack
        self.place = place
        self.token = uuid.uuid4().hex

    def write(self, box: Box, held: Array | Source) -> None:
        """Write a part of the array, whose edges are edges of what is stored.

        Parameters
        ----------
        held : ndarray or Source
            Its pixels, or what they are read from.
        """
        entries, place = {}, self._place_here()
        with Workspace() as workspace:
            for level, key, _, parts in self.stack.parts(Pixels(held, box, workspace)):
                data = level.encoder.encode(parts)
                place.put(level.prefix + key, data)
                entries[level.prefix + key] = fingerprint(data)
        # Files that were read have been found to be the same as before: now it counts.
        place.note(entries)

    def read(self, box: Box, document: bytes) -> Array:
        """Read a part of the first level, which is stored already.

        Parameters
        ----------
        document : bytes
            What zarr calls the level's metadata: it may not be in the store yet.
        """
        import zarr
        from zarr.buffer import default_buffer_prototype

        place = self._place_here()
        contents = {"zarr.json": document}
        for key, _ in self.stack.base.encoder.keys(box):
            name = self.stack.base.prefix + key
            data = place.get(name)
            if data is None:
                raise DatasetError("what was stored is gone", where=name)
            contents[key] = data
        make = default_buffer_prototype().buffer.from_bytes
        store = zarr.storage.MemoryStore({key: make(data) for key, data in contents.items()})
        try:
            array = zarr.open_array(store, mode="r")
            return np.asarray(array[tuple(slice(*ends) for ends in box)])
        except Exception as error:  # whatever a codec says
            problem, where = "what was stored cannot be read again", self.stack.base.prefix
            raise DatasetError(problem, where=where, found=str(error)) from error

    def _place_here(self) -> Place:
        if self.place is None:
            raise DatasetError(
                "a store in memory, or a zip file, cannot be written to by other processes",
                hint="Export to a path, or compute with threads.",
            )
        return self.place

    def __reduce__(self) -> tuple[Any, ...]:
        from zarr.storage import MemoryStore, ZipStore

        store = getattr(self.place, "store", None)
        protocol = getattr(getattr(store, "fs", None), "protocol", ())
        here = isinstance(store, (MemoryStore, ZipStore)) or "memory" in protocol
        if self.place is None or here:
            _IN_MEMORY[self.token] = self
            return _find, (self.token, self.stack)
        return Target, (self.stack, self.place)


_IN_MEMORY: WeakValueDictionary[str, Target] = WeakValueDictionary()


def _find(token: str, stack: Stack) -> Target:
    # Complain where it writes, not here: a worker that cannot read a task dies.
    return _IN_MEMORY.get(token) or Target(stack, None)
