"""Pieces that a codec of numcodecs has compressed."""

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
    return BlockDecoder("dask_tiled.formats.tools.codecs:decode", stored.newbyteorder("="), options)


def decode(block: Block, fetch: Fetch, *, config: str, stored: str) -> npt.NDArray[Any]:
    """Decompress a piece.

    Raises
    ------
    CorruptFileError
        It cannot be decompressed, or is of another size.
    """
    import numcodecs

    dtype = np.dtype(stored)
    data = fetch(block.file, block.offset, block.offset + block.nbytes)
    try:
        found = numcodecs.get_codec(json.loads(config)).decode(data)
    except Exception as error:
        raise CorruptFileError(
            "a piece cannot be decompressed",
            path=block.file.path,
            where=f"byte {block.offset}",
            expected=f"{block.nbytes} bytes of {config}",
            found=repr(error),
        ) from error
    pixels = np.frombuffer(np.ascontiguousarray(found), np.uint8)
    wanted = math.prod(block.shape) * dtype.itemsize
    if len(pixels) != wanted:
        raise CorruptFileError(
            "a piece decompresses to another size",
            path=block.file.path,
            where=f"byte {block.offset}",
            expected=f"{wanted} bytes",
            found=f"{len(pixels)} bytes",
        )
    return pixels.view(dtype).reshape(block.shape).astype(dtype.newbyteorder("="), copy=False)
