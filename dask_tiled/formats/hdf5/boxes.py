"""Blocks that only the HDF5 library can decode."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from dask_tiled.apart.calls import apart
from dask_tiled.errors import CorruptFileError, DatasetError, Guard
from dask_tiled.formats.hdf5.library import read_box
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.indexing import Array

SECONDS, SECONDS_PER_BYTE = 5, 1e-6
"""Deadline for a block, plus time per byte: the slowest codecs decode some MB/s."""
MEMORY, MEMORY_RATIO = 1 << 30, 8
"""Memory for a block, plus bytes per byte."""
NO_CONVERSION = "no appropriate function for conversion path"
"""Error message of the HDF5 library for types that it cannot convert, such as padded bit fields."""


def read(
    block: Block,
    fetch: Fetch,
    *,
    dataset: str,
    dtype: np.dtype,
    origin: tuple[int, ...],
    order: tuple[int, ...] = (),
) -> Array:
    """Read a block with the HDF5 library, in one child process per chunk.

    The dataset begins at ``origin`` of the block's axes; its own axes are the last ones. ``order``
    gives its axes in the order of the block, if that differs.
    """
    block.file.check()
    corner, shape = (as_stored(values, order) for values in (block.start, block.shape))
    starts = [begin - first for begin, first in zip(corner, origin, strict=True)]
    bounds = [(start, start + n) for start, n in zip(starts, shape, strict=True)]
    nbytes = dtype.itemsize * math.prod(shape)
    seconds, memory = SECONDS + SECONDS_PER_BYTE * nbytes, MEMORY + MEMORY_RATIO * nbytes
    expected = "a chunk that the HDF5 library reads"
    place = {"where": f"byte {block.offset}", "expected": expected}
    try:
        with Guard(block.file.path, "a chunk cannot be decoded", place):
            run = fetch.keep("hdf5", partial(apart, renewed=True))
            pixels: Array = run(seconds, memory, read_box, block.file, dataset, bounds)
    except CorruptFileError as error:
        if NO_CONVERSION not in str(error.found):
            raise
        raise DatasetError(
            "the HDF5 library cannot convert the type of the dataset",
            path=block.file.path,
            where=dataset,
            expected="numbers, or bit fields that fill their bytes",
        ) from error.__cause__
    block.file.check()
    pixels = pixels.view(complex_type(pixels.dtype) or pixels.dtype)
    pixels = pixels.astype(dtype, copy=False).reshape(shape)
    return pixels.transpose(order) if order else pixels


def as_stored(values: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Reorder one number per axis from block order to file order."""
    return tuple(values[order.index(axis)] for axis in range(len(order))) if order else values


def complex_type(dtype: np.dtype) -> np.dtype | None:
    """Return the complex dtype of a record with real and imaginary part, or None."""
    if dtype.names is None or [name[:4].lower() for name in dtype.names] != ["real", "imag"]:
        return None
    real, imaginary = (dtype[name] for name in dtype.names)
    size = real.itemsize
    if real != imaginary or real.kind != "f" or size not in {4, 8}:
        return None
    made = np.dtype({"names": dtype.names, "formats": [real, real]})
    return np.dtype(f"{real.byteorder}c{2 * size}") if made == dtype else None
