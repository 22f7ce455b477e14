"""Chunks of HDF5 files become pixels: without the HDF5 library where the filters are known.

Chunks with any other filter go through the library, block by block, in a file that is opened once
for a task; and in another process, where the filter is a plugin.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, require
from dask_tiled.formats.hdf5 import child
from dask_tiled.formats.hdf5.filters import CODEC_ERRORS, FILTERS, Filter
from dask_tiled.model.blocks import Block, Fetch

Array = npt.NDArray[Any]


def decode(
    block: Block,
    fetch: Fetch,
    *,
    stored: np.dtype,
    dtype: np.dtype,
    chunk: tuple[int, ...],
    filters: tuple[Filter, ...],
) -> Array:
    """Decode a chunk, of the shape that it has in the file: at the edges larger than the block."""
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
    apart: bool,
) -> Array:
    """Read a block through the HDF5 library, in a file that is opened once for a task.

    The dataset begins at ``origin`` among the axes of the block, of which the last ones are its
    own. ``apart`` is another process, because a plugin may end that.
    """
    block.file.check()
    path, open_dataset = block.file.path, child.apart if apart else child.opened
    require("h5py", "hdf5", path)
    starts = [begin - first for begin, first in zip(block.start, origin, strict=True)]
    bounds = [(start, start + n) for start, n in zip(starts, block.shape, strict=True)]
    try:
        read_box = fetch.keep((block.file, dataset), lambda: open_dataset(path, dataset))
        pixels: Array = read_box(bounds)
    except (OSError, RuntimeError, LookupError, ValueError, TypeError) as error:
        raise _corrupt(block, "a chunk that the HDF5 library reads", error) from error
    block.file.check()
    return pixels.astype(dtype, copy=False).reshape(block.shape)


def _corrupt(block: Block, expected: str, found: object) -> CorruptFileError:
    return CorruptFileError(
        "a chunk cannot be decoded",
        path=block.file.path,
        where=f"byte {block.offset}",
        expected=expected,
        found=str(found)[:300],
    )
