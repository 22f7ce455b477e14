"""Where an export goes: to a path, visible only when complete, or into a zarr store."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_tiled.errors import DatasetError
from dask_tiled.export.encoding import Encoder
from dask_tiled.export.facts import MARK
from dask_tiled.export.targets import JournaledFolder, StorePlace, Target

if TYPE_CHECKING:
    from zarr.abc.store import Store

WRITER = "to_zarr"
"""What is written by an export says so; an array that is only shown may have been copied."""

_KEY = re.compile(r"(?:(?P<member>[^/]+)/)?(?:(?P<meta>zarr\.json)|c(?:/\d+)*)")
_ATTEMPT = re.compile("[0-9a-f]{32}-[0-9a-f]{32}")

Write = Callable[[Target, "set[str]"], None]
"""Writes to a target all but the keys that it is given."""


class Template(NamedTuple):
    """An export without its pixels."""

    documents: Mapping[str, bytes]
    """All that is stored beside the pixels, under its keys."""
    encoder: Encoder
    prefix: str
    """That of the array's keys."""
    source: str
    settings: str
    """What changes with the array and with the settings: 32 hexadecimal digits each."""

    def keys(self) -> Iterable[str]:
        """List the keys of the pixels."""
        whole = tuple((0, n) for n in self.encoder.shape)
        return (self.prefix + key for key, _ in self.encoder.keys(whole))

    def in_order(self) -> list[tuple[str, bytes]]:
        """List the documents, that which makes all of it visible last."""
        return sorted(self.documents.items(), key=lambda x: ("zarr.json" in x[0], -x[0].count("/")))


def local_path(store: Any) -> str | None:
    """Give the absolute path that a store is; None for any other zarr store, and for an address."""
    from zarr.storage import LocalStore

    if isinstance(store, LocalStore) and not store.read_only:
        return os.path.abspath(store.root)
    if not isinstance(store, (str, os.PathLike)):
        return None
    text = os.fspath(store).removeprefix("file://")
    return None if "://" in text else os.path.abspath(text)


def export_to_path(
    path: str, template: Template, write: Write, *, overwrite: bool, resume: bool
) -> None:
    """Have an array written beside its place, and move it there when it is complete."""
    part, old = f"{path}.part", f"{path}.old"
    _refuse_foreign(path, overwrite=overwrite)
    _refuse_foreign(old, overwrite=True)
    with _claimed(part):
        name = f"{template.source}-{template.settings}"
        _clear(part, name if resume else None)
        folder = JournaledFolder(os.path.join(part, name))
        folder.make()
        try:
            for key, data in template.in_order():
                folder.put(key, data)
            write(Target(template.encoder, folder, template.prefix), _proven(folder))
            _check_complete(part, folder.missing(template.keys()))
            _move(folder.store, path, old, overwrite=overwrite)
        except BaseException:
            if not os.listdir(folder.journal):  # there is nothing to go on with
                shutil.rmtree(part, ignore_errors=True)
            raise
        shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _proven(folder: JournaledFolder) -> set[str]:
    """Find what an export that was stopped has left whole."""
    noted = folder.noted()
    with ThreadPoolExecutor() as pool:
        proofs = pool.map(folder.is_proven, noted, noted.values())
        return {key for key, proof in zip(noted, proofs, strict=True) if proof}


def _clear(part: str, name: str | None) -> None:
    """Remove what other exports left; say so where that might have been gone on with."""
    for other in os.listdir(part):
        if other == name:
            continue
        if name is not None:
            same_source = name.split("-")[0] == other.split("-")[0]
            had = "other settings" if same_source else "another source"
            message = f"{part}: the export that was stopped there had {had}; it starts afresh"
            warnings.warn(message, stacklevel=4)
        shutil.rmtree(os.path.join(part, other))


def _refuse_foreign(path: str, *, overwrite: bool) -> None:
    """Make sure that there is nothing at a path, or only an array of ours that may go."""
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isdir(path):
        raise DatasetError("something else is there, and stays", path=path)
    stranger = _stranger(_files(path), _reads(path))
    if stranger is not None:
        raise DatasetError("something else is there, and stays", path=path, where=stranger)
    if not overwrite:
        raise DatasetError("the array exists", path=path, hint="Pass overwrite=True to replace it.")


def _files(path: str) -> Iterator[str]:
    """List what is below a folder, as keys. A link is none of ours, whatever its name."""
    for folder, folders, files in os.walk(path):
        for name in (*files, *folders):
            whole = os.path.join(folder, name)
            key = os.path.relpath(whole, path).replace(os.sep, "/")
            if os.path.islink(whole):
                yield f"{key}, a link"
            elif not os.path.isdir(whole):
                yield key


def _reads(path: str) -> Callable[[str], bytes]:
    def read(key: str) -> bytes:
        with open(os.path.join(path, key), "rb") as file:
            return file.read()

    return read


def _stranger(keys: Iterable[str], read: Callable[[str], bytes | None]) -> str | None:
    """Find a key that no export has written; None where all are ours."""
    of_chunks, marked = dict[str | None, str](), set[str | None]()
    for key in keys:
        found = _KEY.fullmatch(key)
        if found is None or (found["meta"] and not _is_marked(read(key))):
            return key
        if found["meta"]:
            marked.add(found["member"])
        else:
            of_chunks.setdefault(found["member"], key)
    if None not in marked:
        return next(iter(of_chunks.values()), "zarr.json")
    return next((key for member, key in of_chunks.items() if member not in marked), None)


def _is_marked(document: bytes | None) -> bool:
    try:
        return json.loads(document or b"")["attributes"][MARK]["written_by"] == WRITER
    except (ValueError, KeyError, TypeError):
        return False


@contextmanager
def _claimed(part: str) -> Iterator[None]:
    """Make the folder that is written to, or take one that an export left, and lock it."""
    while True:
        if os.path.lexists(part) and not _is_working_folder(part):
            raise DatasetError("something else is there, and stays", path=part)
        os.makedirs(part, exist_ok=True)
        lock = os.open(part, os.O_RDONLY)
        try:
            _lock(lock, part)
            if _is_at(lock, part):  # not one that the export before has just removed
                yield
                return
        finally:
            os.close(lock)


def _is_working_folder(part: str) -> bool:
    """Tell whether there is nothing but what exports leave when they are stopped."""
    if os.path.islink(part) or not os.path.isdir(part):
        return False
    for name in os.listdir(part):
        folder = os.path.join(part, name)
        if _ATTEMPT.fullmatch(name) is None or os.path.islink(folder) or not os.path.isdir(folder):
            return False
        if not {"store", "journal", "writing"}.issuperset(os.listdir(folder)):
            return False
    return True


def _lock(descriptor: int, folder: str) -> None:
    """Lock a folder until it is closed or the process ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DatasetError(
            "another export is writing there", path=folder, hint="Wait until it is done."
        ) from None
    except OSError:  # a file system without locks
        pass


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _check_complete(path: str, missing: list[str]) -> None:
    """Make sure that every chunk is there: zarr would read one that is missing as zeros."""
    if missing:
        raise DatasetError(
            "chunks of the export are missing",
            path=path,
            where=missing[0],
            found=f"{len(missing)} of them",
            hint="All workers have to write to the same file system.",
        )


def _move(store: str, path: str, old: str, *, overwrite: bool) -> None:
    """Put a complete array in its place."""
    _refuse_foreign(path, overwrite=overwrite)  # it may have come since
    replaced = os.path.lexists(path)
    if replaced:
        shutil.rmtree(old, ignore_errors=True)
        os.rename(path, old)
    try:
        os.rename(store, path)
    except BaseException:
        if replaced:
            os.rename(old, path)
        raise


def open_store(store: Any) -> tuple[Store, str]:
    """Give the zarr store that something means, and the path in it."""
    from zarr.abc.store import Store
    from zarr.storage import FsspecStore, MemoryStore, StorePath

    if isinstance(store, StorePath):
        return store.store, store.path
    if isinstance(store, str):
        return FsspecStore.from_url(store), ""
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
) -> None:
    """Have an array written into a zarr store, and make it visible last.

    What it replaces is removed first.
    """
    opened, path = open_store(store)
    prefix = f"{path}/" if path else ""
    place = StorePlace(opened, prefix)
    there = place.keys()
    if there:
        stranger = _stranger(there, place.get)
        if stranger is not None and not _is_leftover(there):
            raise DatasetError("the store holds something already", path=str(store), where=stranger)
        if not overwrite:
            hint = "Pass overwrite=True to replace it."
            raise DatasetError("the store holds something already", path=str(store), hint=hint)
        if not opened.supports_deletes:
            raise DatasetError("nothing can be replaced in such a store", path=str(store))
        if is_source(opened):
            hint = "Export it to another store."
            raise DatasetError("the store may be what is read", path=str(store), hint=hint)
        place.clear()
    write(Target(template.encoder, place, template.prefix), set())
    _check_complete(str(store), sorted({*template.keys()} - {*place.keys()}))
    for key, data in template.in_order():
        place.put(key, data)


def _is_leftover(keys: Iterable[str]) -> bool:
    """Tell whether there are chunks and nothing else, as an export leaves that was stopped."""
    found = map(_KEY.fullmatch, keys)
    return all(one is not None and not one["meta"] for one in found)
