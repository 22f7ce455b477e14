"""From the pixels of whole zarr chunks to the bytes that are stored, in the thread that calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import zarr

Region = tuple[slice, ...]


class Encoder:
    """Makes the bytes of what a zarr array stores: a shard, or a chunk where it has no shards.

    zarr's own pipeline goes through an event loop and copies more than once; the codecs that
    nearly everyone uses are called directly instead. Others are called by zarr.

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

    def keys(self, box: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, Region]]:
        """List what is stored of a box, which no other box shares: keys, and where in the array."""
        numbers = (range(a // n, -(-b // n)) for (a, b), n in zip(box, self.stored, strict=True))
        for place in product(*numbers):
            bounds = zip(place, self.stored, self.shape, strict=True)
            region = tuple(slice(k * n, min((k + 1) * n, size)) for k, n, size in bounds)
            yield "/".join(["c", *map(str, place)]), region

    def encode(self, pixels: npt.NDArray[Any]) -> bytes:
        """Encode the pixels of a shard or a chunk. At the end of an axis there may be fewer."""
        if self.shard is None:
            return self._encode_chunk(pixels)
        # As zarr's sharding codec has it: the chunks in C order, then where each begins and how
        # long it is, then a checksum of that. What is beyond the array is marked as absent.
        counts = [n // k for n, k in zip(self.shard, self.chunk, strict=True)]
        index = np.full((*counts, 2), 2**64 - 1, dtype="<u8")
        parts, length = list[bytes](), 0
        for place in product(*map(range, counts)):
            inner = zip(place, self.chunk, strict=True)
            some = pixels[tuple(slice(k * n, (k + 1) * n) for k, n in inner)]
            if some.size:
                parts.append(self._encode_chunk(some))
                index[place] = length, len(parts[-1])
                length += len(parts[-1])
        return b"".join([*parts, with_checksum(index.tobytes())])

    def _encode_chunk(self, pixels: npt.NDArray[Any]) -> bytes:
        if pixels.shape != self.chunk:
            whole = np.full(self.chunk, self.fill_value, self.dtype)
            whole[tuple(map(slice, pixels.shape))] = pixels
            pixels = whole
        direct = self._direct()
        if direct is None:
            return self._encode_by_zarr(pixels)
        data: Any = np.ascontiguousarray(pixels, self.dtype.newbyteorder("<"))
        for codec in direct:
            data = codec(data)
        return data.tobytes() if isinstance(data, np.ndarray) else data

    def _direct(self) -> list[Any] | None:
        """Give the functions that a chunk goes through; None where zarr has to call its codecs."""
        serializer = self.codecs["serializer"].to_dict()
        plain = self.dtype.kind in "biufc" and serializer["name"] == "bytes"
        if not plain or self.codecs["filters"] or not _is_little(serializer):
            return None
        found = [_direct_codec(codec.to_dict()) for codec in self.codecs["compressors"]]
        return None if None in found else found

    def _encode_by_zarr(self, pixels: npt.NDArray[Any]) -> bytes:
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


def _direct_codec(codec: dict[str, Any]) -> Any:
    """Give the function of numcodecs that does what a codec of zarr says; None for others."""
    from numcodecs import GZip, Zstd
    from numcodecs.blosc import Blosc

    given = codec.get("configuration", {})
    if codec["name"] == "crc32c":
        return with_checksum
    if codec["name"] == "zstd":
        return Zstd(given["level"], checksum=given["checksum"]).encode
    if codec["name"] == "gzip":
        return GZip(given["level"]).encode
    if codec["name"] == "blosc":
        shuffle = ("noshuffle", "shuffle", "bitshuffle").index(given["shuffle"])
        return Blosc(
            given["cname"], given["clevel"], shuffle, given["blocksize"], given["typesize"]
        ).encode
    return None


def with_checksum(data: Any) -> bytes:
    """Append the CRC32C of bytes, as zarr's codec of that name does."""
    return b"".join((data, crc32c(data).to_bytes(4, "little")))


def crc32c(data: Any) -> int:
    """Give the CRC32C of bytes or of an array in C order."""
    from google_crc32c import value

    view = np.frombuffer(data, "u1") if len(data) else np.empty(0, "u1")
    view.flags.writeable = False  # what it takes
    return int(value(view))


def fingerprint(data: bytes) -> list[int]:
    """Give what tells stored bytes from any others: length, CRC32C, and sum of 64-bit words.

    The CRC32C of bytes that end with their own CRC32C depends on their number alone: it tells
    damage, but not one chunk from another.
    """
    words = np.frombuffer(data, "<u8", count=len(data) // 8)
    return [len(data), crc32c(data), int(words.sum(dtype="u8"))]
