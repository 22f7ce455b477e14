"""The chunks of a zarr array: each in a file of its own, or in shards."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice, product
from typing import Any

import numpy as np

from dask_tiled.codecs.byte_codecs import DEFLATE
from dask_tiled.codecs.chunks import chunk_decoder, decode, refusing, unwritten
from dask_tiled.codecs.pipeline import Pipeline
from dask_tiled.codecs.shards import PLAIN, index_size, named, read_index
from dask_tiled.errors import DatasetError, TruncatedFileError
from dask_tiled.files.file import File, read_exactly
from dask_tiled.formats.tools.zips import FolderEntry
from dask_tiled.formats.zarr.folders import StoreFolder
from dask_tiled.model.blocks import Block
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.grids import gaps
from dask_tiled.model.indexing import Array, Bytes, Index
from dask_tiled.model.pieces import PieceTable, piece_table, strides_of

NUMBER = re.compile("[0-9]+")
MOST_CHUNKS = 10_000_000
"""Maximum number of chunks to ask a server for, if it cannot list them."""
BATCH = 1 << 12
"""Number of files that are looked up together: lists of all of them would need much memory."""
MOST_PACKED = 1 << 24
"""Longest chunk of a small array."""


STORED, MISSING, DEFLATED = range(3)
"""Decoders of chunks: as they are stored, of missing chunks, and of deflated ones in zip files."""


class FolderChunks:
    """The chunks of an array, found below a folder.

    Parameters
    ----------
    array : zarr.Array
        Metadata of the array; its pixels are not read.
    document : mapping
        Its document.
    folder, entry : Folder, Entry
        The folder and the file of the document.
    lead : int
        Number of axes of length 1 that precede the array's axes in pieces, at most 1.
    complete : bool
        Whether all chunks must exist.
    """

    def __init__(
        self,
        array: Any,
        document: Mapping[str, Any],
        folder: StoreFolder,
        entry: FolderEntry,
        lead: int,
        *,
        complete: bool,
    ) -> None:
        self.array, self.lead, self.complete = array, lead, complete
        self.folder, self.path, self.files = folder, entry.path, [entry.file]
        self.stored: tuple[int, ...] = array.shards or array.chunks
        dtype, fill = array.dtype.newbyteorder("="), array.fill_value
        self.fill: Array = np.full(1, 0 if fill is None else fill, dtype)
        entries = self._entries()
        deflated = any(one.deflated for _, one in entries)
        # A deflated shard can only be inflated as a whole: it is one chunk.
        self.shards: Mapping[str, Any] = {}
        self.chunk: tuple[int, ...] = self.stored if deflated else array.chunks
        codecs = document["codecs"]
        if array.shards is not None and not deflated:
            self.shards = codecs[0]["configuration"]
            codecs = self.shards.get("codecs", PLAIN)
        with refusing(codecs, entry.path):
            self.codecs = named(codecs)
            pipeline = Pipeline(self.codecs, self.chunk, dtype)
            if self.shards:
                index_size(self.shards, 1)
        pack = partial(chunk_decoder, chunk=self.chunk, stored=dtype, fill=self.fill.tobytes())
        self.packed = pack(self.codecs), pack([*self.codecs, {"name": DEFLATE}])
        """Decoders of stored and of deflated chunks."""
        decoder = plain(pipeline.stored) if pipeline.is_plain else self.packed[0]
        self.decoders: list[Decoder | BlockDecoder]
        self.decoders = [decoder, unwritten(decoder.dtype, self.fill.tobytes()), self.packed[1]]
        self.decoders = self.decoders[: DEFLATED + deflated]
        self.found = 0
        """Number of stored chunks, once they were listed."""
        self._rows = self._rows_of(entries)

    @property
    def base_shape(self) -> tuple[int, ...]:
        """Shape of a chunk that decodes only as a whole; empty for uncompressed pixels."""
        whole = isinstance(self.decoders[0], BlockDecoder) or len(self.decoders) > DEFLATED
        return (1,) * self.lead + self.chunk if whole else ()

    @property
    def unwritten(self) -> int:
        """Number of chunks that are not stored, once they were listed."""
        counts = zip(self.array.shape, self.chunk, strict=True)
        return math.prod(-(-n // size) for n, size in counts) - self.found

    def table(self, number: int, files: int, decoders: int) -> PieceTable:
        """Return the pieces of all chunks.

        Missing chunks are filled: few large pieces, whatever their number.

        Parameters
        ----------
        number : int
            Position along the leading axis.
        files, decoders : int
            Number of files and of decoders of the arrays before.

        Raise a DatasetError if there are too many chunks to ask a server for, and a
        TruncatedFileError or CorruptFileError if a required chunk is missing, a chunk is too short,
        or the index of a shard is damaged.
        """
        start, (file, offset, nbytes, decoder) = self._found()
        self.found = len(start)
        holes, sizes = gaps(start // self.chunk, self.array.shape, self.chunk)
        if self.complete and len(holes):
            lost, path = f"pixel {min(holes.tolist())}", self.folder.path
            raise TruncatedFileError("a chunk is missing", path=path, where=lost)
        strides = np.zeros((len(start), len(self.chunk)), np.int64)
        if isinstance(self.decoders[0], Decoder):
            expected = math.prod(self.chunk) * self.array.dtype.itemsize
            for k in np.flatnonzero((decoder == STORED) & (nbytes != expected)):
                path, found = self.files[int(file[k])].path, int(nbytes[k])
                problem = "invalid length of a chunk"
                raise TruncatedFileError(problem, path=path, expected=expected, found=found)
            strides[decoder == STORED] = strides_of(self.chunk, self.array.dtype.itemsize)
            nbytes = np.where(decoder == STORED, 0, nbytes)

        def wide(columns: Any, value: int = 0) -> Index:
            return np.pad(columns, ((0, 0), (self.lead, 0)), constant_values=value)

        filled = (0, len(holes))
        shape = np.minimum(self.chunk, np.array(self.array.shape, np.int64) - start)
        return piece_table(
            wide(np.concatenate((start, holes)), number),
            wide(np.concatenate((shape, sizes)), 1),
            np.pad(offset, filled),
            wide(np.pad(strides, (filled, (0, 0)))),
            file=np.pad(file, filled) + files,
            decoder=np.pad(decoder, filled, constant_values=MISSING) + decoders,
            nbytes=np.pad(nbytes, filled),
        )

    def pixels(self) -> Array:
        """Read all pixels of a small array.

        Raise a DatasetError if chunks are damaged, or too long for a small array.
        """
        pixels = np.full(self.array.shape, self.fill[0])
        start, where = self._found()
        for corner, row in zip(start.tolist(), where.T.tolist(), strict=True):
            number, offset, nbytes, decoder = row
            file, packed = self.files[number], self.packed[decoder == DEFLATED]
            if nbytes > MOST_PACKED:
                problem = "a chunk is too long"
                raise DatasetError(problem, path=file.path, expected=MOST_PACKED, found=nbytes)
            box = tuple(map(slice, corner, map(int.__add__, corner, self.chunk)))
            block = Block((), file, offset, nbytes, tuple(corner), pixels[box].shape)
            pixels[box] = decode(block, _fetch, **dict(packed.options))  # type: ignore[arg-type]
        return pixels

    def _found(self) -> tuple[Index, Index]:
        """List the existing chunks in C order: their position in the array, and in the files.

        The position in the files is file number, offset, length and decoder.
        """
        ndim, rows = len(self.chunk), self._rows
        shape = np.array(self.array.shape, np.int64)
        rows = rows[(rows[:, :ndim] < shape).all(axis=1)]
        rows = rows[np.lexsort(rows[:, ndim - 1 :: -1].T)]
        return rows[:, :ndim], rows[:, ndim:].T

    def _rows_of(self, entries: Iterable[tuple[tuple[int, ...], FolderEntry]]) -> Index:
        """Return the chunks of files: their position in the array, and in the files."""
        parts, rest = [np.empty((0, len(self.chunk) + 4), np.int64)], iter(entries)
        while some := [*islice(rest, BATCH)]:
            parts.append(np.concatenate([self._of_file(*one) for one in some]))
        return np.concatenate(parts)

    def _entries(self) -> list[tuple[tuple[int, ...], FolderEntry]]:
        """Return the files of chunks or shards, with their cells."""
        cells, found = iter(self._written()), list[tuple[tuple[int, ...], FolderEntry]]()
        while some := [*islice(cells, BATCH)]:
            keys = [*map(self.array.metadata.encode_chunk_key, some)]
            pairs = zip(some, self.folder.chunks(keys), strict=True)
            found += ((cell, entry) for cell, entry in pairs if entry is not None)
        return found

    def _written(self) -> Iterable[tuple[int, ...]]:
        """Return the cells of files that may exist, by the names in the folders."""
        cells = [-(-n // size) for n, size in zip(self.array.shape, self.stored, strict=True)]
        encode = self.array.metadata.encode_chunk_key
        keys = self.folder.keys(encode((0,) * len(cells)))
        if keys is not None:
            found = sorted({tuple(map(int, NUMBER.findall(key))) for key in keys})
            fits = (cell for cell in found if len(cell) == len(cells))
            return [c for c in fits if all(map(int.__lt__, c, cells)) and encode(c) in keys]
        if math.prod(cells) > MOST_CHUNKS:
            problem = "too many chunks"
            raise DatasetError(problem, path=self.path, expected=MOST_CHUNKS, found=cells)
        return product(*map(range, cells))

    def _of_file(self, cell: tuple[int, ...], entry: FolderEntry) -> Index:
        """Return the chunks of a file, as :meth:`_found` does."""
        corner, file = np.array(cell, np.int64) * self.stored, entry.file
        if file is not self.files[-1]:
            self.files.append(file)
        number = len(self.files) - 1
        if not self.shards:
            decoder = DEFLATED if entry.deflated else STORED
            return np.array([[*corner, number, entry.offset, entry.nbytes, decoder]])
        counts = [n // k for n, k in zip(self.stored, self.chunk, strict=True)]

        def fetch(start: int, stop: int) -> Bytes:
            return _fetch(file, entry.offset + start, entry.offset + stop)

        # Reading the index first bounds the number of chunks by the file size.
        places = read_index(fetch, entry.nbytes, self.shards, math.prod(counts), entry.path)
        start = corner + np.indices(counts).reshape(len(counts), -1).T * self.chunk
        there = places[:, 0] >= 0
        places[:, 0] += entry.offset
        rest = np.full(len(start), number), places, np.full(len(start), STORED)
        return np.column_stack((start, *rest))[there]


def _fetch(file: File, start: int, stop: int) -> Bytes:
    return np.frombuffer(read_exactly(file.path, stop - start, start, "a chunk"), np.uint8)
