"""Where an export goes: to a path, visible only when complete, or into a zarr store."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy.typing as npt

from dask_tiled.errors import DatasetError
from dask_tiled.export.facts import MARK

if TYPE_CHECKING:
    import zarr

Write = Callable[["zarr.Array[Any]"], None]


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
    path: str, create: Mapping[str, Any], write: Write, *, overwrite: bool
) -> zarr.Array[Any]:
    """Have an array written beside its place, and move it there when it is complete."""
    import zarr

    part, old = f"{path}.part", f"{path}.old"
    _refuse_foreign(path, overwrite=overwrite)
    _refuse_foreign(old, overwrite=True)
    lock = _claim(part)
    try:
        target = zarr.create_array(part, **create)
        write(target)
        _check_complete(part, target.nchunks)
        _move(part, path, old, overwrite=overwrite)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        os.close(lock)
    shutil.rmtree(old, ignore_errors=True)
    return zarr.open_array(path, mode="r")


def export_to_store(
    store: Any, create: Mapping[str, Any], write: Write, *, overwrite: bool
) -> zarr.Array[Any]:
    """Have an array written into a zarr store. What it replaces is removed first."""
    import zarr

    # Stores that cannot be made read-only, such as zip files, refuse mode "r".
    try:
        there = zarr.open(store, mode="r+")
    except FileNotFoundError:
        there = None
    if there is not None and not (overwrite and MARK in there.attrs):
        hint = "Pass overwrite=True to replace it." if MARK in there.attrs else None
        raise DatasetError("the store holds something already", path=str(store), hint=hint)
    target = zarr.create_array(store, overwrite=overwrite, **create)
    write(target)
    return target


def _refuse_foreign(path: str, *, overwrite: bool) -> None:
    """Make sure that there is nothing at a path, or only an array of ours that may go."""
    import zarr

    if not os.path.lexists(path):
        return
    ours = False
    if os.path.isdir(path) and not os.path.islink(path):
        with suppress(Exception):  # whatever zarr says of it, it is not ours
            ours = MARK in zarr.open_array(path, mode="r").attrs
    if not ours:
        raise DatasetError("something else is there, and stays", path=path)
    if not overwrite:
        raise DatasetError("the array exists", path=path, hint="Pass overwrite=True to replace it.")


def _claim(part: str) -> int:
    """Make the folder that is written to, and lock it; what a stopped export left there goes."""
    if os.path.isdir(part) and not os.path.islink(part):
        leftover = _lock(part)
        try:
            if os.listdir(part) != ["c"]:  # chunks of tasks that outlived their export
                _refuse_foreign(part, overwrite=True)
            shutil.rmtree(part)
        finally:
            os.close(leftover)
    _refuse_foreign(part, overwrite=True)
    os.makedirs(part)
    return _lock(part)


def _lock(folder: str) -> int:
    """Open a folder, locked until it is closed or the process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DatasetError(
            "another export is writing there", path=folder, hint="Wait until it is done."
        ) from None
    except OSError:  # a file system without locks
        pass
    return descriptor


def _check_complete(part: str, chunks: int) -> None:
    """Make sure that every chunk is a file: zarr would read one that is missing as zeros."""
    stored = sum(len(files) for _, _, files in os.walk(part)) - 1  # zarr.json
    if stored < chunks:
        raise DatasetError(
            "chunks of the export are missing",
            path=part,
            expected=f"{chunks} files",
            found=stored,
            hint="All workers have to write to the same file system.",
        )


def _move(part: str, path: str, old: str, *, overwrite: bool) -> None:
    """Put a complete array in its place."""
    _refuse_foreign(path, overwrite=overwrite)  # it may have come since
    replaced = os.path.lexists(path)
    if replaced:
        shutil.rmtree(old, ignore_errors=True)
        os.rename(path, old)
    try:
        os.rename(part, path)
    except BaseException:
        if replaced:
            os.rename(old, path)
        raise


class Target:
    """A zarr array that tasks write to, kept from dask's eyes as one value.

    An array in memory is not copied when it is pickled, since a copy would take the chunks with it:
    it is found again in the process that holds it, and nowhere else.
    """

    def __init__(self, array: zarr.Array[Any] | None) -> None:
        self.array = array
        self.token = uuid.uuid4().hex

    def write(self, region: tuple[slice, ...], block: npt.NDArray[Any]) -> None:
        """Write a part of the array."""
        if self.array is None:
            raise DatasetError(
                "a store in memory cannot be written to by other processes",
                hint="Export to a path, or compute with threads.",
            )
        root = getattr(self.array.store, "root", None)
        if root is not None and not os.path.exists(
            os.path.join(root, self.array.path, "zarr.json")
        ):
            raise DatasetError("the export has been stopped", path=os.fspath(root))
        self.array[region] = block

    def __reduce__(self) -> tuple[Any, ...]:
        from zarr.storage import MemoryStore

        store = None if self.array is None else self.array.store
        protocol = getattr(getattr(store, "fs", None), "protocol", ())
        if store is None or isinstance(store, MemoryStore) or "memory" in protocol:
            _IN_MEMORY[self.token] = self
            return _find, (self.token,)
        return Target, (self.array,)


_IN_MEMORY: WeakValueDictionary[str, Target] = WeakValueDictionary()


def _find(token: str) -> Target:
    # Complain where it writes, not here: a worker that cannot read a task dies.
    return _IN_MEMORY.get(token) or Target(None)
