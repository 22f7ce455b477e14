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
from dask_tiled.formats.tools.compression import check_room
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.decoders import BlockDecoder

Bytes = npt.NDArray[np.uint8]

NAMES = {"zlib": "deflate", "gzip": "deflate", "bz2": "bzip2"}
"""What numcodecs calls otherwise than :data:`~dask_tiled.formats.tools.compression.RATIOS` does."""
STREAMS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "zlib": lambda _: zlib.decompressobj(),
    "gzip": lambda _: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "bz2": lambda _: bz2.BZ2Decompressor(),
    "lzma": lambda config: lzma.LZMADecompressor(config["format"], None, config["filters"]),
}
"""What decompresses up to some number of bytes, and no more."""
LENGTHS = {"lz4": 0, "blosc": 4}
"""At which byte it stands how long all will be."""


def codec(dtype: npt.DTypeLike, config: Mapping[str, Any]) -> BlockDecoder:
    """Give the decoder of pieces that were compressed one by one.

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


def decode(block: Block, fetch: Fetch, *, config: str, stored: str) -> npt.NDArray[Any]:
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


def unpacked(config: Mapping[str, Any], packed: Bytes, wanted: int) -> Any:
    """Decompress, with room for so many bytes where the codec can be told; or else what it takes.

    Raises
    ------
    ValueError
        It claims others, or what no codec could make of it. Codecs have errors of their own, too.
    """
    import numcodecs

    name = config["id"]
    check_room(NAMES.get(name, name), len(packed), wanted)
    if name in STREAMS:
        stream = STREAMS[name](numcodecs.get_codec(dict(config)).get_config())
        content = stream.decompress(packed.data, wanted + 1)
        if not stream.eof:
            raise ValueError(f"no end after {len(content)} bytes")
        return content
    if name == "zstd":
        out = np.empty(wanted, np.uint8)
        unzstd(packed, out)
        return out
    if name in LENGTHS:
        at = LENGTHS[name]
        claimed = int.from_bytes(packed[at : at + 4].tobytes(), "little")
        if claimed != wanted:
            raise ValueError(f"{claimed} bytes, as it says")
    return numcodecs.get_codec(dict(config)).decode(packed)


def unzstd(packed: Bytes, out: Bytes) -> None:
    """Decompress Zstandard; numcodecs does not tell how much it has made.

    Raises
    ------
    ValueError, RuntimeError
        It is damaged, or something else than so many bytes.
    """
    from numcodecs import Zstd

    Zstd().decode(packed, out)
    head = packed[:18].tobytes()
    single, flag = head[4] >> 5 & 1, head[4] >> 6
    at, length = 6 - single + (0, 1, 2, 4)[head[4] & 3], (single, 2, 4, 8)[flag]
    claimed = int.from_bytes(head[at : at + length], "little") + 256 * (flag == 1)
    if not length or claimed != len(out):  # it does not say, or there is more than one frame
        again = ~out
        Zstd().decode(packed, again)
        if (again != out).any():
            raise ValueError(f"fewer bytes than {len(out)}")


def unwritten(dtype: np.dtype, pixel: bytes) -> BlockDecoder:
    """Give the decoder of pieces that were never written: one value all over.

    Parameters
    ----------
    dtype, pixel : numpy.dtype, bytes
        Type of the pixels, in native byte order, and the value as that type.
    """
    return BlockDecoder(f"{__name__}:fill", dtype, (("dtype", dtype), ("pixel", pixel)))


def fill(block: Block, fetch: Fetch, *, dtype: np.dtype, pixel: bytes) -> npt.NDArray[Any]:
    """Give one value as often as it is asked for."""
    return np.broadcast_to(np.frombuffer(pixel, dtype, 1)[0], block.shape)
