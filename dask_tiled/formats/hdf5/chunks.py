"""Chunks of HDF5 files become pixels: without h5py where the filters are known.

The HDF5 library does one thing at a time in a process, however many threads ask. Filters that are
known here run beside each other; chunks with any other go through the library, block by block, in a
file that is opened once for a task.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, require
from dask_tiled.formats.hdf5.filters import CODEC_ERRORS, FILTERS, Filter
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.files import File

Array = npt.NDArray[Any]

OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "file locking flag": {},
    "already open for write": {"locking": False, "swmr": True, "libver": "latest"},
}
"""How else to open a file that cannot be opened without locks, by what the library says to that:
this process has it open with locks, or somebody writes who may let others read. The latter is never
tried first: where metadata are damaged, the library would wait for somebody to complete them."""


def decode(
    block: Block,
    fetch: Fetch,
    *,
    stored: np.dtype,
    dtype: np.dtype,
    chunk: tuple[int, ...],
    filters: tuple[Filter, ...],
) -> Array:
    """Decode a chunk.

    Parameters
    ----------
    block : Block
    fetch : Fetch
    stored, dtype : numpy.dtype
        Type of the pixels in the file, and of those that come out.
    chunk : tuple of int
        Shape of the chunk in the file, with the axes of the block; at the edges of the array it is
        larger than the block.
    filters : tuple of (int, tuple of int)
        Number and parameters of each filter, in the order in which they were applied.

    Raises
    ------
    CorruptFileError
        It cannot be decoded.
    """
    fetched = fetch(block.file, block.offset, block.offset + block.nbytes)
    data = fetched
    size = stored.itemsize * math.prod(chunk)
    try:
        for number, values in reversed(filters):
            data = FILTERS[number](data, values, size)
    except CODEC_ERRORS as error:
        raise _corrupt(block, "data of its filters", error) from error
    if len(data) != size:
        raise _corrupt(block, f"{size} bytes", f"{len(data)} bytes")
    inside = tuple(slice(n) for n in block.shape)
    pixels: Array = data.view(stored).reshape(chunk)[inside]
    # Some filters leave the bytes where they are, which is not theirs for long.
    return pixels.astype(dtype, copy=np.may_share_memory(data, fetched))


def read(
    block: Block,
    fetch: Fetch,
    *,
    dataset: str,
    dtype: np.dtype,
    origin: tuple[int, ...],
) -> Array:
    """Read a block through the HDF5 library, in a file that is opened once for a task.

    Parameters
    ----------
    block : Block
    fetch : Fetch
    dataset : str
        Path in the file.
    dtype : numpy.dtype
        Type of the pixels that come out.
    origin : tuple of int
        Where the dataset begins among the axes of the block, whose last ones are those of the
        dataset.

    Raises
    ------
    StaleFileError
        The file has changed since it was opened.
    CorruptFileError
        The library cannot read the block.
    """
    block.file.check()
    source = fetch.keep((block.file, dataset), lambda: _dataset(block.file, dataset))
    skip = len(block.shape) - source.ndim
    bounds = list(zip(block.start, origin, block.shape, strict=True))[skip:]
    inside = tuple(slice(start - first, start - first + n) for start, first, n in bounds)
    try:
        pixels: Array = source[inside]  # in the type of the file: bit fields become no other
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise _corrupt(block, "a chunk that the HDF5 library reads", error) from error
    block.file.check()
    return pixels.astype(dtype, copy=False).reshape(block.shape)


@contextmanager
def open_file(file: File) -> Iterator[Any]:
    """Open a file with h5py: for reading, whoever else has it open, and wherever it lies.

    Raises
    ------
    DatasetError
        h5py is not installed.
    CorruptFileError
        The library cannot open the file.
    """
    h5py = library(file.path)
    try:
        opened = _open(h5py, file.path)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise CorruptFileError(
            "the HDF5 library cannot open the file", path=file.path, found=str(error)[:300]
        ) from error
    with opened:
        yield opened


def library(path: str) -> Any:
    """Import h5py, and the plugins that bring it further filters, where they are installed.

    Raises
    ------
    DatasetError
        h5py is not installed.
    """
    h5py = require("h5py", "hdf5", path)
    if importlib.util.find_spec("hdf5plugin"):
        with suppress(ImportError, OSError, RuntimeError):
            importlib.import_module("hdf5plugin")
    return h5py


def _open(h5py: Any, path: str) -> Any:
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        how = next((how for why, how in OTHERWISE.items() if why in str(error)), None)
        if how is not None:
            with suppress(OSError):  # what it said first tells more
                return h5py.File(path, "r", **how)
        raise


@contextmanager
def _dataset(file: File, name: str) -> Iterator[Any]:
    with open_file(file) as opened:
        yield opened[name]


def _corrupt(block: Block, expected: str, found: object) -> CorruptFileError:
    return CorruptFileError(
        "a chunk cannot be decoded",
        path=block.file.path,
        where=f"byte {block.offset}",
        expected=expected,
        found=str(found)[:300],
    )
