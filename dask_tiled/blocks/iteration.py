"""Iterate over the chunks of arrays in order, while the next ones are read."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterable, Iterator
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.array.doors import as_array, is_array
from dask_tiled.blocks.ahead import AHEAD_BYTES, read_ahead
from dask_tiled.errors import TilingError, check_whole
from dask_tiled.model.indexing import Array
from dask_tiled.opening import opened


class ArrayBlock(NamedTuple):
    """A chunk of an array, computed.

    Attributes
    ----------
    number : int
        Position of the array among several.
    where : tuple of slice
        The part of the array that it is.
    pixels : array
        Its own memory, writeable.
    """

    number: int
    where: tuple[slice, ...]
    pixels: Array


class _Wanted(NamedTuple):
    """A chunk that is still to be computed."""

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
            # What dask repeats along an axis lies in memory but once.
            owned = pixels if pixels.flags.writeable else pixels.copy()
        except Exception as error:
            error.add_note(f"in the part {self.where} of array {self.number}, {self.arr.name}")
            raise
        return ArrayBlock(self.number, self.where, owned)


def iter_blocks(
    arr: Any, *, prefetch: int = 2, max_bytes: int = AHEAD_BYTES
) -> Generator[ArrayBlock]:
    """Iterate over the chunks of an array in C order, while threads read the next ones.

    Parameters
    ----------
    arr : dask.array.Array, DataArray of xarray or path-like, or iterable of arrays
        One array, or what :func:`open_dataset` opens, or several arrays, one after the other; an
        iterator is asked for the next one only when it is time to read it.
    prefetch : int
        So many chunks are read ahead at most, by as many threads; with 0 there are none, and every
        chunk is read when it is asked for.
    max_bytes : int
        So many bytes are read ahead at most. A chunk that is larger is read ahead alone.

    Yields
    ------
    ArrayBlock
        ``block.pixels``, and the slices ``block.where`` of the array that they are.

    Raises
    ------
    TilingError
        An array has chunks of unknown size, or is none.
    DatasetError
        Whatever reading a chunk raises, after all chunks before it have been handed out.

    Notes
    -----
    When the iterator is exhausted, closed or forgotten, reads that have begun are waited for, and
    no thread is left. Bytes of chunks that were handed out are not counted. Chunks are computed in
    this process: one that a cluster keeps has to be asked for with ``compute()``.
    """
    prefetch = check_whole("prefetch", prefetch, least=0)
    max_bytes = check_whole("max_bytes", max_bytes, least=0)
    alone = is_array(arr) or isinstance(arr, str | os.PathLike)
    wanted = _wanted([opened(arr)] if alone else arr)
    return read_ahead(wanted, prefetch, max_bytes)


def _wanted(arrays: Iterable[Any]) -> Iterator[_Wanted]:
    """List the chunks of arrays."""
    for number, data in enumerate(arrays):
        arr = as_array(data, error=TilingError)
        if any(math.isnan(n) for axis in arr.chunks for n in axis):
            raise TilingError("chunks of unknown size", where=f"array {number}", found=arr.chunks)
        edges = (pairwise(accumulate(axis, initial=0)) for axis in arr.chunks)
        for where in product(*([slice(a, b) for a, b in axis] for axis in edges)):
            yield _Wanted(number, where, arr)
