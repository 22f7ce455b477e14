"""Where the chunks of a zarr array lie: in a file each, or in shards."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.codecs.chunks import chunk_decoder, decode, unwritten
from dask_tiled.codecs.pipeline import CODECS, Pipeline
from dask_tiled.codecs.shards import PLAIN, index_size, named, read_index
from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.model.blocks import Block
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.files import File, read_exactly
from dask_tiled.model.indexing import Array, Index
from dask_tiled.model.paths import is_link, is_url, list_folder
from dask_tiled.model.pieces import PieceTable, piece_table, strides_of

NUMBER = re.compile("[0-9]+")
MOST_CHUNKS = 10_000_000
"""More of them are not asked for, where the server does not list them."""
MOST_PACKED = 1 << 24
"""No chunk of a small array has more bytes."""


class Chunks:
    """The chunks of an array, found below a folder.

    Parameters
    ----------
    array : zarr.Array
        What it says of itself is taken from it, no pixels.
    document : mapping
        What it was made from.
    file : File
        Where that was read.
    lead : int
        How many axes of length 1 pieces have before those of the array.
    complete : bool
        Whether no chunk may be missing.
    """

    def __init__(
        self, array: Any, document: Mapping[str, Any], file: File, lead: int, *, complete: bool
    ) -> None:
        self.array = array
        self.folder = os.path.dirname(file.path)
        self.lead = lead
        self.complete = complete
        self.files = [file]
        self.chunk: tuple[int, ...] = array.chunks
        self.stored: tuple[int, ...] = array.shards or array.chunks
        self.shards: dict[str, Any] = {}
        codecs = document["codecs"]
        if array.shards is not None:
            self.shards = codecs[0]["configuration"]
            codecs = self.shards.get("codecs", PLAIN)
        self.decoder = self._decoder(codecs)

    def _decoder(self, codecs: Sequence[Any]) -> Decoder | BlockDecoder:
        path, dtype = self.files[0].path, self.array.dtype.newbyteorder("=")
        try:
            self.codecs = named(codecs)
            pipeline = Pipeline(self.codecs, self.chunk, dtype)
            if self.shards:
                index_size(self.shards, 1)
        except NotImplementedError as error:
            problem, name = "unsupported codec", str(error)
            raise DatasetError(problem, path=path, expected=CODECS, found=name) from error
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            problem, told = "invalid codecs", str(error) or repr(error)
            raise CorruptFileError(problem, path=path, where="codecs", found=told) from error
        self.packed = chunk_decoder(self.codecs, self.chunk, dtype, fill=self._fill().tobytes())
        return plain(pipeline.stored) if pipeline.is_plain else self.packed

    def _fill(self) -> Array:
        return np.full(1, self.array.fill_value, self.array.dtype.newbyteorder("="))

    @property
    def decoders(self) -> list[Decoder | BlockDecoder]:
        """That of chunks, and that of those that are not there."""
        return [self.decoder, unwritten(self.decoder.dtype, self._fill().tobytes())]

    @property
    def base_shape(self) -> tuple[int, ...]:
        """What is read together: a chunk that is decoded as a whole; empty for pixels."""
        whole = isinstance(self.decoder, BlockDecoder)
        return (1,) * self.lead + self.chunk if whole else ()

    def table(self) -> PieceTable:
        """Find all chunks.

        What no file holds is filled: few large pieces, however many chunks that are.

        Raises
        ------
        DatasetError
            There are too many to ask a server for.
        TruncatedFileError, CorruptFileError
            One is missing that must not be, is too short, or the index of a shard is damaged.
        """
        shape, chunk = np.array(self.array.shape, np.int64), np.array(self.chunk, np.int64)
        none = (
            np.empty((0, len(shape)), np.int64),
            np.empty(0, np.int64),
            np.empty((0, 2), np.int64),
        )
        parts = [none, *map(self._of_file, self._written())]
        start, number, where = (np.concatenate(column) for column in zip(*parts, strict=True))
        there = (start < shape).all(axis=1) & (number >= 0)
        start, number, where = start[there], number[there], where[there]
        grid = [-(-n // size) for n, size in zip(self.array.shape, self.chunk, strict=True)]
        gaps, counts = _gaps(start // chunk, grid)
        if self.complete and len(gaps):
            lost = (gaps[0] * chunk).tolist()
            raise TruncatedFileError("a chunk is missing", path=self.folder, where=f"pixel {lost}")
        offset, nbytes = where.T
        strides = np.zeros_like(start)
        if isinstance(self.decoder, Decoder):
            strides[:] = strides_of(self.chunk, self.decoder.nbytes)
            self._check_lengths(number, nbytes)
            nbytes = np.zeros_like(nbytes)
        start = np.concatenate((start, gaps * chunk))
        stop = np.minimum(
            start + np.pad(counts, ((len(number), 0), (0, 0)), constant_values=1) * chunk, shape
        )
        filled = (0, len(gaps))
        return piece_table(
            self._wide(start, 0),
            self._wide(stop - start, 1),
            np.pad(offset, filled),
            self._wide(np.pad(strides, (filled, (0, 0))), 0),
            file=np.pad(number, filled),
            decoder=np.pad(np.zeros_like(number), filled, constant_values=1),
            nbytes=np.pad(nbytes, filled),
        )

    def pixels(self) -> Array:
        """Read all pixels of a small array.

        Raises
        ------
        DatasetError
            Chunks are damaged, or too long to be those of a small array.
        """
        found = np.full(self.array.shape, self._fill()[0])
        for start, number, (offset, nbytes) in self._listed():
            file = self.files[number]
            if nbytes > MOST_PACKED:
                problem = "a chunk is too long"
                raise DatasetError(problem, path=file.path, expected=MOST_PACKED, found=nbytes)
            box = tuple(map(slice, start, map(int.__add__, start, self.chunk)))
            block = Block((), file, offset, nbytes, tuple(start), found[box].shape)
            found[box] = decode(block, _fetch, **dict(self.packed.options))  # type: ignore[arg-type]
        return found

    def _listed(self) -> Iterator[tuple[list[int], int, list[int]]]:
        """List the chunks that there are: where in the array, number of the file, where in it."""
        for columns in map(self._of_file, self._written()):
            for start, number, where in zip(*(column.tolist() for column in columns), strict=True):
                if number >= 0 and all(map(int.__lt__, start, self.array.shape)):
                    yield start, number, where

    def _written(self) -> Iterable[tuple[int, ...]]:
        """List the cells of the files that there may be, from the names in the folders."""
        cells = self._cells()
        encode = self.array.metadata.encode_chunk_key
        try:
            keys = None if is_url(self.folder) else _keys(self.folder, encode((0,) * len(cells)))
        except PermissionError:  # a folder that tells nobody what is in it
            keys = None
        if keys is not None:
            found = (tuple(map(int, NUMBER.findall(key))) for key in keys)
            fits = (cell for cell in found if len(cell) == len(cells))
            inside = (cell for cell in fits if all(map(int.__lt__, cell, cells)))
            return sorted({cell for cell in inside if encode(cell) in keys})
        if math.prod(cells) > MOST_CHUNKS:
            path = self.files[0].path
            raise DatasetError("too many chunks", path=path, expected=MOST_CHUNKS, found=cells)
        return product(*map(range, cells))

    def _wide(self, columns: Index, value: int) -> Index:
        return np.pad(columns, ((0, 0), (self.lead, 0)), constant_values=value)

    def _cells(self) -> list[int]:
        return [-(-n // size) for n, size in zip(self.array.shape, self.stored, strict=True)]

    def _of_file(self, cell: tuple[int, ...]) -> tuple[Index, Index, Index]:
        """List the chunks under one key: where in the array, numbers of files, where in these."""
        counts = [n // k for n, k in zip(self.stored, self.chunk, strict=True)]
        corner = np.array(cell, np.int64) * np.array(counts, np.int64)
        key = self.array.metadata.encode_chunk_key(cell)
        path = os.path.join(self.folder, *key.split("/"))
        try:
            file = File.at(path)
        except FileNotFoundError:
            if is_link(path):
                problem, expected = "a chunk is a link to nothing", "a file, or nothing"
                raise TruncatedFileError(problem, path=path, expected=expected) from None
            return (corner * self.chunk)[None], np.array([-1]), np.zeros((1, 2), np.int64)
        self.files.append(file)
        where = np.array([[0, file.size]])
        if self.shards:
            where = self._index(file, math.prod(counts))
        inner = np.indices(counts).reshape(len(counts), -1).T
        start: Index = (corner + inner) * np.array(self.chunk, np.int64)
        there = where[:, 0] >= 0
        return start, np.where(there, len(self.files) - 1, -1), where

    def _index(self, file: File, count: int) -> Index:
        """Read where the chunks of a shard begin, and how long they are."""
        nbytes = index_size(self.shards, count)
        at_end = self.shards.get("index_location", "end") == "end"
        offset = file.size - nbytes if at_end else 0
        if offset < 0:
            raise TruncatedFileError("a shard is too short", path=file.path, expected=nbytes)
        data = np.frombuffer(read_exactly(file.path, nbytes, offset, "the index of a shard"), "u1")
        try:
            places = read_index(data, nbytes)
        except ValueError as error:
            problem, where = "the index of a shard is damaged", f"byte {offset}"
            raise CorruptFileError(
                problem, path=file.path, where=where, found=str(error)
            ) from error
        beyond = places.sum(axis=1) > file.size
        if beyond.any():
            problem, expected = "a chunk reaches beyond its shard", f"{file.size} bytes"
            place = places[beyond][0].tolist()
            raise TruncatedFileError(problem, path=file.path, expected=expected, found=place)
        return places

    def _check_lengths(self, numbers: Index, nbytes: Index) -> None:
        expected = math.prod(self.chunk) * self.array.dtype.itemsize
        short = (numbers >= 0) & (nbytes != expected)
        if short.any():
            path = self.files[int(numbers[short][0])].path
            found = int(nbytes[short][0])
            raise TruncatedFileError(
                "a chunk has another length", path=path, expected=expected, found=found
            )


def _fetch(file: File, start: int, stop: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(read_exactly(file.path, stop - start, start, "a chunk"), np.uint8)


def _keys(folder: str, like: str) -> set[str]:
    """List the files that may have keys like one, as far below a folder as that."""
    names = list_folder(folder) or ()
    if "/" not in like:
        return set(names)
    rest = like.partition("/")[2]
    below = (name for name in names if os.path.isdir(os.path.join(folder, name)))
    return {f"{name}/{key}" for name in below for key in _keys(os.path.join(folder, name), rest)}


def _gaps(there: Index, grid: Sequence[int]) -> tuple[Index, Index]:
    """Return corners and sizes of boxes of a grid that hold all cells but some."""
    numbers = np.sort(np.ravel_multi_index(tuple(there.T), grid)).tolist()
    steps = [math.prod(grid[k + 1 :]) for k in range(len(grid))]
    starts: list[int] = []
    counts: list[tuple[int, ...]] = []
    for first, stop in pairwise((-1, *numbers, math.prod(grid))):
        cell = first + 1
        while cell < stop:  # the largest box of whole rows that begins here
            k = next(k for k, n in enumerate(steps) if cell % n == 0 and cell + n <= stop)
            many = min((stop - cell) // steps[k], grid[k] - cell // steps[k] % grid[k])
            starts.append(cell)
            counts.append((*[1] * k, many, *grid[k + 1 :]))
            cell += many * steps[k]
    corners = np.array(np.unravel_index(np.array(starts, np.int64), grid)).T
    return corners, np.array(counts, np.int64).reshape(-1, len(grid))
