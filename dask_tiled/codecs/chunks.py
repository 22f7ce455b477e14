"""Pieces that decode only as a whole: chunks with a pipeline of codecs, and those never written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.codecs.array_codecs import ARRAY_CODECS
from dask_tiled.codecs.byte_codecs import BYTE_CODECS, OF_IMAGECODECS
from dask_tiled.codecs.pipeline import BYTES, of_numcodecs, shared_pipeline
from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.decoders import BlockDecoder, Decoder
from dask_tiled.model.indexing import Array


def chunk_decoder(
    codecs: Sequence[Any],
    chunk: tuple[int, ...],
    stored: np.dtype,
    dtype: np.dtype | None = None,
    *,
    fill: bytes = b"",
) -> BlockDecoder:
    """Return the decoder of chunks, or of pieces of any shape.

    Parameters
    ----------
    codecs : sequence
        Documents of zarr 3, in the order in which a chunk is written.
    chunk : tuple of int
        Shape of a chunk in the file; empty for pieces that have a shape each.
    stored : numpy.dtype
        Type of the pixels that the codecs were given.
    dtype : numpy.dtype, optional
        Type of the pixels that are read, if that is another one.
    fill : bytes
        Value, as ``stored``, of chunks that a shard lacks.
    """
    text = json.dumps(codecs, sort_keys=True)
    dtype = stored.newbyteorder("=") if dtype is None else dtype
    options = {"codecs": text, "chunk": chunk, "stored": stored, "dtype": dtype, "fill": fill}
    return BlockDecoder(f"{__name__}:decode", dtype, tuple(options.items()))


def decode(
    block: Block,
    fetch: Fetch,
    *,
    codecs: str,
    chunk: tuple[int, ...],
    stored: np.dtype,
    dtype: np.dtype,
    fill: bytes,
) -> Array:
    """Decode a chunk, of the shape that it has in the file: at the edges larger than the block."""
    data = fetch(block.file, block.offset, block.offset + block.nbytes)
    shape = chunk or block.shape
    try:
        value = np.frombuffer(fill, stored)[0] if fill else 0
        pixels = shared_pipeline(codecs, shape, stored).decode(data, value)
    except Exception as error:
        names = ", ".join(one["name"] for one in json.loads(codecs))
        raise CorruptFileError(
            "a chunk cannot be decoded",
            path=block.file.path,
            where=f"byte {block.offset}",
            expected=f"{shape} {stored.name}, as {block.nbytes} bytes of {names}",
            found=str(error) or repr(error),
        ) from error
    lead = (1,) * (len(block.shape) - len(shape))  # of what has no frames
    inside = tuple(slice(n) for n in block.shape)
    # Some codecs leave the bytes where they are, which is not theirs for long.
    shared = bool(np.may_share_memory(data, pixels))
    return pixels.reshape(lead + shape)[inside].astype(dtype, copy=shared)


def codec(dtype: npt.DTypeLike, config: Mapping[str, Any]) -> BlockDecoder:
    """Return the decoder of pieces that a codec of numcodecs has compressed one by one.

    Parameters
    ----------
    dtype : dtype
        Type of the pixels before they were compressed, in C order, of either byte order.
    config : mapping
        Configuration of the codec, such as ``{"id": "zlib"}``.

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
    stored, document = np.dtype(dtype), of_numcodecs(config)
    if document["name"] in ARRAY_CODECS:
        return chunk_decoder([document, {"name": BYTES}], (), stored)
    if document["name"] in BYTE_CODECS:
        return chunk_decoder([{"name": BYTES}, document], (), stored)
    options = {"config": json.dumps(dict(config), sort_keys=True), "stored": stored}
    native = stored.newbyteorder("=")
    return BlockDecoder(f"{__name__}:decode_by_numcodecs", native, tuple(options.items()))


def decode_by_numcodecs(block: Block, fetch: Fetch, *, config: str, stored: np.dtype) -> Array:
    """Decode a piece by a codec that has no bounds, which the user has asked for."""
    import numcodecs

    packed = fetch(block.file, block.offset, block.offset + block.nbytes)
    try:
        content = numcodecs.get_codec(json.loads(config)).decode(packed)
        pixels = np.frombuffer(np.ascontiguousarray(content), stored).reshape(block.shape)
    except Exception as error:
        raise CorruptFileError(
            "a piece cannot be decompressed",
            path=block.file.path,
            where=f"byte {block.offset}",
            expected=f"{block.shape} {stored.name}, as {block.nbytes} bytes of {config}",
            found=repr(error),
        ) from error
    return pixels.astype(stored.newbyteorder("="))


def needs_imagecodecs(decoder: Decoder | BlockDecoder) -> bool:
    """Return whether a decoder has codecs that only imagecodecs undoes."""
    options = dict(decoder.options) if isinstance(decoder, BlockDecoder) else {}
    codecs = json.loads(options.get("codecs", "[]"))
    inside = {one.get("configuration", {}).get("cname") for one in codecs}
    return "snappy" in inside or any(one["name"] in OF_IMAGECODECS for one in codecs)


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
