"""Calls of the HDF5 library."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from dask_tiled.apart import calls
from dask_tiled.apart.calls import PRELOADED
from dask_tiled.apart.child import RENEWING
from dask_tiled.errors import DatasetError
from dask_tiled.files.file import File, is_refusal
from dask_tiled.files.paths import is_url
from dask_tiled.formats.hdf5.filters import CODECS, Filter

T = TypeVar("T")
Bounds = Sequence[tuple[int, int]]
"""Start and stop along each axis."""
OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "file locking flag": {},
    "already open for write": {"locking": False, "swmr": True, "libver": "latest"},
}
"""Other options to open a file, by the error of opening it without locks: this process has it
open with locks, or another process writes and may permit readers. The latter is never tried
first: if metadata are damaged, the library waits for the writer to complete them."""
MOST_BUILT_IN = 255
"""Filters with larger numbers are plugins."""

PRELOADED += ["dask_tiled.formats.hdf5.descriptor", "h5py", "numpy.ma", "encodings.ascii"]

_kept: dict[tuple[File, str], Any] = {}


def open_file(file: File) -> Any:
    """Open a file or URL with h5py, also if it is open elsewhere."""
    import h5py

    path = file.path
    try:
        return h5py.File(file.open() if is_url(path) else path, "r", locking=False)
    except OSError as error:
        how = next((how for why, how in OTHERWISE.items() if why in str(error)), None)
        if how is not None:
            with suppress(OSError):  # the first error is more helpful
                return h5py.File(path, "r", **how)
        if is_refusal(error):
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
        raise OSError(f"{path}: {error}") from error


def safely(file: File, *attempts: Callable[[], T]) -> T:
    """Read a file in a child process; return the result of the first attempt that succeeds.

    Files that this process is writing are read here: the library holds data that are not in the
    file yet. Errors are those of :func:`dask_tiled.apart.calls.safely`.
    """
    if is_written_here(file):
        return attempts[0]()
    return calls.safely(file, "the HDF5 library", *attempts)


def is_written_here(file: File) -> bool:
    """Return whether this process is writing a file."""
    h5f = sys.modules.get("h5py.h5f")
    if h5f is None or sys.modules.get("h5py") is None:
        return False
    for one in h5f.get_obj_ids(h5f.OBJ_ALL, h5f.OBJ_FILE):
        with suppress(OSError, ValueError, RuntimeError):  # no name, or just closed
            if one.get_intent() & h5f.ACC_RDWR and os.path.samefile(one.name, file.path):
                return True
    return False


def load_plugins() -> None:
    """Register the filters of hdf5plugin, if installed."""
    with suppress(ImportError, OSError, RuntimeError):
        importlib.import_module("hdf5plugin")


def read_box(file: File, name: str, bounds: Bounds) -> Any:
    """Read a box of a dataset in its stored type; its axes are the last ones of ``bounds``.

    The dataset stays open for the next box.
    """
    if (file, name) not in _kept:
        load_plugins()
        _kept[file, name] = open_file(file)[name]
    dataset = _kept[file, name]
    inside = tuple(slice(*ends) for ends in bounds[len(bounds) - len(shape_of(dataset)) :])
    return dataset[inside[: dataset.ndim]][(..., *inside[dataset.ndim :])]


def forget() -> None:
    """Close the files that stay open between boxes."""
    _kept.clear()


RENEWING.append(forget)


def shape_of(dataset: Any) -> tuple[int, ...]:
    """Return the shape of a dataset, including the axes of array elements."""
    return (*dataset.shape, *dataset.dtype.shape)


def chunks_of(dataset: Any) -> tuple[int, ...]:
    """Return the chunk shape, including the axes of array elements; empty if not chunked."""
    return (*dataset.chunks, *dataset.dtype.shape) if dataset.chunks else ()


def names_in(group: Any, most: int) -> list[str]:
    """List the first names in a group, in the order of h5py; skip names that are not UTF-8."""
    from h5py import h5, h5p

    names: list[str] = []

    def note(name: bytes) -> bool | None:
        with suppress(UnicodeDecodeError):
            names.append(name.decode())
        return len(names) >= most or None

    tracked = group.id.get_create_plist().get_link_creation_order() & h5p.CRT_ORDER_TRACKED
    order = h5.INDEX_CRT_ORDER if tracked else h5.INDEX_NAME
    if most > 0:
        group.id.links.iterate(note, idx_type=order)
    return names


def filters_of(dataset: Any) -> tuple[Filter, ...]:
    """Return the filters of a dataset, in the order of application."""
    from h5py import h5z

    properties, found = dataset.id.get_create_plist(), []
    for k in range(properties.get_nfilters()):
        number, _, values, name = properties.get_filter(k)
        found.append((number, tuple(map(int, values))))
        if number in CODECS:
            continue
        if number > MOST_BUILT_IN:
            load_plugins()
        if not h5z.filter_avail(number):
            raise DatasetError(
                "a filter of the dataset is not installed",
                path=dataset.file.filename,
                where=dataset.name,
                found=f"filter {number}, {name.decode('latin1') or 'unnamed'}",
                hint="Run: pip install hdf5plugin",
            )
    return tuple(found)
