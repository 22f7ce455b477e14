"""Arrays in C order at one place of a file: written chunk by chunk, in any order, and compared."""

from __future__ import annotations

import os
import uuid
from functools import partial
from typing import NamedTuple

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.array.tasks import Block, pixels_of
from dask_tiled.blocks.alignment import aligned
from dask_tiled.blocks.running import run_on_blocks
from dask_tiled.errors import DatasetError
from dask_tiled.model.indexing import Array, Box
from dask_tiled.model.paths import with_room
from dask_tiled.reading.reader import Source
from dask_tiled.storing.disk import telling_of, write_at
from dask_tiled.tiling.bases import Grid


class FlatArray(NamedTuple):
    """Where the pixels of an array lie in a file that is as long as it will be."""

    path: str
    """Where the file will be, for errors."""
    at: str
    """Where it is while it is written."""
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def write(self, box: Box, pixels: Array) -> None:
        """Write a part of the array."""
        pixels = np.ascontiguousarray(pixels, self.dtype)
        lead = self._lead(box)
        strides = np.append(np.cumprod(self.shape[:0:-1])[::-1], 1) if self.shape else np.ones(0)
        with telling_of(self.path):
            file = with_room(partial(os.open, self.at, os.O_WRONLY), self.at)
            try:
                for place in np.ndindex(pixels.shape[:lead]):
                    starts = [start for start, _ in box]
                    starts[:lead] = [a + b for a, b in zip(starts, place, strict=False)]
                    first = int(np.dot(starts, strides)) if starts else 0
                    at = self.offset + first * self.dtype.itemsize
                    write_at(file, pixels[place], at)
            finally:
                os.close(file)

    def _lead(self, box: Box) -> int:
        """Count the axes before those that a part shows in one run of bytes."""
        lead = len(box)
        whole = True
        while lead and whole:
            lead -= 1
            whole = box[lead] == (0, self.shape[lead])
        return lead


def write_flat(arr: da.Array, file: FlatArray, *, show: bool | None) -> None:
    """Write all pixels of an array, by all workers at once."""
    run_on_blocks(
        _write_block,
        aligned(arr, (1,) * arr.ndim),
        file,
        name=f"convert-{uuid.uuid4().hex}",
        show=show,
        title="convert",
    )


def _write_block(
    held: Array | Source, file: FlatArray, grid: Grid, block_id: Block
) -> npt.NDArray[np.bool_]:
    pixels = pixels_of(held, grid, block_id) if isinstance(held, Source) else held
    file.write(grid.box(block_id), pixels)
    return np.ones((1,) * len(block_id), dtype=bool)


def write_npy(arr: da.Array, path: str, at: str, *, show: bool | None) -> None:
    """Write an array as NumPy stores it, to a file that will be at ``path``.

    Raises
    ------
    DatasetError
        Its pixels are objects of Python.
    """
    if arr.dtype.hasobject:
        problem = "objects of Python cannot be written to .npy"
        raise DatasetError(problem, path=path, expected="numbers or records", found=arr.dtype)
    with telling_of(path):
        if not arr.nbytes:
            with open(at, "wb") as empty:
                np.save(empty, np.empty(arr.shape, arr.dtype))
            return
        np.lib.format.open_memmap(at, "w+", arr.dtype, arr.shape)
        offset = os.path.getsize(at) - int(arr.nbytes)
    write_flat(arr, FlatArray(path, at, offset, arr.shape, arr.dtype), show=show)
