"""The chunks of a zarr array: each in a file of its own, or in shards."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.codecs.chunks import chunk_decoder, decode, refusing, unwritten
from dask_tiled.codecs.pipeline import Pipeline
from dask_tiled.codecs.shards import PLAIN, index_size, named, read_index
from dask_tiled.errors import DatasetError, TruncatedFileError
from dask_tiled.model.blocks import Block
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.files import File, read_exactly
from dask_tiled.model.grids import gaps
from dask_tiled.model.indexing import Array, Index
from dask_tiled.model.paths import in_folder, is_link, is_url, list_folder
from dask_tiled.model.pieces import PieceTable, piece_table, strides_of

NUMBER = re.compile("[0-9]+")
MOST_CHUNKS = 10_000_000
"""Maximum number of chunks to ask a server for, if it cannot list them."""
MOST_PACKED = 1 << 24
"""Longest chunk of a small array."""


class Chunks:
    """The chunks of an array, found below a folder.

    Parameters
    ----------
    array : zarr.Array
        Metadata of the array; its pixels are not read.
    document : mapping
        Its document.
    file : File
        File of the document.
    lead : int
        Number of axes of length 1 that precede the array's axes in pieces.
    complete : bool
        Whether all chunks must exist.
    """

    def __init__(
        self, array: Any, document: Mapping[str, Any], file: File, lead: int, *, complete: bool
    ) -> None:
        self.array, self.lead, self.complete = array, lead, complete
        self.folder, self.files = os.path.dirname(file.path), [file]
        self.chunk: tuple[int, ...] = array.chunks
        self.stored: tuple[int, ...] = array.shards or array.chunks
        dtype, fill = array.dtype.newbyteorder("="), array.fill_value
        self.fill: Array = np.full(1, 0 if fill is None else fill, dtype)
        self.shards: Mapping[str, Any] = {}
        codecs = document["codecs"]
        if array.shards is not None:
            self.shards = codecs[0]["configuration"]
            codecs = self.shards.get("codecs", PLAIN)
        with refusing(codecs, file.path):
            self.codecs = named(codecs)
            pipeline = Pipeline(self.codecs, self.chunk, dtype)
            if self.shards:
                index_size(self.shards, 1)
        self.packed = chunk_decoder(self.codecs, self.chunk, dtype, fill=self.fill.tobytes())
        decoder = plain(pipeline.stored) if pipeline.is_plain else self.packed
        self.decoders: list[Decoder | BlockDecoder]
        self.decoders = [decoder, unwritten(decoder.dtype, self.fill.tobytes())]
        """Decoders of stored and of missing chunks."""

    @property
    def base_shape(self) -> tuple[int, ...]:
        """Shape of a chunk that decodes only as a whole; empty for uncompressed pixels."""
        whole = isinstance(self.decoders[0], BlockDecoder)
        return (1,) * self.lead + self.chunk if whole else ()

    def table(self) -> PieceTable:
        """Return the pieces of all chunks.

        Missing chunks are filled: few large pieces, whatever their number.

        Raise a DatasetError if there are too many chunks to ask a server for, and a
        TruncatedFileError or CorruptFileError if a required chunk is missing, a chunk is too short,
        or the index of a shard is damaged.
        """
        start, (file, offset, nbytes) = self._found()
        holes, sizes = gaps(start // self.chunk, self.array.shape, self.chunk)
        if self.complete and len(holes):
            lost = f"pixel {min(holes.tolist())}"
            raise TruncatedFileError("a chunk is missing", path=self.folder, where=lost)
        strides = (0,) * len(self.chunk)
        if isinstance(self.decoders[0], Decoder):
            strides = strides_of(self.chunk, self.array.dtype.itemsize)
            expected = math.prod(self.chunk) * self.array.dtype.itemsize
            for k in np.flatnonzero(nbytes != expected):
                path, found = self.files[int(file[k])].path, int(nbytes[k])
                problem = "invalid length of a chunk"
                raise TruncatedFileError(problem, path=path, expected=expected, found=found)
            nbytes = np.zeros_like(nbytes)

        def wide(columns: Any, value: int = 0) -> Index:
            return np.pad(columns, ((0, 0), (self.lead, 0)), constant_values=value)

        filled = (0, len(holes))
        shape = np.minimum(self.chunk, np.array(self.array.shape, np.int64) - start)
        return piece_table(
            wide(np.concatenate((start, holes))),
            wide(np.concatenate((shape, sizes)), 1),
            np.pad(offset, filled),
            wide([strides]),
            file=np.pad(file, filled),
            decoder=np.repeat((0, 1), (len(start), len(holes))),
            nbytes=np.pad(nbytes, filled),
        )

    def pixels(self) -> Array:
        """Read all pixels of a small array.

        Raise a DatasetError if chunks are damaged, or too long for a small array.
        """
        pixels = np.full(self.array.shape, self.fill[0])
        start, where = self._found()
        for corner, (number, offset, nbytes) in zip(start.tolist(), where.T.tolist(), strict=True):
            file = self.files[number]
            if nbytes > MOST_PACKED:
                problem = "a chunk is too long"
                raise DatasetError(problem, path=file.path, expected=MOST_PACKED, found=nbytes)
            box = tuple(map(slice, corner, map(int.__add__, corner, self.chunk)))
            block = Block((), file, offset, nbytes, tuple(corner), pixels[box].shape)
            pixels[box] = decode(block, _fetch, **dict(self.packed.options))  # type: ignore[arg-type]
        return pixels

    def _found(self) -> tuple[Index, Index]:
        """List the existing chunks in C order: their position in the array, and in the files.

        The position in the files is file number, offset and length.
        """
        ndim, shape = len(self.chunk), np.array(self.array.shape, np.int64)
        none = np.empty((0, ndim + 3), np.int64)
        rows = np.concatenate([none, *map(self._of_file, self._written())])
        rows = rows[(rows[:, :ndim] < shape).all(axis=1)]
        rows = rows[np.lexsort(rows[:, ndim - 1 :: -1].T)]
        return rows[:, :ndim], rows[:, ndim:].T

    def _written(self) -> Iterable[tuple[int, ...]]:
        """Return the cells of files that may exist, by the names in the folders."""
        cells = [-(-n // size) for n, size in zip(self.array.shape, self.stored, strict=True)]
        encode = self.array.metadata.encode_chunk_key
        try:
            keys = None if is_url(self.folder) else _keys(self.folder, encode((0,) * len(cells)))
        except PermissionError:  # the folder cannot be listed
            keys = None
        if keys is not None:
            found = sorted({tuple(map(int, NUMBER.findall(key))) for key in keys})
            fits = (cell for cell in found if len(cell) == len(cells))
            return [c for c in fits if all(map(int.__lt__, c, cells)) and encode(c) in keys]
        if math.prod(cells) > MOST_CHUNKS:
            path = self.files[0].path
            raise DatasetError("too many chunks", path=path, expected=MOST_CHUNKS, found=cells)
        return product(*map(range, cells))

    def _of_file(self, cell: tuple[int, ...]) -> Index:
        """Return the chunks under a key: position in the array, file number, offset and length."""
        key = self.array.metadata.encode_chunk_key(cell)
        path = in_folder(self.folder, *key.split("/"))
        corner = np.array(cell, np.int64) * self.stored
        try:
            file = File.at(path)
        except FileNotFoundError:
            if is_link(path):
                problem, expected = "a chunk is a dangling link", "a file, or nothing"
                raise TruncatedFileError(problem, path=path, expected=expected) from None
            return np.empty((0, len(corner) + 3), np.int64)
        self.files.append(file)
        number = len(self.files) - 1
        if not self.shards:
            return np.array([[*corner, number, 0, file.size]])
        counts = [n // k for n, k in zip(self.stored, self.chunk, strict=True)]
        # Reading the index first bounds the number of chunks by the file size.
        places = read_index(partial(_fetch, file), file.size, self.shards, math.prod(counts), path)
        start = corner + np.indices(counts).reshape(len(counts), -1).T * self.chunk
        return np.column_stack((start, np.full(len(start), number), places))[places[:, 0] >= 0]


def _fetch(file: File, start: int, stop: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(read_exactly(file.path, stop - start, start, "a chunk"), np.uint8)


def _keys(folder: str, like: str) -> set[str]:
    """List the files that may have keys like ``like``, at the same depth."""
    names = list_folder(folder) or ()
    if "/" not in like:
        return set(names)
    rest = like.partition("/")[2]
    below = (name for name in names if os.path.isdir(in_folder(folder, name)))
    return {f"{name}/{key}" for name in below for key in _keys(in_folder(folder, name), rest)}
