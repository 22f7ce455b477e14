"""Pieces that a codec of numcodecs has compressed, and pieces that no file holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.decoders import BlockDecoder


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
    import numcodecs

    dtype = np.dtype(stored)
    packed = fetch(block.file, block.offset, block.offset + block.nbytes)
    wanted = math.prod(block.shape) * dtype.itemsize
    try:
        content = numcodecs.get_codec(json.loads(config)).decode(packed)
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
