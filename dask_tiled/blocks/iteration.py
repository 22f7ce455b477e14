"""Iterate over the chunks of arrays in order, while the next ones are read."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterable, Iterator
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.blocks.ahead import AHEAD_BYTES, read_ahead
from dask_tiled.blocks.bars import on_block
from dask_tiled.errors import TilingError, check_whole
from dask_tiled.model.indexing import Array
from dask_tiled.opened.inputs import as_array, is_array
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.opening.arrays import opened


class ArrayBlock(NamedTuple):
    """A computed chunk of an array.

    Attributes
    ----------
    number : int
        Position of the array in the sequence of arrays.
    where : tuple of slice
        Location of the chunk in the array.
    pixels : array
        A writeable array that owns its memory.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> block = next(dask_tiled.iter_blocks("frames.npy"))
    >>> isinstance(block, dask_tiled.ArrayBlock), block.where[0]
    (True, slice(0, 3, None))
    """

    number: int
    where: tuple[slice, ...]
    pixels: Array


class _Wanted(NamedTuple):
    """A chunk to be computed."""

    number: int
    where: tuple[slice, ...]
    arr: da.Array

    @property
    def nbytes(self) -> int:
        size = math.prod(s.stop - s.start for s in self.where)
        return size * self.arr.dtype.itemsize

    def compute(self) -> ArrayBlock:
        try:
            pixels = np.asarray(self.arr[self.where].compute(scheduler="synchronous"))
            # dask may return a broadcast view.
            owned = pixels if pixels.flags.writeable else pixels.copy()
        except Exception as error:
            error.add_note(
                f"while reading the part {self.where} of array {self.number}, {self.arr.name}"
            )
            raise
        return ArrayBlock(self.number, self.where, owned)


def iter_blocks(
    arr: Any, *, prefetch: int = 2, max_bytes: int = AHEAD_BYTES
) -> Generator[ArrayBlock]:
    """Iterate over the chunks of an array in C order, while threads read the next ones.

    Parameters
    ----------
    arr : dask.array.Array, DataArray of xarray or path-like, or iterable of arrays
        An array, anything that :func:`open_dataset` opens, or several arrays to be read one after
        the other; an iterator is advanced only when its next array is to be read.
    prefetch : int
        Maximum number of chunks read ahead, and of threads; with 0, chunks are read on demand in
        the calling thread.
    max_bytes : int
        Maximum bytes read ahead. A larger chunk is read ahead alone.

    Returns
    -------
    iterator of ArrayBlock
        Each has ``block.pixels``, and their location in the array, the slices ``block.where``.

    Raises
    ------
    TilingError
        An array has chunks of unknown size, or an item is not an array.
    DatasetError
        Any error of reading a chunk, raised after all chunks before it were yielded.

    Notes
    -----
    When the iterator is exhausted, closed or garbage-collected, it waits for reads in progress, and
    ends its threads. Chunks that were yielded do not count towards ``max_bytes``. Chunks are
    computed in this process: call ``compute()`` for chunks that a cluster holds.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> frames = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    >>> np.save("frames.npy", frames)
    >>> arr = dask_tiled.open_dataset("frames.npy", chunks=(2, 4, 5))
    >>> [block.pixels.shape for block in dask_tiled.iter_blocks(arr)]
    [(2, 4, 5), (1, 4, 5)]
    """
    prefetch = check_whole("prefetch", prefetch, least=0)
    max_bytes = check_whole("max_bytes", max_bytes, least=0)
    alone = is_array(arr) or isinstance(arr, str | os.PathLike)
    wanted = _wanted([opened(arr)] if alone else arr)
    return read_ahead(wanted, prefetch, max_bytes)


def _wanted(arrays: Iterable[Any]) -> Iterator[_Wanted]:
    """Yield the chunks of arrays; nothing is computed yet."""
    for number, data in enumerate(arrays):
        arr = as_array(data, error=TilingError)
        if any(math.isnan(n) for axis in arr.chunks for n in axis):
            raise TilingError("chunks of unknown size", where=f"array {number}", found=arr.chunks)
        if isinstance(arr, TiledArray):
            arr = arr.blocks_in_memory
        edges = (pairwise(accumulate(axis, initial=0)) for axis in arr.chunks)
        for where in product(*([slice(a, b) for a, b in axis] for axis in edges)):
            yield _Wanted(number, where, arr)
            on_block.get()()
