"""Read single chunks of a zarr array, also out of shards."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.codecs.shards import index_size, parse_index
from dask_tiled.errors import DatasetError
from dask_tiled.export.zarr.encoding import Encoder, Region
from dask_tiled.export.zarr.levels import Level
from dask_tiled.export.zarr.parts import Place as ChunkPlace
from dask_tiled.model.indexing import Array, Box
from dask_tiled.plans.tasks import Block
from dask_tiled.storing.places import PartReader, Place
from dask_tiled.tiling.bases import Grid

WINDOW_BYTES = 4 << 20
"""Bytes fetched from a shard in a store at once, unless one chunk is larger."""


class StoredChunks:
    """Reads chunks in any order; if read in the order of the shard, bytes are fetched once.

    Parameters
    ----------
    reader : PartReader
    prefix : str
        Prefix of the keys of the array.
    encoder : Encoder
    shards : mapping, optional
        Configuration of the sharding codec; by default the index is at the end, with a checksum.
    """

    def __init__(
        self,
        reader: PartReader,
        prefix: str,
        encoder: Encoder,
        shards: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.reader = reader
        self.prefix = prefix
        self.encoder = encoder
        self.shards = shards
        self._key: str | None = None
        self._index: Any = None
        self._window: tuple[int, memoryview] = 0, memoryview(b"")
        rooms = [] if encoder.pipeline is None else encoder.pipeline.rooms
        self._memory: Array = np.empty(rooms[0] if rooms else 0, np.uint8)

    def read(self, key: str, place: ChunkPlace) -> Array | None:
        """Read a chunk, padded at the end of an axis; None if it is missing.

        Parameters
        ----------
        key : str
            Key of the shard, or of the chunk without shards.
        place : tuple of int
            Position of the chunk in the shard.

        Returns
        -------
        ndarray
            Valid until the next call.
        """
        data = self._stored(self.prefix + key, place)
        return None if data is None else self.encoder.decode(data, self._memory)

    def box(self, box: Box) -> Array:
        """Read a part of the array.

        Raise a DatasetError if a chunk is missing, or cannot be decoded.
        """
        out = np.empty([stop - start for start, stop in box], self.encoder.dtype)
        for key, region in self.encoder.keys(box):
            what, where = "a chunk of the temporary store", self.prefix + key
            for place, theirs, ours in self._meeting(region, box):
                try:
                    found = self.read(key, place)
                except Exception as error:  # codecs raise errors of any type
                    problem = f"{what} cannot be read"
                    raise DatasetError(problem, where=where, found=str(error)) from error
                if found is None:
                    raise DatasetError(f"{what} is missing", where=where)
                out[ours] = found[theirs]
        return out

    def _meeting(self, region: Region, box: Box) -> Iterator[tuple[ChunkPlace, Region, Region]]:
        """Yield the chunks that intersect a box: position, part of the chunk, part of the box."""
        axes = []
        for some, (start, stop), n in zip(region, box, self.encoder.chunk, strict=True):
            low, high = max(start, some.start), min(stop, some.stop)
            first, last = (low - some.start) // n, -(-(high - some.start) // n)
            starts = ((k, some.start + k * n) for k in range(first, last))
            axes.append([(k, at, max(low, at), min(high, at + n)) for k, at in starts])
        for found in product(*axes):
            theirs = tuple(slice(a - at, b - at) for _, at, a, b in found)
            ends = zip(found, box, strict=True)
            ours = tuple(slice(a - low, b - low) for (_, _, a, b), (low, _) in ends)
            yield tuple(k for k, *_ in found), theirs, ours

    def _stored(self, key: str, place: ChunkPlace) -> memoryview | None:
        """Fetch the encoded bytes of a chunk, valid until the next call."""
        if self.encoder.shard is None:
            whole = self.reader.get(key)
            return None if whole is None else memoryview(whole)
        if key != self._key:
            self._index = self._read_index(key)
            self._key, self._window = key, (0, memoryview(b""))
        if self._index is None or self._index[place][0] < 0:
            return None
        start, nbytes = self._index[place].tolist()
        origin, window = self._window
        if start < origin or start + nbytes > origin + len(window):
            window_bytes = 0 if self.reader.is_local else WINDOW_BYTES
            end = min(start + max(nbytes, window_bytes), int(self._index.sum(axis=-1).max()))
            found = self.reader.get(key, (start, end))
            origin, window = self._window = start, memoryview(found or b"")
        return window[start - origin : start - origin + nbytes]

    def _read_index(self, key: str) -> Any:
        counts = self.encoder.counts
        nbytes = index_size(self.shards, math.prod(counts))
        at_end = self.shards.get("index_location", "end") == "end"
        found = self.reader.get(key, (-nbytes, None) if at_end else (0, nbytes))
        if found is None:
            return None
        return parse_index(found, nbytes, self.shards).reshape(*counts, 2)


def level_array(place: Place, level: Level, chunks: Sequence[tuple[int, ...]]) -> da.Array:
    """Return a stored level as a dask array."""
    return da.map_blocks(
        partial(_read_block, place, level),  # dask does not traverse it
        Grid.of(tuple(chunks)),
        chunks=tuple(chunks),
        dtype=level.encoder.dtype,
        meta=np.empty((0,) * len(chunks), level.encoder.dtype),
        name=f"stored-level-{uuid.uuid4().hex}",  # stored data may change
    )


def _read_block(place: Place, level: Level, grid: Grid, block_id: Block) -> Array:
    return StoredChunks(place.reader(), level.prefix, level.encoder).box(grid.box(block_id))
