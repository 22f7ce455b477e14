"""Where the chunks of a zarr array lie: in a file each, or in shards."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.formats.tools.codecs import unwritten
from dask_tiled.formats.zarr.decoding import decode, unsealed
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.files import File, read_exactly
from dask_tiled.model.indexing import Index
from dask_tiled.model.pieces import PieceTable, piece_table, strides_of

MOST_CHUNKS = 10_000_000
"""More of them are not listed."""
ABSENT = np.uint64(2**64 - 1)
"""What the index of a shard has for a chunk that is not there."""


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
        self.codecs = _named(document["codecs"])
        self.shards: dict[str, Any] = {}
        if array.shards is not None:
            self.shards = self.codecs[0]["configuration"]
            self.codecs = _named(self.shards["codecs"])
        self.decoder = self._decoder(document)

    def _decoder(self, document: Mapping[str, Any]) -> Decoder | BlockDecoder:
        serializer = self.codecs[0]
        big = serializer.get("configuration", {}).get("endian") == "big"
        stored = self.array.dtype.newbyteorder(">" if big else "<")
        if len(self.codecs) == 1 and serializer["name"] == "bytes":
            return plain(stored)
        one = {
            **document,
            "shape": self.chunk,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": self.chunk}},
            "chunk_key_encoding": {"name": "default"},
            "codecs": self.codecs,
            "attributes": {},
            "dimension_names": None,
        }
        options = (
            ("document", json.dumps(one, sort_keys=True)),
            ("chunk", (1,) * self.lead + self.chunk),
            ("stored", stored.str),
        )
        name = f"{decode.__module__}:{decode.__name__}"
        return BlockDecoder(name, stored.newbyteorder("="), options)

    @property
    def decoders(self) -> list[Decoder | BlockDecoder]:
        """That of chunks, and that of those that are not there."""
        value = np.full(1, self.array.fill_value, self.array.dtype)
        return [self.decoder, unwritten(self.decoder.dtype, value.tobytes())]

    @property
    def base_shape(self) -> tuple[int, ...]:
        """What is read together: a chunk that is decoded as a whole; empty for pixels."""
        whole = isinstance(self.decoder, BlockDecoder)
        return (1,) * self.lead + self.chunk if whole else ()

    def table(self) -> PieceTable:
        """Find all chunks.

        Raises
        ------
        DatasetError
            There are too many.
        TruncatedFileError, CorruptFileError
            One is missing that must not be, is too short, or the index of a shard is damaged.
        """
        shape = np.array(self.array.shape, np.int64)
        counts = [-(-n // size) for n, size in zip(self.array.shape, self.chunk, strict=True)]
        if math.prod(counts) > MOST_CHUNKS:
            path = self.files[0].path
            raise DatasetError("too many chunks", path=path, expected=MOST_CHUNKS, found=counts)
        parts = [*map(self._of_file, product(*map(range, self._cells())))]
        start, number, where = (np.concatenate(column) for column in zip(*parts, strict=True))
        inside = (start < shape).all(axis=1)
        start, number, where = start[inside], number[inside], where[inside]
        there = number >= 0
        if self.complete and not there.all():
            lost = start[~there][0].tolist()
            raise TruncatedFileError("a chunk is missing", path=self.folder, where=f"pixel {lost}")
        box = np.minimum(self.chunk, shape - start)
        strides = np.zeros_like(shape)
        offset, nbytes = where.T
        if isinstance(self.decoder, Decoder):
            strides = np.array(strides_of(self.chunk, self.decoder.nbytes))
            self._check_lengths(number, nbytes)
            nbytes = np.zeros_like(nbytes)
        return piece_table(
            self._wide(start, 0),
            self._wide(box, 1),
            np.where(there, offset, 0),
            self._wide(np.where(there[:, None], strides, 0), 0),
            file=np.maximum(number, 0),
            decoder=np.where(there, 0, 1),
            nbytes=np.where(there, nbytes, 0),
        )

    def _wide(self, columns: Index, value: int) -> Index:
        return np.pad(columns, ((0, 0), (self.lead, 0)), constant_values=value)

    def _cells(self) -> list[int]:
        return [-(-n // size) for n, size in zip(self.array.shape, self.stored, strict=True)]

    def _of_file(self, cell: tuple[int, ...]) -> tuple[Index, Index, Index]:
        """List the chunks under one key: where in the array, numbers of files, where in these."""
        counts = [n // k for n, k in zip(self.stored, self.chunk, strict=True)]
        inner = np.indices(counts).reshape(len(counts), -1).T
        corner = np.array(cell, np.int64) * np.array(counts, np.int64)
        start: Index = (corner + inner) * np.array(self.chunk, np.int64)
        key = self.array.metadata.encode_chunk_key(cell)
        try:
            file = File.at(os.path.join(self.folder, *key.split("/")))
        except FileNotFoundError:
            return start, np.full(len(start), -1, np.int64), np.zeros((len(start), 2), np.int64)
        self.files.append(file)
        where = self._index(file, len(start)) if self.shards else np.array([[0, file.size]])
        there = where[:, 0] >= 0
        return start, np.where(there, len(self.files) - 1, -1), where

    def _index(self, file: File, count: int) -> Index:
        """Read where the chunks of a shard begin, and how long they are."""
        names = [codec["name"] for codec in _named(self.shards["index_codecs"])]
        if names not in (["bytes"], ["bytes", "crc32c"]):
            raise DatasetError("an index of shards is packed", path=file.path, found=names)
        nbytes = 16 * count + 4 * (len(names) - 1)
        at_end = self.shards.get("index_location", "end") == "end"
        offset = file.size - nbytes if at_end else 0
        if offset < 0:
            raise TruncatedFileError("a shard is too short", path=file.path, expected=nbytes)
        data = np.frombuffer(read_exactly(file.path, nbytes, offset, "the index of a shard"), "u1")
        try:
            content = unsealed(data) if len(names) > 1 else data
        except ValueError as error:
            problem, where = "the index of a shard is damaged", f"byte {offset}"
            raise CorruptFileError(
                problem, path=file.path, where=where, found=str(error)
            ) from error
        found = content.view("<u8").reshape(-1, 2)
        absent = (found == ABSENT).all(axis=1)
        beyond = ~absent & ((found > file.size).any(axis=1) | (found.sum(axis=1) > file.size))
        if beyond.any():
            problem, expected = "a chunk reaches beyond its shard", f"{file.size} bytes"
            place = found[beyond][0].tolist()
            raise TruncatedFileError(problem, path=file.path, expected=expected, found=place)
        places: Index = np.where(absent[:, None], 0, found).astype(np.int64)
        places[absent, 0] = -1
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


def _named(codecs: Sequence[Any]) -> list[dict[str, Any]]:
    """Give codecs with their names, of which some are nothing else."""
    return [{"name": one} if isinstance(one, str) else dict(one) for one in codecs]
