"""Pieces that a codec of numcodecs has compressed, and pieces that no file holds."""

from __future__ import annotations

import bz2
import json
import lzma
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.formats.tools.compression import SMALL, most_bytes
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.model.indexing import Array

Bytes = npt.NDArray[np.uint8]

NAMES = {"zlib": "deflate", "gzip": "deflate", "bz2": "bzip2"}
"""What numcodecs calls otherwise than :data:`~dask_tiled.formats.tools.compression.RATIOS` does."""
STREAMS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "zlib": lambda _: zlib.decompressobj(),
    "gzip": lambda _: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "bz2": lambda _: bz2.BZ2Decompressor(),
    "lzma": lambda config: _lzma(**config),
}
"""What decompresses up to some number of bytes, and no more, for a configuration."""
LENGTHS = {"lz4": 0, "blosc": 4}
"""At which byte it stands how long all will be."""


def codec(dtype: npt.DTypeLike, config: Mapping[str, Any]) -> BlockDecoder:
    """Return the decoder of pieces that were compressed one by one.

    Parameters
    ----------
    dtype : dtype
        Type of the pixels before they were compressed, in C order, of either byte order.
    config : mapping
        Configuration of a codec of numcodecs, such as ``{"id": "zlib"}``.

    Raises
    ------
    DatasetError
        numcodecs has no such codec.
    """
    import numcodecs

    try:
        numcodecs.get_codec(dict(config))
    except Exception as error:
        raise DatasetError(
            "no such codec", expected="a configuration for numcodecs", found=dict(config)
        ) from error
    stored = np.dtype(dtype)
    options = (("config", json.dumps(dict(config), sort_keys=True)), ("stored", stored.str))
    return BlockDecoder(f"{__name__}:decode", stored.newbyteorder("="), options)


def decode(block: Block, fetch: Fetch, *, config: str, stored: str) -> Array:
    """Decompress a piece."""
    dtype = np.dtype(stored)
    packed = fetch(block.file, block.offset, block.offset + block.nbytes)
    wanted = math.prod(block.shape) * dtype.itemsize
    try:
        content = unpacked(json.loads(config), packed, wanted)
        pixels = np.frombuffer(np.ascontiguousarray(content), np.uint8)
        if len(pixels) != wanted:
            raise ValueError(f"another size: {len(pixels)} bytes")  # noqa: TRY301
    except Exception as error:
        path, where = block.file.path, f"byte {block.offset}"
        problem, found = "a piece cannot be decompressed", repr(error)
        expected = f"{wanted} bytes, as {block.nbytes} of {config}"
        raise CorruptFileError(
            problem, path=path, where=where, expected=expected, found=found
        ) from error
    return pixels.view(dtype).reshape(block.shape).astype(dtype.newbyteorder("="), copy=False)


def unpacked(config: Mapping[str, Any], packed: Bytes, most: int) -> Any:
    """Decompress at most so many bytes, where the codec can be told; or else what it takes.

    Raises
    ------
    ValueError
        There are more, or it ends too early. Codecs have errors of their own, too.
    """
    import numcodecs

    name = config["id"]
    most = min(most, most_bytes(NAMES.get(name, name), len(packed)))
    if name in STREAMS:
        stream = STREAMS[name](config)
        content = stream.decompress(packed.data, most + 1)
        if not stream.eof:
            raise ValueError(f"no end after {len(content)} bytes")
        return content
    if name == "zstd":
        out = np.empty(most, np.uint8)
        return out[: unzstd(packed, out)]
    if name in LENGTHS:
        at = LENGTHS[name]
        claimed = int.from_bytes(packed[at : at + 4].tobytes(), "little")
        if claimed > most:
            raise ValueError(f"{claimed} bytes, as it says, where {most} can be at most")
    return numcodecs.get_codec(dict(config)).decode(packed)


def _lzma(format: int = lzma.FORMAT_XZ, filters: Any = None, **_: Any) -> lzma.LZMADecompressor:
    limit = None if format == lzma.FORMAT_RAW else SMALL  # the window that a header asks for
    return lzma.LZMADecompressor(format, limit, filters)


def unzstd(packed: Bytes, out: Bytes) -> int:
    """Decompress Zstandard, and tell how many bytes that makes, which numcodecs does not.

    Raises
    ------
    ValueError, RuntimeError
        It is damaged, or there are more bytes than room.
    """
    from numcodecs import Zstd

    Zstd().decode(packed, out)
    head = packed[:18].tobytes()
    single, flag = head[4] >> 5 & 1, head[4] >> 6
    at, length = 6 - single + (0, 1, 2, 4)[head[4] & 3], (single, 2, 4, 8)[flag]
    claimed = int.from_bytes(head[at : at + length], "little") + 256 * (flag == 1)
    if length and claimed == len(out):
        return claimed
    again = ~out  # it does not say, there are fewer bytes, or more than one frame
    Zstd().decode(packed, again)
    return int(np.count_nonzero(again == out))


def unwritten(dtype: np.dtype, pixel: bytes) -> BlockDecoder:
    """Return the decoder of pieces that were never written: one value all over.

    Parameters
    ----------
    dtype, pixel : numpy.dtype, bytes
        Type of the pixels, in native byte order, and the value as that type.
    """
    return BlockDecoder(f"{__name__}:fill", dtype, (("dtype", dtype), ("pixel", pixel)))


def fill(block: Block, fetch: Fetch, *, dtype: np.dtype, pixel: bytes) -> Array:
    """Return one value as often as it is asked for."""
    return np.broadcast_to(np.frombuffer(pixel, dtype, 1)[0], block.shape)
