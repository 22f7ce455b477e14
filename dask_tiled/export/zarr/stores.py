"""Where an export goes: to a path, visible only when complete, or into a zarr store."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_tiled.errors import DatasetError, warn
from dask_tiled.export.zarr.attempts import (
    another,
    claimed,
    discard,
    put_back,
    remove_replaced,
    set_aside,
)
from dask_tiled.export.zarr.encoding import fingerprint
from dask_tiled.export.zarr.levels import Stack
from dask_tiled.export.zarr.ownership import (
    Record,
    check_ours,
    files,
    find_record,
    foreign,
    is_begun,
    reading_of,
    stranger,
)
from dask_tiled.export.zarr.targets import (
    JournaledFolder,
    JournaledStore,
    Place,
    StorePlace,
    flush_folders,
    telling_of,
    unwritable,
)

if TYPE_CHECKING:
    import zarr
    from zarr.abc.store import Store

WRITER = "to_zarr"
"""What is written by an export says so, for people; it proves nothing."""

SHOWN = "zarr.json"
"""What readers look for first, and an export writes last."""

Write = Callable[[Place, "set[str]", "str | None"], None]
"""Writes to a place all but the keys that it is given; of what lies in a folder, if there is one:
what was written by the step before."""


class Template(NamedTuple):
    """An export without its pixels."""

    documents: Mapping[str, bytes]
    """All that is stored beside the pixels, under its keys."""
    stack: Stack
    """The arrays of pixels: one, or the levels of a pyramid."""
    source: str
    settings: str
    """What changes with the array and with the settings: 32 hexadecimal digits each."""

    @property
    def attempt(self) -> str:
        """What is the same for exports that may go on with each other."""
        return f"{self.source}-{self.settings}"

    @property
    def prefix(self) -> str:
        """What keys of the array begin with, or of the first level."""
        return self.stack.base.prefix

    def record(self) -> Record:
        """Write down what will be written, for one export."""
        documents = {key: fingerprint(data) for key, data in self.documents.items()}
        grids = {
            level.prefix: [
                -(-n // k) for n, k in zip(level.encoder.shape, level.encoder.stored, strict=True)
            ]
            for level in self.stack.levels
        }
        return Record(uuid.uuid4().hex, self.attempt, self.prefix, documents, grids)

    def keys(self) -> Iterable[str]:
        """List the keys of the pixels."""
        return self.stack.keys(tuple((0, n) for n in self.stack.base.encoder.shape))

    def in_order(self) -> list[tuple[str, bytes]]:
        """List the documents, that which makes all of it visible last."""
        return sorted(self.documents.items(), key=lambda x: ("zarr.json" in x[0], -x[0].count("/")))


def local_path(store: Any) -> str | None:
    """Return the absolute path of a store; None for any other zarr store, and for an address."""
    from zarr.storage import LocalStore, StorePath

    if isinstance(store, StorePath):
        root = local_path(store.store)
        return root and os.path.join(root, *store.path.split("/"))
    if isinstance(store, LocalStore) and not store.read_only:
        return os.path.abspath(store.root)
    if not isinstance(store, (str, os.PathLike)):
        return None
    text = os.fspath(store).removeprefix("file://")
    if "\0" in text:
        raise DatasetError("no path", expected="a path as text", found=repr(text))
    return None if "://" in text else os.path.abspath(text)


def opened_at(path: str, member: str) -> zarr.Array[Any]:
    """Open an array in a folder. Given a path, zarr would take a name with ``::`` for a URL."""
    import zarr

    store = zarr.storage.LocalStore(path, read_only=True)
    return zarr.open_array(store, mode="r", path=member)


def file_path(target: Any) -> str:
    """Return the absolute path of a file that is to be written."""
    path = local_path(target) if isinstance(target, str | os.PathLike) else None
    if path is None:
        raise DatasetError("no path", expected="where the file goes", found=repr(target))
    return path


def export_to_path(
    path: str, steps: Sequence[tuple[Template, Write]], *, overwrite: bool, resume: bool
) -> None:
    """Have an array written beside its place, and move it there when it is complete.

    Parameters
    ----------
    steps : sequence of (Template, callable)
        What is made of the files, and of one another; the last one is what is asked for.
    """

    def fill(*folders: JournaledFolder) -> None:
        before = None
        for folder, (template, write) in zip(folders, steps, strict=True):
            _begun(folder, template)
            for key, data in template.in_order():
                folder.put(key, data)
            write(folder, proven_in(folder), before)
            check_complete(os.path.dirname(folder.root), folder.missing(template.keys()))
            before = folder.store

    attempts = [template.attempt for template, _ in steps]
    build_beside(path, attempts, fill, overwrite=overwrite, resume=resume)


def build_beside(
    path: str,
    attempts: Sequence[str],
    fill: Callable[..., None],
    *,
    overwrite: bool,
    resume: bool,
) -> None:
    """Have folders filled beside a place, and move the last one there when that has been done."""
    _check_place(path, overwrite=overwrite)
    with claimed(path, attempts if resume else ()) as part:
        _check_place(path, overwrite=overwrite)  # something may be back there
        folders = [JournaledFolder(os.path.join(part, attempt)) for attempt in attempts]
        try:
            for folder in folders:
                folder.make()
            with _not_cancelled(part):
                fill(*folders)
            folders[-1].flush()
            _move(folders[-1].store, path, part, overwrite=overwrite)
        except BaseException as error:
            for folder in folders:
                if folder.is_unused() or not _is_stop(error):
                    discard(folder.root)
            raise
        for folder in folders:
            discard(folder.root)
        with telling_of(path):
            remove_replaced(part)


def _is_stop(error: BaseException) -> bool:
    """Return whether somebody has stopped an export, who may go on with it."""
    return not isinstance(error, Exception) or isinstance(error.__cause__, CancelledError)


def _begun(folder: JournaledFolder, template: Template) -> None:
    """Write the record of an export, unless it is one that goes on."""
    if folder.record() is None:
        folder.begin(template.record())


def proven_in(place: JournaledFolder | JournaledStore) -> set[str]:
    """Find what an export that was stopped has left whole."""
    noted = place.noted()
    with ThreadPoolExecutor() as pool:
        proofs = pool.map(place.is_proven, noted, noted.values())
        return {key for key, proof in zip(noted, proofs, strict=True) if proof}


@contextmanager
def _not_cancelled(path: str) -> Iterator[None]:
    """Say where an export was writing whose tasks somebody has cancelled."""
    try:
        yield
    except CancelledError as error:
        hint = "Call it again to go on."
        raise DatasetError("tasks of the export were cancelled", path=path, hint=hint) from error


def _check_place(path: str, *, overwrite: bool) -> None:
    """Make sure that there is nothing at a path, or only an array of ours that may go."""
    if not os.path.lexists(path):
        return
    check_ours(path)
    with reading_of(path):
        if next(files(path), None) is None:
            raise foreign(path)
    if not overwrite:
        raise DatasetError("the array exists", path=path, hint="Pass overwrite=True to replace it.")


def check_complete(path: str, missing: list[str]) -> None:
    """Make sure that every chunk is there: zarr would read one that is missing as zeros."""
    if missing:
        raise DatasetError(
            "chunks of the export are missing",
            path=path,
            where=missing[0],
            found=f"{len(missing)} of them",
            hint="All workers have to write to the same file system.",
        )


def _move(store: str, path: str, part: str, *, overwrite: bool) -> None:
    """Put a complete array in its place."""
    _check_place(path, overwrite=overwrite)  # it may have come since
    with telling_of(path):
        if os.path.lexists(path):
            set_aside(part, path)
        try:
            os.rename(store, path)
            flush_folders(path)
        except BaseException:
            if os.path.lexists(path) and not os.path.lexists(store):
                os.rename(path, store)
            put_back(part, path)
            raise


def open_store(store: Any) -> tuple[Store, str]:
    """Return the zarr store that something means, and the path in it."""
    from zarr.abc.store import Store
    from zarr.storage import FsspecStore, MemoryStore, StorePath

    if isinstance(store, StorePath):
        return store.store, store.path
    if isinstance(store, str):
        try:
            return FsspecStore.from_url(store), ""
        except Exception as error:  # each file system has its own
            raise unwritable(store, error) from error
    if isinstance(store, dict):
        return MemoryStore(store), ""
    if not isinstance(store, Store):
        raise DatasetError("no store", expected="a path or a zarr store", found=repr(store))
    return store, ""


def export_to_store(
    store: Any,
    template: Template,
    write: Write,
    is_source: Callable[[Any], bool],
    *,
    overwrite: bool,
    resume: bool,
) -> None:
    """Have an array written into a zarr store, and make it visible last.

    What it replaces is removed first.
    """
    opened, path = open_store(store)
    name = "/".join(filter(None, (str(opened), path)))
    place = StorePlace(opened, f"{path}/" if path else "")
    record, there = template.record(), place.keys()
    if is_begun(there) and opened.supports_deletes and find_record(there, place.get) is None:
        place.remove(there)
        there = []
    proven = set[str]()
    if there:
        found = _left(there, place, name)
        if SHOWN in there and not overwrite:
            hint = "Pass overwrite=True to replace it."
            raise DatasetError("the store holds something already", path=name, hint=hint)
        if not opened.supports_deletes:
            raise DatasetError("nothing can be replaced in such a store", path=name)
        if SHOWN not in there and resume and found.attempt == record.attempt:
            proven = proven_in(place.journaled(found))
        else:
            if is_source(opened):
                hint = "Export it to another store."
                raise DatasetError("the store may be what is read", path=name, hint=hint)
            if SHOWN not in there and resume:
                warn(another(name, found.attempt, record.attempt))
            place.remove(sorted(there, key=found.order))
    place.put(record.key, record.to_bytes())
    mine = place.journaled(record)
    with _not_cancelled(name):
        write(mine, proven, None)
    there = place.keys()
    check_complete(name, sorted({*template.keys()} - {*there}))
    for key, data in template.in_order():
        mine.put(key, data)
    if opened.supports_deletes:
        place.remove([key for key in there if key.startswith(record.journal)])


def _left(keys: list[str], place: StorePlace, name: str) -> Record:
    """Return the record of what an export left in a store, where nothing else is."""
    record = find_record(keys, place.get)
    strange = stranger(keys, record, place.get)
    if record is None or strange is not None:
        raise DatasetError("the store holds something already", path=name, where=strange)
    return record
