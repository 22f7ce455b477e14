"""From the pixels of whole zarr chunks to the bytes that are stored, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_tiled.export.parts import Part
from dask_tiled.model.indexing import Array, Box

if TYPE_CHECKING:
    import zarr

ABSENT = 2**64 - 1
"""What the index of a shard has of a chunk that is not there."""

Region = tuple[slice, ...]


class Encoder:
    """Makes the bytes of what a zarr array stores: a shard, or a chunk where it has no shards.

    zarr's own pipeline goes through an event loop and copies more than once; the codecs that
    nearly everyone uses are called directly instead, in the thread that calls. Others are called
    by zarr.

    Parameters
    ----------
    array : zarr.Array
        What it says of itself is taken from it, no pixels.
    """

    def __init__(self, array: zarr.Array[Any]) -> None:
        self.shape = array.shape
        self.dtype = array.dtype
        self.chunk: tuple[int, ...] = array.chunks
        self.shard = array.shards
        self.fill_value = array.fill_value
        self.codecs: dict[str, Any] = {
            "filters": array.filters,
            "serializer": array.serializer,
            "compressors": array.compressors,
        }

    @property
    def stored(self) -> tuple[int, ...]:
        """Shape of what is stored under one key."""
        return self.shard or self.chunk

    def keys(self, box: Box) -> Iterator[tuple[str, Region]]:
        """List what is stored of a box, which no other box shares: keys, and where in the array."""
        numbers = (range(a // n, -(-b // n)) for (a, b), n in zip(box, self.stored, strict=True))
        for place in product(*numbers):
            bounds = zip(place, self.stored, self.shape, strict=True)
            region = tuple(slice(k * n, min((k + 1) * n, size)) for k, n, size in bounds)
            yield "/".join(["c", *map(str, place)]), region

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks in what is stored under one key, along each axis."""
        return tuple(n // k for n, k in zip(self.stored, self.chunk, strict=True))

    def encode(self, parts: Iterable[Part]) -> bytearray:
        """Encode the chunks of a shard, or the one that is stored by itself."""
        stored, codecs = bytearray(), self.direct()
        # As zarr's sharding codec has it: the chunks in C order, then where each begins and how
        # long it is, then a checksum of that. What is beyond the array is marked as absent.
        index = np.full((*self.counts, 2), ABSENT, dtype="<u8")
        for place, pixels in parts:
            start = len(stored)
            stored += self._encode_chunk(pixels, codecs)
            index[place] = start, len(stored) - start
        if self.shard is not None:
            stored += with_checksum(index.tobytes())
        return stored

    def decode(self, data: Any, codecs: Sequence[Direct], out: Array) -> None:
        """Decode a chunk, by what ``direct`` gives.

        Raises
        ------
        ValueError, RuntimeError
            It is damaged.
        """
        for k, codec in reversed(list(enumerate(codecs))):
            data = codec.decode(data, out if k == 0 and codec.fills else None)
        if data is not out:
            out[...] = np.frombuffer(data, out.dtype).reshape(out.shape)

    def _encode_chunk(self, pixels: Array, codecs: list[Direct] | None) -> Any:
        if pixels.shape != self.chunk:
            whole = np.full(self.chunk, self.fill_value, self.dtype)
            whole[tuple(map(slice, pixels.shape))] = pixels
            pixels = whole
        if codecs is None:
            return self._encode_by_zarr(pixels)
        data: Any = np.ascontiguousarray(pixels, self.dtype.newbyteorder("<"))
        for codec in codecs:
            data = codec.encode(data)
        return data.data.cast("B") if isinstance(data, np.ndarray) else data

    def direct(self) -> list[Direct] | None:
        """Return the codecs that a chunk goes through; None where zarr has to call its own."""
        serializer = self.codecs["serializer"].to_dict()
        plain = self.dtype.kind in "biufc" and serializer["name"] == "bytes"
        if not plain or self.codecs["filters"] or not _is_little(serializer):
            return None
        found = [_direct_codec(codec.to_dict()) for codec in self.codecs["compressors"]]
        return None if None in found else [codec for codec in found if codec is not None]

    def _encode_by_zarr(self, pixels: Array) -> bytes:
        import zarr

        contents: dict[str, Any] = {}
        array = zarr.create_array(
            zarr.storage.MemoryStore(contents),
            shape=self.chunk,
            chunks=self.chunk,
            dtype=self.dtype,
            fill_value=self.fill_value,
            config={"write_empty_chunks": True},
            zarr_format=3,
            **self.codecs,
        )
        array[...] = pixels
        return contents["/".join(["c", *("0" for _ in self.chunk)])].to_bytes()


def _is_little(serializer: dict[str, Any]) -> bool:
    return serializer.get("configuration", {}).get("endian", "little") == "little"


class Direct(NamedTuple):
    """A codec as functions."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any, Any], Any]
    """Also takes the array to decode into, or None."""
    fills: bool = True
    """Whether it makes use of that."""


def _direct_codec(codec: dict[str, Any]) -> Direct | None:
    """Return the functions of numcodecs that do what a codec of zarr says; None for others."""
    from numcodecs import GZip, Zstd
    from numcodecs.blosc import Blosc

    given, made = codec.get("configuration", {}), None
    if codec["name"] == "crc32c":
        return Direct(with_checksum, without_checksum, fills=False)
    if codec["name"] == "zstd":
        made = Zstd(given["level"], checksum=given["checksum"])
    if codec["name"] == "gzip":
        made = GZip(given["level"])
    if codec["name"] == "blosc":
        shuffle = ("noshuffle", "shuffle", "bitshuffle").index(given["shuffle"])
        made = Blosc(
            given["cname"], given["clevel"], shuffle, given["blocksize"], given["typesize"]
        )
        return Direct(made.encode, partial(_decode_blosc, made))
    return None if made is None else Direct(made.encode, made.decode)


def _decode_blosc(codec: Any, data: Any, out: Any) -> Any:
    """Decode what is whole: Blosc believes what the bytes say of themselves, and reads on."""
    found = memoryview(data).cast("B")
    expected = int.from_bytes(found[12:16], "little") if len(found) >= 16 else 16
    if len(found) < expected:
        raise ValueError(f"{len(found)} bytes are there, {expected} are expected")
    return codec.decode(data, out)


def with_checksum(data: Any) -> bytes:
    """Append the CRC32C of bytes, as zarr's codec of that name does."""
    return b"".join((data, crc32c(data).to_bytes(4, "little")))


def without_checksum(data: Any, _: object = None) -> memoryview:
    """Check the CRC32C that bytes end with, and take it off."""
    data = memoryview(data)
    if len(data) < 4:
        raise ValueError(f"{len(data)} bytes are there, the checksum alone has 4")
    found, stored = crc32c(data[:-4]), int.from_bytes(data[-4:], "little")
    if found != stored:
        raise ValueError(f"the checksum is {stored:#010x}, that of the bytes is {found:#010x}")
    return data[:-4]


def crc32c(data: Any) -> int:
    """Return the CRC32C of bytes or of an array in C order."""
    from google_crc32c import value

    view = np.frombuffer(data, "u1") if memoryview(data).nbytes else np.empty(0, "u1")
    view.flags.writeable = False  # what it takes
    return int(value(view))


def fingerprint(data: bytes | bytearray) -> list[int]:
    """Return what tells stored bytes from any others: length, CRC32C, and sum of 64-bit words.

    The CRC32C of bytes that end with their own CRC32C depends on their number alone: it tells
    damage, but not one chunk from another.
    """
    words = np.frombuffer(data, "<u8", count=len(data) // 8)
    return [len(data), crc32c(data), int(words.sum(dtype="u8"))]
