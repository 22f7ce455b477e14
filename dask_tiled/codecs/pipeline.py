"""Codec pipelines of chunks, as zarr 3 documents, decoded from the last codec to the first."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dask_tiled.codecs.array_codecs import ARRAY_CODECS, decoded_pixels, encoded_pixels
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
from dask_tiled.model.indexing import Array, Bytes, Shaped

BYTES, SHARDS = "bytes", "sharding_indexed"
SERIALIZERS = {BYTES, SHARDS, ROWS, *IMAGE_CODECS}
CODECS = ", ".join(sorted({*ARRAY_CODECS, *SERIALIZERS, *BYTE_CODECS}))
"""All codecs that files may use; other codecs have no reliable limits."""


def of_numcodecs(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the zarr 3 document of a numcodecs configuration."""
    options = {key: value for key, value in config.items() if key != "id"}
    return {"name": f"{OF_NUMCODECS}{config['id']}", "configuration": options}


class Pipeline:
    """The codec pipeline of a chunk.

    Parameters
    ----------
    codecs : sequence
        Documents of zarr 3, ``{"name": ..., "configuration": {...}}``, in the order in which a
        chunk is written. ``bytes`` without ``endian`` stores pixels in the byte order of ``dtype``.
    shape, dtype : tuple of int, numpy.dtype
        Shape and dtype of a chunk.
    unbounded : bool
        Whether any other codec of numcodecs is allowed: for users, never for files.

    Raises
    ------
    NotImplementedError
        A codec is not supported.
    ValueError, TypeError, LookupError, ArithmeticError, AttributeError
        A document is invalid, does not fit the array, or is in the wrong position.
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
                raise ValueError(f"{codec['name']} after {kinds[last][-1][0]}")
            kinds[kind].append((codec["name"], dict(codec.get("configuration") or {})))
            last = kind
        if not kinds[1]:
            raise ValueError(f"neither {BYTES} nor {SHARDS}, which serialize pixels")
        self.filters, (self.serializer, *_), self.packers = kinds
        self.arrays = [Shaped(shape, dtype)]
        for name, config in self.filters:
            self.arrays.append(encoded_pixels(name, config, self.arrays[-1]))
        self.inner: Pipeline | None = None
        name, config = self.serializer
        if name == SHARDS:
            inner = tuple(map(int, config["chunk_shape"]))
            if any(n % k for n, k in zip(self.arrays[-1].shape, inner, strict=True)):
                raise ValueError(
                    f"shards of shape {self.arrays[-1].shape} with chunks of shape {inner}"
                )
            self.inner = Pipeline(config.get("codecs", PLAIN), inner, self.arrays[-1].dtype)
        self.rooms = [self._serialized()]
        for name, config in self.packers:
            if name == "numcodecs.shuffle":
                config["elementsize"] = config.get("elementsize") or self.arrays[-1].dtype.itemsize
            self.rooms.append(most_encoded(name, config, self.rooms[-1]))

    def _serialized(self) -> int:
        """Return the number of serialized bytes; for shards and images, the maximum."""
        array, (name, config) = self.arrays[-1], self.serializer
        if name == ROWS:
            return row_bytes(config, array.shape) * math.prod(array.shape[: config["axis"]])
        if name in IMAGE_CODECS:
            return sys.maxsize
        if self.inner is None:
            return array.nbytes
        return self._count() * (self.inner.rooms[-1] + 16) + 4

    def _count(self) -> int:
        """Return the number of inner chunks in a shard."""
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
            Shape of the part that must be stored. Rows and images may be
            stored without the rest, which is then cut off.

        Raises
        ------
        ValueError
            The chunk is damaged, or has a wrong size. Codecs may raise other errors.
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
        """Whether pixels are stored uncompressed as a NumPy array, in either byte order."""
        return not self.filters and not self.packers and self.inner is None

    @cached_property
    def kernel(self) -> tuple[str, tuple[int, ...]]:
        """Name and options of the kernel that decodes native pixels; an empty name if none."""
        native = not self.filters and self.inner is None and self.stored.isnative
        if not native or self.stored.kind == "b" or len(self.packers) != 1:
            return "", ()
        ((name, config),) = self.packers
        packed, size = config.get("cname"), config.get("elementsize", 0)
        if name.removeprefix(OF_NUMCODECS) == "blosc" and packed in ("lz4", "lz4hc"):
            return "blosc", ()
        is_sized = isinstance(size, int) and size > 0  # users may pass any value
        if name == "dask_tiled.bitshuffle" and packed == "lz4" and is_sized:
            return "bitshuffle", (size, 0)
        return "", ()

    @property
    def can_encode(self) -> bool:
        """Whether :meth:`encode` supports all codecs."""
        plain = not self.filters and self.inner is None and self.arrays[0].dtype.kind in "biufc"
        return plain and all(BYTE_CODECS[name].encode for name, _ in self.packers)

    def encode(self, pixels: Array, out: Bytes) -> int:
        """Encode a chunk into the start of ``out``; return the number of bytes.

        Parameters
        ----------
        pixels : ndarray
        out : uint8 array
            At least as long as the last of :attr:`rooms`.
        """
        data: Any = np.ascontiguousarray(pixels, self.stored).reshape(-1).view(np.uint8)
        for name, config in self.packers:
            data = BYTE_CODECS[name].encode(config, data, out)  # type: ignore[misc]
        return len(placed(data, out))

    @cached_property
    def stored(self) -> np.dtype:
        """Return the dtype of the stored pixels."""
        dtype, (_, config) = self.arrays[-1].dtype, self.serializer
        endian = config.get("endian")
        return dtype if endian is None else dtype.newbyteorder(">" if endian == "big" else "<")

    def _least(self, inside: tuple[int, ...]) -> int:
        """Return the number of serialized bytes of pixels of the shape ``inside``."""
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
    """Return 0 for array-to-array, 1 for array-to-bytes, 2 for bytes-to-bytes codecs."""
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
    """Return the pipeline shared by all chunks of an array, from its documents as JSON."""
    return Pipeline(json.loads(codecs), shape, dtype, unbounded=unbounded)
