"""Parallel writing of C-order arrays into one range of a file."""

from __future__ import annotations

import operator
import os
import uuid
from typing import NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.blocks.alignment import aligned
from dask_tiled.blocks.running import run_on_blocks
from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import open_file
from dask_tiled.model.indexing import Array, Box
from dask_tiled.model.pieces import strides_of
from dask_tiled.reading.reader import Source, pixels_in
from dask_tiled.storing.disk import write_at, writing_to


class FlatArray(NamedTuple):
    """The position of an array in a file of its final length."""

    path: str
    """Final path of the file, for errors."""
    at: str
    """Temporary path of the file."""
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def write(self, box: Box, held: Array | Source) -> None:
        """Write a box of the array, in the longest possible runs of bytes."""
        pixels = pixels_in(held, box) if isinstance(held, Source) else held
        cut = [k for k, n in enumerate(self.shape) if box[k] != (0, n)]
        outer = pixels.shape[: cut[-1] if cut else 0]
        pixels = np.ascontiguousarray(pixels, self.dtype)
        strides = strides_of(self.shape, self.dtype.itemsize)
        first = self.offset + sum(
            start * step for (start, _), step in zip(box, strides, strict=True)
        )
        with writing_to(self.path), open_file(self.at, "r+b", buffering=0) as file:
            for place in np.ndindex(outer):
                at = first + sum(map(operator.mul, place, strides))
                write_at(file.fileno(), pixels[place], at)


def write_flat(arr: da.Array, file: FlatArray, *, show: bool | None) -> None:
    """Write all pixels of an array, in parallel."""
    run_on_blocks(
        file.write,
        aligned(arr, (1,) * arr.ndim),
        name=f"convert-{uuid.uuid4().hex}",
        show=show,
        title="convert",
    )


def write_npy(arr: da.Array, path: str, at: str, *, show: bool | None) -> None:
    """Write an array as a NumPy file; ``path`` is its final path."""
    if arr.dtype.hasobject:
        problem = "Python objects cannot be written to .npy"
        raise DatasetError(problem, path=path, expected="numbers or records", found=arr.dtype)
    with writing_to(path):
        if not arr.nbytes:
            with open(at, "wb") as empty:
                np.save(empty, np.empty(arr.shape, arr.dtype))
            return
        np.lib.format.open_memmap(at, "w+", arr.dtype, arr.shape)
        offset = os.path.getsize(at) - int(arr.nbytes)
    write_flat(arr, FlatArray(path, at, offset, arr.shape, arr.dtype), show=show)
