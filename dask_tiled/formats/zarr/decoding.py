"""Chunks of zarr arrays become pixels: their codecs are undone, from the last to the first.

No length that a chunk claims is believed: every codec gets the room that its content should need,
and no more. Codecs that cannot have such bounds are refused.

Layout facts: the specifications of the codecs of zarr 3; those of numcodecs, which zarr 2 has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError
from dask_tiled.formats.tools.codecs import unpacked
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.indexing import Array, Index

Bytes = npt.NDArray[np.uint8]
Codec = dict[str, Any]

FILTERS = {
    "transpose": "",
    "numcodecs.packbits": "",
    "numcodecs.bitround": "",
    "numcodecs.delta": "dtype",
    "numcodecs.fixedscaleoffset": "dtype",
    "numcodecs.quantize": "dtype",
    "numcodecs.astype": "decode_dtype",
}
"""Codecs from arrays to arrays, and what they call the type of the array that they are given."""
SERIALIZERS = ("bytes", "sharding_indexed")
CHECKSUMS = ("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3")
COMPRESSORS = {name: name for name in ("blosc", "gzip", "zstd")} | {
    f"numcodecs.{name}": name for name in ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
}
"""Codecs from bytes to bytes that make them fewer, by their names in zarr and in numcodecs."""
SAME_SIZE = {"crc32c", "numcodecs.shuffle", *(f"numcodecs.{name}" for name in CHECKSUMS)}
"""Codecs from bytes to bytes that add 4 bytes at most."""
CODECS = ", ".join(sorted({*FILTERS, *SERIALIZERS, *SAME_SIZE, *COMPRESSORS}))
"""All that are read; others give no sizes that could be relied on."""
PLAIN, SEALED = ("bytes",), ("bytes", "crc32c")
"""What zarr takes for the codecs of chunks and of the index in shards that do not tell them."""
ABSENT = np.uint64(2**64 - 1)
"""What the index of a shard has for a chunk that is not there."""


def named(codecs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return codecs as mappings: documents may give the name alone."""
    return [{"name": one} if isinstance(one, str) else dict(one) for one in codecs]


class _Array(NamedTuple):
    """What an array codec is given when a chunk is written."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Pipeline:
    """The codecs of a chunk.

    Parameters
    ----------
    codecs : sequence
        Documents of zarr 3, in the order in which a chunk is written.
    shape, dtype : tuple of int, numpy.dtype
        Of a chunk.

    Raises
    ------
    NotImplementedError
        A codec is not read.
    ValueError, TypeError, LookupError, ArithmeticError, AttributeError
        A codec is none, does not suit the array, or stands in the wrong place.
    """

    def __init__(self, codecs: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype) -> None:
        kinds: tuple[list[Codec], ...] = ([], [], [])
        last = 0
        for codec in named(codecs):
            kind = _kind(codec["name"])
            if kind < last or (kind == last == 1):
                raise ValueError(f"{codec['name']} behind {kinds[last][-1]['name']}")
            kinds[kind].append(codec)
            last = kind
        self.filters, (self.serializer, *_), self.packers = kinds
        self.arrays = [_Array(shape, dtype)]
        for codec in self.filters:
            self.arrays.append(_filtered(codec, self.arrays[-1]))
        self.inner: Pipeline | None = None
        if self.serializer["name"] == "sharding_indexed":
            config = _config(self.serializer)
            inner = tuple(map(int, config["chunk_shape"]))
            if any(n % k for n, k in zip(self.arrays[-1].shape, inner, strict=True)):
                raise ValueError(f"shards of {self.arrays[-1].shape} for chunks of {inner}")
            self.inner = Pipeline(config.get("codecs", PLAIN), inner, self.arrays[-1].dtype)
        self.rooms = [self._serialized()]
        for codec in self.packers:  # gzip, bzip2, LZ4 may add an eighth where they gain nothing
            most = self.rooms[-1]
            more = 4 if codec["name"] in SAME_SIZE else most // 8 + 4096
            self.rooms.append(most + more)

    def _serialized(self) -> int:
        """Return how many bytes the serializer makes; of shards, at most."""
        array = self.arrays[-1]
        if self.inner is None:
            return array.nbytes
        return self._count() * (self.inner.rooms[-1] + 16) + 4

    def _count(self) -> int:
        """Count the chunks of a shard inside of a chunk."""
        inner = self.inner.arrays[0].shape  # type: ignore[union-attr]
        return math.prod(self.arrays[-1].shape) // math.prod(inner)

    def decode(self, data: Bytes, fill: Any) -> Array:
        """Decode a chunk; ``fill`` is the value of chunks that a shard lacks.

        Raises
        ------
        ValueError
            It is damaged, or holds another number of pixels. Codecs have errors of their own, too.
        """
        for codec, most in zip(self.packers[::-1], self.rooms[-2::-1], strict=True):
            data = _unpacked(codec, data, most, self.arrays[-1].dtype.itemsize)
        array = self._unserialized(data, fill)
        for codec, given in zip(self.filters[::-1], self.arrays[-2::-1], strict=True):
            array = _unfiltered(codec, array, given)
        return array

    def _unserialized(self, data: Bytes, fill: Any) -> Array:
        shape, dtype = self.arrays[-1]
        if self.inner is not None:
            return self._unsharded(data, fill)
        if len(data) != self.rooms[0]:
            raise ValueError(f"{len(data)} bytes")
        if dtype.kind == "b":
            return (data != 0).reshape(shape)
        stored = dtype.newbyteorder(">" if is_big(self.serializer) else "<")
        return data.view(stored).reshape(shape)

    def _unsharded(self, data: Bytes, fill: Any) -> Array:
        shape, dtype = self.arrays[-1]
        config, inner = _config(self.serializer), self.inner.arrays[0].shape  # type: ignore[union-attr]
        size = index_size(config, self._count())
        at_end = config.get("index_location", "end") == "end"
        places = read_index(config, data[-size:] if at_end else data[:size], size)
        if (places.sum(axis=1) > len(data)).any():
            raise ValueError("a chunk beyond the end of its shard")
        found = np.full(shape, fill, dtype)
        counts = [n // k for n, k in zip(shape, inner, strict=True)]
        for cell, (offset, nbytes) in zip(np.ndindex(*counts), places.tolist(), strict=True):
            if offset >= 0:
                box = tuple(slice(c * k, (c + 1) * k) for c, k in zip(cell, inner, strict=True))
                found[box] = self.inner.decode(data[offset : offset + nbytes], fill)  # type: ignore[union-attr]
        return found


def _kind(name: Any) -> int:
    """Return 0 for a codec from arrays to arrays, 1 for arrays to bytes, 2 for bytes to bytes."""
    for kind, names in enumerate((FILTERS, SERIALIZERS, SAME_SIZE | COMPRESSORS.keys())):
        if name in names:
            return kind
    raise NotImplementedError(name)


def is_big(serializer: Codec) -> bool:
    """Return whether pixels are stored in big-endian order."""
    return bool(_config(serializer).get("endian") == "big")


def _config(codec: Codec) -> dict[str, Any]:
    return dict(codec.get("configuration") or {})


def _numbers(dtype: Any) -> np.dtype:
    """Read the type of the numbers that a filter makes; no others, which may have any length."""
    found = np.dtype(dtype)
    if found.kind not in "biufc":
        raise ValueError(f"a filter with pixels of type {found}")
    return found


def _filtered(codec: Codec, given: _Array) -> _Array:
    """Return the shape and the type that a filter makes of an array."""
    name, config = codec["name"], _config(codec)
    if name == "transpose":
        order = config["order"]
        if sorted(order) != [*range(len(given.shape))]:
            raise ValueError(f"a transpose in the order {order} of {len(given.shape)} axes")
        return _Array(tuple(given.shape[k] for k in order), given.dtype)
    if name == "numcodecs.packbits":
        return _Array((1 + -(-math.prod(given.shape) // 8),), np.dtype("u1"))
    astype = "encode_dtype" if name == "numcodecs.astype" else "astype"
    return _Array(given.shape, _numbers(config.get(astype) or config.get("dtype") or given.dtype))


def _unfiltered(codec: Codec, array: Array, given: _Array) -> Array:
    """Undo a filter."""
    import numcodecs

    name, config = codec["name"], _config(codec)
    if name == "transpose":
        return array.transpose(np.argsort(config["order"]))
    if name == "numcodecs.bitround":  # which has only rounded
        return array.reshape(given.shape)
    told = FILTERS[name]
    if told:
        config[told] = _numbers(config.get(told) or given.dtype).str
    stored = np.ascontiguousarray(array, _filtered(codec, given).dtype)
    config["id"] = name.removeprefix("numcodecs.")
    pixels = np.asarray(numcodecs.get_codec(config).decode(stored))
    return pixels.reshape(given.shape).astype(given.dtype, copy=False)


def _unpacked(codec: Codec, data: Bytes, most: int, itemsize: int) -> Bytes:
    """Undo a codec from bytes to bytes, with room for so many."""
    import numcodecs

    name, config = codec["name"], _config(codec)
    if name == "crc32c":
        return unsealed(data)
    if name in COMPRESSORS:
        found = unpacked({**config, "id": COMPRESSORS[name]}, data, most)
    else:
        config["id"] = name.removeprefix("numcodecs.")
        if name == "numcodecs.shuffle":
            config["elementsize"] = config.get("elementsize") or itemsize
        found = numcodecs.get_codec(config).decode(np.ascontiguousarray(data))
    return np.frombuffer(found, np.uint8)


def unsealed(data: Bytes) -> Bytes:
    """Check the CRC32C that bytes end with, and leave it out.

    Raises
    ------
    ValueError
        It is that of others.
    """
    from google_crc32c import value

    content = data[:-4]
    content.flags.writeable = False  # what it takes
    found, stored = int(value(content)), int.from_bytes(data[-4:].tobytes(), "little")
    if found != stored:
        raise ValueError(f"a CRC32C of {found:#010x}, where {stored:#010x} is stored")
    return content


def index_size(shards: Mapping[str, Any], count: int) -> int:
    """Return how many bytes the index of a shard with ``count`` chunks has.

    Raises
    ------
    ValueError
        It is packed.
    """
    names = tuple(codec["name"] for codec in named(shards.get("index_codecs", SEALED)))
    if names not in (PLAIN, SEALED):
        raise ValueError(f"an index of shards that is packed by {names}")
    return 16 * count + 4 * (len(names) - 1)


def read_index(shards: Mapping[str, Any], data: Bytes, size: int) -> Index:
    """Read where the chunks of a shard begin and how long they are; -1 and 0 for those it lacks.

    Raises
    ------
    ValueError
        It is damaged.
    """
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes for an index of {size}")
    found = (unsealed(data) if size % 16 else data).view("<u8").reshape(-1, 2)
    absent = (found == ABSENT).all(axis=1)
    if (found[~absent] >> np.uint64(62)).any():
        raise ValueError("a chunk beyond the end of any file")
    places: Index = np.where(absent[:, None], [[-1, 0]], found.astype(np.int64))
    return places


@lru_cache
def _pipeline(codecs: str, chunk: tuple[int, ...], stored: str) -> Pipeline:
    """Return the pipeline that all chunks of an array share."""
    return Pipeline(json.loads(codecs), chunk, np.dtype(stored))


def decode(
    block: Block, fetch: Fetch, *, codecs: str, chunk: tuple[int, ...], stored: str, fill: bytes
) -> Array:
    """Decode a chunk, of the shape that it has in the file: at the edges larger than the block.

    ``codecs`` are documents of zarr 3, ``stored`` is the type of the pixels, ``fill`` the value of
    those that are not there.
    """
    data = fetch(block.file, block.offset, block.offset + block.nbytes)
    dtype = np.dtype(stored)
    try:
        pixels = _pipeline(codecs, chunk, stored).decode(data, np.frombuffer(fill, dtype)[0])
    except Exception as error:
        raise CorruptFileError(
            "a chunk cannot be decoded",
            path=block.file.path,
            where=f"byte {block.offset}",
            expected=f"{chunk} {dtype.name}",
            found=str(error) or repr(error),
        ) from error
    lead = (1,) * (len(block.shape) - len(chunk))  # of what has no frames
    inside = tuple(slice(n) for n in block.shape)
    return pixels.reshape(lead + chunk)[inside].astype(
        dtype.newbyteorder("="), copy=bool(np.may_share_memory(data, pixels))
    )
