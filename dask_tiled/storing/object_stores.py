"""Zarr stores, which cannot rename: filled in place, with the root metadata last."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from dask_tiled.errors import DatasetError, warn
from dask_tiled.files.paths import OF_ZARR
from dask_tiled.storing.disk import unwritable, writing_to
from dask_tiled.storing.nodes import JOURNAL, RECORD, is_document, is_metadata, is_note, unknown_key
from dask_tiled.storing.places import Place, discard_warning, not_cancelled

if TYPE_CHECKING:
    from zarr.abc.store import Store

Result = TypeVar("Result")


def wait_for(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine of a zarr store, and return its result."""
    try:
        from zarr.core.sync import sync
    except ImportError:  # private in zarr; without it, use a new event loop
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, coroutine).result()
    return sync(coroutine)


class ExportRecord(NamedTuple):
    """Identifies the export that writes to a store; stored there until it is complete."""

    id: str
    """Random and unique."""
    attempt: str
    """Key: exports with equal keys may resume each other."""

    @classmethod
    def read(cls, place: Prefix) -> ExportRecord | None:
        """Read the record of a place; None if there is none."""
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            told = json.loads(place.get(RECORD) or b"")
            return cls(str(told["id"]), str(told["attempt"]))
        return None


class Prefix:
    """The keys of a zarr store with a prefix.

    Pickling does not copy a store in memory, as the copy would contain the chunks, or a zip file,
    which a copy would truncate: unpickling finds them in the same process only.

    Parameters
    ----------
    record : Record, optional
        Record of the writing export. Stores have no locks: it stops when ``claimed`` holds the
        record of another export.
    """

    is_local = False

    def __init__(
        self,
        store: Store,
        prefix: str,
        record: ExportRecord | None = None,
        claimed: Prefix | None = None,
    ) -> None:
        from zarr.storage import StorePath

        self.store, self.prefix, self.record, self.claimed = store, prefix, record, claimed
        self.path, self.token = str(store), uuid.uuid4().hex
        with writing_to(self.path):
            wait_for(StorePath.open(store, ""))  # zip files are not opened automatically

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Set a value, unless another export has begun since."""
        from zarr.buffer import default_buffer_prototype

        if self.claimed is not None and ExportRecord.read(self.claimed) != self.record:
            raise DatasetError("another export has started to write to the store", path=self.path)
        buffer = default_buffer_prototype().buffer.from_bytes(bytes(data))
        try:
            wait_for(self.store.set(self.prefix + key, buffer))
        except Exception as error:  # stores raise many errors
            hint = "Stored chunks are kept: call it again to resume."
            raise unwritable(self.path, error, key, hint) from error

    def reader(self) -> Prefix:
        """Return itself."""
        return self

    def get(self, key: str, part: tuple[int, int | None] = (0, None)) -> bytes | None:
        """Get a value, or a part of it; None for a missing key."""
        from zarr.abc.store import RangeByteRequest, SuffixByteRequest
        from zarr.buffer import default_buffer_prototype

        wanted: Any = None
        if part != (0, None):
            start, stop = part
            wanted = SuffixByteRequest(-start) if stop is None else RangeByteRequest(start, stop)
        found = wait_for(self.store.get(self.prefix + key, default_buffer_prototype(), wanted))
        return None if found is None else found.to_bytes()

    def keys(self) -> set[str]:
        """Return all keys, without the prefix."""

        async def listed() -> set[str]:
            return {key async for key in self.store.list_prefix(self.prefix)}

        return {key.removeprefix(self.prefix) for key in wait_for(listed())}

    def nbytes(self, _: str) -> None:
        """Return None: the length would take a request."""

    def below(self, name: str) -> Prefix:
        """Return the keys below a name."""
        return Prefix(self.store, f"{self.prefix}{name}/", self.record, self.claimed)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove keys one after the other."""
        for key in keys:
            wait_for(self.store.delete(self.prefix + key))

    def __reduce__(self) -> tuple[Any, ...]:
        from zarr.storage import MemoryStore, ZipStore

        protocol = getattr(getattr(self.store, "fs", None), "protocol", ())
        if isinstance(self.store, (MemoryStore, ZipStore)) or "memory" in protocol:
            _IN_MEMORY[self.token] = self
            return _found, (self.token,)
        return Prefix, (self.store, self.prefix, self.record, self.claimed)


_IN_MEMORY: WeakValueDictionary[str, Prefix] = WeakValueDictionary()


class _Elsewhere:
    """A store of another process.

    It raises when used, not when unpickled: a worker that cannot unpickle a task dies.
    """

    def _complain(self, *_: Any) -> Any:
        raise DatasetError(
            "a store in memory, or a zip file, cannot be written to by other processes",
            hint="Export to a path, or compute with threads.",
        )

    put = reader = _complain


def _found(token: str) -> Any:
    return _IN_MEMORY.get(token) or _Elsewhere()


def open_store(store: Any) -> tuple[Store, str]:
    """Return a zarr store, and the path in it."""
    from zarr.abc.store import Store
    from zarr.storage import FsspecStore, MemoryStore, StorePath

    if isinstance(store, StorePath):
        return store.store, store.path
    if isinstance(store, str):
        try:
            return FsspecStore.from_url(store), ""
        except Exception as error:  # file systems raise many errors
            raise unwritable(store, error) from error
    if isinstance(store, dict):
        return MemoryStore(store), ""
    if not isinstance(store, Store):
        raise DatasetError("invalid store", expected="a path or a zarr store", found=repr(store))
    return store, ""


@contextmanager
def begin_in_store(
    store: Any, attempt: str, reads: Callable[[Any], bool], *, overwrite: bool, resume: bool
) -> Iterator[Place]:
    """Claim a zarr store, or a path in one.

    The old node is removed first, because stores cannot rename.

    Parameters
    ----------
    reads : callable
        Predicate: whether the exported array may read a store.
    """
    opened, path = open_store(store)
    name = "/".join(filter(None, (str(opened), path)))
    whole = Prefix(opened, f"{path}/" if path else "")
    there = whole.keys()
    found = _check_store(whole, there, name, overwrite=overwrite) if there else None
    goes_on = resume and found is not None and found.attempt == attempt
    old = set() if goes_on else there
    if not all(map(is_note, old)) and reads(opened):
        hint = "Export to another store."
        raise DatasetError(
            "the array may read from the store it would overwrite", path=name, hint=hint
        )
    if resume and found is not None and not goes_on:
        warn(discard_warning(name, found.attempt, attempt))
    # An old journal must not be taken for that of this export.
    whole.remove(key for key in old if key.startswith(JOURNAL))
    content, journal = whole, None
    if opened.supports_deletes:  # zip files cannot be read while they are written
        record = ExportRecord(uuid.uuid4().hex, attempt)
        whole.put(RECORD, json.dumps(record._asdict()).encode())
        content, journal = (
            Prefix(opened, whole.prefix + more, record, whole) for more in ("", JOURNAL)
        )
    # Metadata are removed first: the node disappears at once.
    rest = (key for key in old if key != RECORD and not key.startswith(JOURNAL))
    whole.remove(sorted(rest, key=lambda key: (not is_document(key), key.count("/"))))
    with not_cancelled(name):
        yield Place(str(opened), content, journal)


def _check_store(
    place: Prefix, there: set[str], name: str, *, overwrite: bool
) -> ExportRecord | None:
    """Refuse a store whose content may not be replaced; return the record of a stopped export."""
    shown = sorted(there & {*OF_ZARR})
    found = None if shown else ExportRecord.read(place)
    odd = unknown_key(there, whole=bool(shown))
    known = is_metadata(place.get(shown[0])) if shown else found or all(map(is_note, there))
    may_go = odd is None and known
    if not may_go or (shown and not overwrite):
        hint = "Pass overwrite=True to replace it." if may_go else None
        raise DatasetError("the store is not empty", path=name, where=odd, hint=hint)
    if not place.store.supports_deletes:
        raise DatasetError("this type of store cannot replace data", path=name)
    return found
