"""Pipelines: the codecs of a chunk, as zarr 3 documents them, undone from the last to the first."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dask_tiled.codecs.array_codecs import (
    ARRAY_CODECS,
    Pixels,
    decoded_pixels,
    encoded_pixels,
)
from dask_tiled.codecs.byte_codecs import (
    BYTE_CODECS,
    OF_NUMCODECS,
    compressor,
    decoded,
    has_numcodecs,
    most_encoded,
    placed,
)
from dask_tiled.codecs.image_codecs import (
    IMAGE_CODECS,
    ROWS,
    decoded_image,
    decoded_rows,
    row_bytes,
    rows_until,
)
from dask_tiled.codecs.limits import check_room
from dask_tiled.codecs.shards import PLAIN, named, read_index
from dask_tiled.model.indexing import Array, Bytes

BYTES, SHARDS = "bytes", "sharding_indexed"
SERIALIZERS = {BYTES, SHARDS, ROWS, *IMAGE_CODECS}
CODECS = ", ".join(sorted({*ARRAY_CODECS, *SERIALIZERS, *BYTE_CODECS}))
"""All codecs that are read; others have no reliable bounds."""


def of_numcodecs(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a codec of numcodecs, of which ``config`` is the configuration."""
    options = {key: value for key, value in config.items() if key != "id"}
    return {"name": f"{OF_NUMCODECS}{config['id']}", "configuration": options}


class Pipeline:
    """The codecs of a chunk.

    Parameters
    ----------
    codecs : sequence
        Documents of zarr 3, ``{"name": ..., "configuration": {...}}``, in the order in which a
        chunk is written. ``bytes`` without ``endian`` stores pixels as ``dtype`` has them.
    shape, dtype : tuple of int, numpy.dtype
        Of a chunk.
    unbounded : bool
        Whether any other codec of numcodecs is read, too: a user asks for them, never a file.

    Raises
    ------
    NotImplementedError
        A codec is not read.
    ValueError, TypeError, LookupError, ArithmeticError, AttributeError
        A document is invalid, does not suit the array, or stands in the wrong place.
    """

    def __init__(
        self,
        codecs: Sequence[Any],
        shape: tuple[int, ...],
        dtype: np.dtype,
        *,
        unbounded: bool = False,
    ) -> None:
        kinds: tuple[list[tuple[str, dict[str, Any]]], ...] = ([], [], [])
        last = 0
        for codec in named(codecs):
            kind = kind_of(codec["name"], unbounded=unbounded)
            if kind < last or (kind == last == 1):
                raise ValueError(f"{codec['name']} behind {kinds[last][-1][0]}")
            kinds[kind].append((codec["name"], dict(codec.get("configuration") or {})))
            last = kind
        if not kinds[1]:
            raise ValueError(f"neither {BYTES} nor {SHARDS}, which make bytes of pixels")
        self.filters, (self.serializer, *_), self.packers = kinds
        self.arrays = [Pixels(shape, dtype)]
        for name, config in self.filters:
            self.arrays.append(encoded_pixels(name, config, self.arrays[-1]))
        self.inner: Pipeline | None = None
        name, config = self.serializer
        if name == SHARDS:
            inner = tuple(map(int, config["chunk_shape"]))
            if any(n % k for n, k in zip(self.arrays[-1].shape, inner, strict=True)):
                raise ValueError(f"shards of {self.arrays[-1].shape} for chunks of {inner}")
            self.inner = Pipeline(config.get("codecs", PLAIN), inner, self.arrays[-1].dtype)
        self.rooms = [self._serialized()]
        for name, config in self.packers:
            if name == "numcodecs.shuffle":
                config["elementsize"] = config.get("elementsize") or self.arrays[-1].dtype.itemsize
            self.rooms.append(most_encoded(name, config, self.rooms[-1]))

    def _serialized(self) -> int:
        """Return how many bytes the serializer makes; of shards and images, at most."""
        array, (name, config) = self.arrays[-1], self.serializer
        if name == ROWS:
            return row_bytes(config, array.shape) * math.prod(array.shape[: config["axis"]])
        if name in IMAGE_CODECS:
            return sys.maxsize
        if self.inner is None:
            return array.nbytes
        return self._count() * (self.inner.rooms[-1] + 16) + 4

    def _count(self) -> int:
        """Count the chunks of a shard inside of a chunk."""
        inner = self.inner.arrays[0].shape  # type: ignore[union-attr]
        return math.prod(self.arrays[-1].shape) // math.prod(inner)

    def decode(
        self,
        data: Bytes,
        fill: Any = 0,
        out: Bytes | None = None,
        inside: tuple[int, ...] | None = None,
    ) -> Array:
        """Decode a chunk.

        Parameters
        ----------
        data : uint8 array
            A stored chunk.
        fill : scalar
            Value of chunks that a shard lacks.
        out : uint8 array, optional
            Memory that the pixels may be decoded into.
        inside : tuple of int, optional
            How much of a chunk, from its first pixel on, has to be there. Rows and images may be
            stored without the rest, which is left out then.

        Raises
        ------
        ValueError
            It is damaged, or holds another number of pixels. Codecs have errors of their own, too.
        """
        inside = inside or self.arrays[0].shape
        rooms, rest = self.rooms[-2::-1], len(self.packers)
        wanted = self._least(inside)
        for (name, config), most in zip(self.packers[::-1], rooms, strict=True):
            rest -= 1
            packs = compressor(name, config)
            if packs and not rest and self.inner is None:
                check_room(packs, len(data), wanted)
            data = decoded(name, config, data, most, None if rest else out)
        array = self._unserialized(data, fill, inside)
        for (name, config), given in zip(self.filters[::-1], self.arrays[-2::-1], strict=True):
            array = decoded_pixels(name, config, array, given)
        return array

    @property
    def is_plain(self) -> bool:
        """Whether pixels are stored as NumPy has them, in either byte order."""
        return not self.filters and not self.packers and self.inner is None

    @cached_property
    def kernel(self) -> tuple[str, tuple[int, ...]]:
        """Name of the kernel that decodes chunks of native pixels, and its options; "" if none."""
        native = not self.filters and self.inner is None and self.stored.isnative
        if not native or self.stored.kind == "b" or len(self.packers) != 1:
            return "", ()
        ((name, config),) = self.packers
        packed, size = config.get("cname"), config.get("elementsize", 0)
        if name.removeprefix(OF_NUMCODECS) == "blosc" and packed in ("lz4", "lz4hc"):
            return "blosc", ()
        is_sized = isinstance(size, int) and size > 0  # users may have told anything
        if name == "dask_tiled.bitshuffle" and packed == "lz4" and is_sized:
            return "bitshuffle", (size, 0)
        return "", ()

    @property
    def can_encode(self) -> bool:
        """Whether :meth:`encode` knows all codecs."""
        plain = not self.filters and self.inner is None and self.arrays[0].dtype.kind in "biufc"
        return plain and all(BYTE_CODECS[name].encode for name, _ in self.packers)

    def encode(self, pixels: Array, out: Bytes) -> int:
        """Encode a chunk; return how many bytes that makes, the first ones of ``out``.

        Parameters
        ----------
        pixels : ndarray
        out : uint8 array
            It has room for the last of :attr:`rooms`.
        """
        data: Any = np.ascontiguousarray(pixels, self.stored).reshape(-1).view(np.uint8)
        for name, config in self.packers:
            data = BYTE_CODECS[name].encode(config, data, out)  # type: ignore[misc]
        return len(placed(data, out))

    @cached_property
    def stored(self) -> np.dtype:
        """Type of the pixels as they are stored."""
        dtype, (_, config) = self.arrays[-1].dtype, self.serializer
        endian = config.get("endian")
        return dtype if endian is None else dtype.newbyteorder(">" if endian == "big" else "<")

    def _least(self, inside: tuple[int, ...]) -> int:
        """Return how many bytes the serializer makes of the pixels that have to be there."""
        (name, config), shape = self.serializer, self.arrays[-1].shape
        if name != ROWS or inside == shape:
            return self.rooms[0]
        return rows_until(config, shape, inside) * row_bytes(config, shape)

    def _unserialized(self, data: Bytes, fill: Any, inside: tuple[int, ...]) -> Array:
        (shape, dtype), (name, config) = self.arrays[-1], self.serializer
        if self.inner is not None:
            return self._unsharded(data, fill)
        complete = len(data) == self.rooms[0] and config.get("bits") == 8 * dtype.itemsize
        if name == ROWS and not complete:
            return decoded_rows(config, data, shape, dtype)
        if name in IMAGE_CODECS:
            return decoded_image(name, config, data, (shape, inside), dtype)
        if len(data) != self.rooms[0]:
            raise ValueError(f"{len(data)} bytes")
        pixels: Array = data != 0 if dtype.kind == "b" else data.view(self.stored)
        return pixels.reshape(shape)

    def _unsharded(self, data: Bytes, fill: Any) -> Array:
        shape, dtype = self.arrays[-1]
        (_, config), inner = self.serializer, self.inner.arrays[0].shape  # type: ignore[union-attr]
        places = read_index(lambda a, b: data[a:b], len(data), config, self._count())
        found = np.full(shape, fill, dtype)
        counts = [n // k for n, k in zip(shape, inner, strict=True)]
        for cell, (offset, nbytes) in zip(np.ndindex(*counts), places.tolist(), strict=True):
            if offset >= 0:
                box = tuple(slice(c * k, (c + 1) * k) for c, k in zip(cell, inner, strict=True))
                found[box] = self.inner.decode(data[offset : offset + nbytes], fill)  # type: ignore[union-attr]
        return found


def kind_of(name: Any, *, unbounded: bool = False) -> int:
    """Return 0 for a codec from arrays to arrays, 1 for arrays to bytes, 2 for bytes to bytes."""
    for kind, names in enumerate((ARRAY_CODECS, SERIALIZERS, BYTE_CODECS)):
        if name in names:
            return kind
    if unbounded and has_numcodecs(name):
        return 2
    raise NotImplementedError(name)


@lru_cache
def shared_pipeline(
    codecs: str, shape: tuple[int, ...], dtype: np.dtype, *, unbounded: bool = False
) -> Pipeline:
    """Return the pipeline that all chunks of an array share, from its documents as JSON."""
    return Pipeline(json.loads(codecs), shape, dtype, unbounded=unbounded)
