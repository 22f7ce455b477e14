"""Encode zarr chunks and shards, and decode chunks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tiled.codecs.checksums import seal
from dask_tiled.codecs.pipeline import Pipeline, of_numcodecs
from dask_tiled.codecs.shards import ABSENT
from dask_tiled.export.zarr.parts import Part
from dask_tiled.model.indexing import Array, Box, Bytes

if TYPE_CHECKING:
    import zarr

Region = tuple[slice, ...]

PREPARED_BYTES = 1 << 20
"""Bytes that are encoded to import what encoding needs: short chunks have other kernels."""


class Encoder:
    """Encodes the shards of a zarr array, or its chunks if it has no shards.

    Common codecs are called directly in the calling thread; others through zarr, whose pipeline
    uses an event loop and copies more than once.

    Parameters
    ----------
    array : zarr.Array
        Only its metadata is used.
    """

    def __init__(self, array: zarr.Array[Any]) -> None:
        self.shape = array.shape
        self.dtype = array.dtype
        self.chunk: tuple[int, ...] = array.chunks
        self.shard = array.shards
        self.fill_value = array.fill_value
        self.zarr_format = array.metadata.zarr_format
        self.codecs: dict[str, Any] = {
            "filters": array.filters or None,
            "compressors": array.compressors or None,
        }
        if self.zarr_format == 3:
            self.codecs["serializer"] = array.serializer

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is derived from the rest."""
        derived = "pipeline", "room"
        return {name: value for name, value in vars(self).items() if name not in derived}

    def prepare(self) -> None:
        """Import what encoding needs, which takes file descriptors, once in a process."""
        if self.pipeline is not None:
            count = min(math.prod(self.chunk), PREPARED_BYTES // self.dtype.itemsize)
            _prepare(json.dumps(self._documents), count, self.dtype)

    @property
    def stored(self) -> tuple[int, ...]:
        """Shape of a shard, or of a chunk without shards."""
        return self.shard or self.chunk

    def keys(self, box: Box) -> Iterator[tuple[str, Region]]:
        """Yield the keys of a box, and the region of the array that each holds."""
        numbers = (range(a // n, -(-b // n)) for (a, b), n in zip(box, self.stored, strict=True))
        for place in product(*numbers):
            bounds = zip(place, self.stored, self.shape, strict=True)
            region = tuple(slice(k * n, min((k + 1) * n, size)) for k, n, size in bounds)
            yield self._key(place), region

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks of a shard along each axis."""
        return tuple(n // k for n, k in zip(self.stored, self.chunk, strict=True))

    def encode(self, parts: Iterable[Part], memory: Bytes) -> memoryview:
        """Encode the chunks of a shard, or a single chunk.

        Parameters
        ----------
        parts : iterable of Part
        memory : uint8 array
            Output buffer of :attr:`room` bytes; a larger one is allocated if it is too small.
        """
        # The layout of zarr's sharding codec: chunks in C order, the index of offsets and lengths,
        # its checksum. Chunks beyond the array are absent.
        index = np.full((*self.counts, 2), ABSENT, dtype="<u8")
        end = 0
        for place, pixels in parts:
            start, data = end, self._whole(pixels)
            if self.pipeline is not None:
                end += self.pipeline.encode(data, memory[start:])
            else:
                data = self._encoded_by_zarr(data)
                end += len(data)
                if end + index.nbytes + 4 > len(memory):  # the encoded size is unbounded
                    memory = np.concatenate((memory, np.empty(end, np.uint8)))
                memory[start:end] = data
            index[place] = start, end - start
        if self.shard is None:
            return memory[:end].data
        memory[end : end + index.nbytes] = index.reshape(-1).view(np.uint8)
        return memory[: end + len(seal(memory[end:], index.nbytes))].data

    @cached_property
    def room(self) -> int:
        """Maximum bytes of an encoded shard, as far as its codecs state it."""
        size = math.prod(self.chunk) * self.dtype.itemsize
        if self.pipeline is not None:
            size = self.pipeline.rooms[-1]
        return math.prod(self.counts) * (size + 16) + 4

    @cached_property
    def pipeline(self) -> Pipeline | None:
        """The codecs of a chunk; None if only zarr can call them."""
        try:
            found = Pipeline(self._documents, self.chunk, self.dtype)
        except (NotImplementedError, ValueError, TypeError, LookupError):
            return None
        return found if found.can_encode else None

    @property
    def _documents(self) -> list[dict[str, Any]]:
        filters, compressors = (self.codecs[name] or () for name in ("filters", "compressors"))
        if self.zarr_format == 2:
            order = {"endian": "big" if self.dtype.str[0] == ">" else "little"}
            first, last = (
                [of_numcodecs(one.get_config()) for one in x] for x in (filters, compressors)
            )
            return [*first, {"name": "bytes", "configuration": order}, *last]
        return [codec.to_dict() for codec in (*filters, self.codecs["serializer"], *compressors)]

    def _whole(self, pixels: Array) -> Array:
        """Pad a chunk at the end of an axis."""
        if pixels.shape == self.chunk:
            return pixels
        whole = np.full(self.chunk, self.fill_value, self.dtype)
        whole[tuple(map(slice, pixels.shape))] = pixels
        return whole

    def _encoded_by_zarr(self, pixels: Array) -> Bytes:
        contents: dict[str, Any] = {}
        self._alone(contents)[...] = pixels
        return np.frombuffer(contents[self._first].to_bytes(), np.uint8)

    def decode(self, data: Any, memory: Array) -> Array:
        """Decode a chunk, into ``memory`` of at least its size where the codecs allow that."""
        if self.pipeline is not None:
            return self.pipeline.decode(np.frombuffer(data, np.uint8), out=memory)
        from zarr.buffer import default_buffer_prototype

        contents: dict[str, Any] = {}
        array = self._alone(contents)
        contents[self._first] = default_buffer_prototype().buffer.from_bytes(bytes(data))
        return np.asarray(array[...])

    @property
    def _first(self) -> str:
        """The key of the first chunk."""
        return self._key((0,) * len(self.chunk))

    def _key(self, place: Sequence[int]) -> str:
        return "/".join([*["c"] * (self.zarr_format == 3), *map(str, place)])

    def _alone(self, contents: dict[str, Any]) -> zarr.Array[Any]:
        """Create a zarr array of one chunk, with the same codecs."""
        import zarr

        return zarr.create_array(
            zarr.storage.MemoryStore(contents),
            shape=self.chunk,
            chunks=self.chunk,
            dtype=self.dtype,
            fill_value=self.fill_value,
            config={"write_empty_chunks": True},
            zarr_format=self.zarr_format,
            chunk_key_encoding={
                "name": "v2" if self.zarr_format == 2 else "default",
                "separator": "/",
            },
            **self.codecs,
        )


@cache
def _prepare(documents: str, count: int, dtype: np.dtype) -> None:
    """Encode a chunk of zeros."""
    pipeline = Pipeline(json.loads(documents), (count,), dtype)
    pipeline.encode(np.zeros(count, dtype), np.empty(pipeline.rooms[-1], np.uint8))
