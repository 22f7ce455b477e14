"""Decoders of whole pieces: chunks with a codec pipeline, and chunks that were never written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.codecs.array_codecs import ARRAY_CODECS
from dask_tiled.codecs.byte_codecs import OF_IMAGECODECS, OF_NUMCODECS, as_numcodecs
from dask_tiled.codecs.hdf5_filters import kernel_of
from dask_tiled.codecs.pipeline import (
    BYTES,
    CODECS,
    Pipeline,
    kind_of,
    of_numcodecs,
    shared_pipeline,
)
from dask_tiled.codecs.shards import named
from dask_tiled.errors import CorruptFileError, DatasetError, Guard, require
from dask_tiled.model.blocks import Block, BlockRun, Fetch
from dask_tiled.model.decoders import UNIFORM, BlockDecoder, Decoder
from dask_tiled.model.indexing import Array, Bytes, Index


def chunk_decoder(
    codecs: Sequence[Any],
    chunk: tuple[int, ...],
    stored: np.dtype,
    dtype: np.dtype | None = None,
    *,
    fill: bytes = b"",
    unbounded: bool = False,
    called: str = "chunk",
) -> BlockDecoder:
    """Return the decoder of chunks, or of pieces of any shape.

    Parameters
    ----------
    codecs : sequence
        Documents of zarr 3, in the order in which a chunk is written.
    chunk : tuple of int
        Shape of a chunk in the file; empty for pieces of different shapes.
    stored : numpy.dtype
        Dtype of the stored pixels.
    dtype : numpy.dtype, optional
        Dtype of the decoded pixels; by default ``stored`` in native byte order.
    fill : bytes
        Value, in the dtype ``stored``, of chunks that a shard lacks.
    unbounded : bool
        As for :class:`~dask_tiled.codecs.pipeline.Pipeline`.
    called : {"chunk", "strip", "tile"}
        Name of chunks in the format. At the edges of the array, strips are stored without pixels
        outside, others are padded.
    """
    text = json.dumps(codecs, sort_keys=True)
    dtype = stored.newbyteorder("=") if dtype is None else dtype
    options = {"codecs": text, "chunk": chunk, "stored": stored, "dtype": dtype, "fill": fill}
    options |= {"called": called} | ({"unbounded": True} if unbounded else {})
    many = f"{__name__}:decode_many"
    return BlockDecoder(f"{__name__}:decode", dtype, tuple(options.items()), many=many)


def decode(
    block: Block,
    fetch: Fetch,
    *,
    codecs: str,
    chunk: tuple[int, ...],
    stored: np.dtype,
    dtype: np.dtype,
    fill: bytes,
    called: str,
    unbounded: bool = False,
) -> Array:
    """Decode a chunk in the shape that it has in the file: at the edges, larger than the block."""
    data = fetch(block.file, block.offset, block.offset + block.nbytes)
    shape = chunk or block.shape

    def place() -> dict[str, str]:
        names = ", ".join(one["name"] for one in json.loads(codecs))
        expected = f"{shape} {stored.name}, as {block.nbytes} bytes of {names}"
        return {"where": f"byte {block.offset}", "expected": expected}

    with Guard(block.file.path, f"a {called} cannot be decoded", place):
        value = np.frombuffer(fill, stored)[0] if fill else 0
        inside = block.shape[len(block.shape) - len(shape) :]  # some chunks have no frame axis
        pipeline = shared_pipeline(codecs, shape, stored, unbounded=unbounded)
        try:
            pixels = pipeline.decode(data, value, inside=inside)
        except ImportError:
            require("imagecodecs", "hdf5" if called == "chunk" else "tiff", block.file.path)
            raise
        if pixels.shape != inside:
            pixels = _cropped(pixels, inside)
    # Codecs that do not copy leave pixels in the fetched buffer, which is reused.
    shared = bool(np.may_share_memory(data, pixels))
    return pixels.reshape(block.shape).astype(dtype, copy=shared)


def _cropped(pixels: Array, inside: tuple[int, ...]) -> Array:
    """Crop pixels to the shape ``inside``."""
    cut = pixels[tuple(map(slice, inside))]
    if cut.shape != inside:
        raise ValueError(f"{pixels.shape} pixels")
    return cut


def decode_many(run: BlockRun, fetch: Fetch, out: Array, **options: Any) -> None:
    """Decode chunks that are one frame each into an array of frames, like :func:`decode`."""
    codecs, chunk, stored, dtype = (options[k] for k in ("codecs", "chunk", "stored", "dtype"))
    shape = chunk or run.shape

    def decode_apart(numbers: Iterable[int]) -> None:
        for k in numbers:
            pixels = decode(run.numbered(k), fetch, **options)
            out[run.frames[k]] = pixels.reshape(out.shape[1:])

    if not stored == dtype == out.dtype or math.prod(shape) != math.prod(run.shape):
        decode_apart(range(len(run.frames)))
        return
    unbounded = options.get("unbounded", False)
    pipeline = shared_pipeline(codecs, shape, stored, unbounded=unbounded)
    frames = out.reshape(len(out), -1)
    kernel, numbers = pipeline.kernel
    if kernel:
        into = partial(_compiled, kernel_of(kernel), numbers)
    else:
        value = np.frombuffer(options["fill"] or bytes(stored.itemsize), stored)[0]
        into = partial(_one_by_one, pipeline, value)
    for some, start, stop in run.spans():
        chunks = run.offsets[some] - start, run.sizes[some], run.frames[some]
        done = into(fetch(run.file, start, stop), *chunks, frames)
        decode_apart(range(some.start + done, some.stop))  # raises the error of the next chunk


def _compiled(
    kernel: Any,
    options: tuple[int, ...],
    data: Bytes,
    offsets: Index,
    sizes: Index,
    numbers: Index,
    frames: Array,
) -> int:
    """Decode chunks into frames with a kernel; return their number, up to the first damaged one."""
    out, nbytes = frames.reshape(-1).view(np.uint8), frames[0].nbytes
    return int(kernel(data, offsets, sizes, *options, out, nbytes * numbers, nbytes))


def _one_by_one(
    pipeline: Pipeline,
    fill: Any,
    data: Bytes,
    offsets: Index,
    sizes: Index,
    numbers: Index,
    frames: Array,
) -> int:
    """Decode chunks like :func:`_compiled`, with any codecs."""
    places = zip(offsets.tolist(), sizes.tolist(), numbers.tolist(), strict=True)
    for k, (offset, size, number) in enumerate(places):
        room = frames[number]
        try:
            pixels = pipeline.decode(data[offset : offset + size], fill, room.view(np.uint8))
        except Exception:  # noqa: BLE001 - codecs raise many errors
            return k
        if pixels.size != room.size:  # missing rows
            return k
        in_place = np.may_share_memory(room, pixels) and pixels.flags.c_contiguous
        if not in_place or not pixels.dtype.isnative:
            room[:] = pixels.reshape(-1)
    return len(sizes)


def codec(dtype: npt.DTypeLike, codecs: Mapping[str, Any] | Sequence[Any]) -> BlockDecoder:
    """Return the decoder of pieces that are compressed one by one.

    Parameters
    ----------
    dtype : dtype
        Dtype of the pixels before encoding, in C order, of either byte order.
    codecs : sequence, or mapping
        Documents of zarr 3, in the order in which a piece is written, such as ``[{"name": "bytes"},
        {"name": "gzip"}]``: ``bytes`` without ``endian`` stores pixels in the byte order of
        ``dtype``. Or the configuration of one numcodecs codec, such as ``{"id": "zlib"}``. The
        memory use of codecs that only numcodecs supports is not limited.

    Raises
    ------
    DatasetError
        A codec is unknown or not installed, or a document is invalid.
    """
    with refusing(codecs):
        if isinstance(codecs, Mapping):
            document = of_numcodecs(codecs)
            filters = document["name"] in ARRAY_CODECS
            codecs = [document, {"name": BYTES}] if filters else [{"name": BYTES}, document]
        documents = named(codecs)
        for one in documents:
            kind_of(one["name"], unbounded=True)
            if one["name"].startswith(OF_NUMCODECS):
                as_numcodecs(one["name"], one.get("configuration") or {})
        decoder = chunk_decoder(documents, (), np.dtype(dtype), unbounded=True)
        needs = needs_imagecodecs(decoder)
    if needs:
        require("imagecodecs", "hdf5", "a piece")
    return decoder


def of_shape(decoder: BlockDecoder, shape: tuple[int, ...]) -> BlockDecoder:
    """Return a decoder of :func:`codec` for pieces of one shape.

    Raise a DatasetError if the codecs do not suit such pieces, or are in an invalid order.
    """
    options = {**dict(decoder.options), "chunk": shape}
    with refusing(options["codecs"]):
        shared_pipeline(options["codecs"], shape, options["stored"], unbounded=True)
    return replace(decoder, options=tuple(options.items()))


@contextmanager
def refusing(codecs: Any, path: str | None = None) -> Iterator[None]:
    """Convert errors of invalid or unknown codecs to errors of this package.

    Parameters
    ----------
    codecs : object
        Codecs from a user or a file.
    path : str, optional
        The file; by default codecs come from a user, who may install more.

    Raises
    ------
    DatasetError
        A codec is not supported, or codecs of a user are invalid.
    CorruptFileError
        Codecs of a file are invalid.
    """
    hint = 'Some codecs of numcodecs are extras: pip install "numcodecs[zfpy]".'
    try:
        yield
    except NotImplementedError as error:
        raise DatasetError(
            "unsupported codec",
            path=path,
            expected=CODECS,
            found=str(error),
            hint=None if path else hint,
        ) from error
    except Exception as error:
        problem, told = "invalid codecs", str(error) or repr(error)
        if path:
            raise CorruptFileError(problem, path=path, where="codecs", found=told) from error
        expected = "documents of zarr 3, or a configuration for numcodecs"
        raise DatasetError(problem, expected=expected, found=f"{codecs}: {told}") from error


def needs_imagecodecs(decoder: Decoder | BlockDecoder) -> bool:
    """Return whether a decoder has codecs that only imagecodecs decodes."""
    options = dict(decoder.options) if isinstance(decoder, BlockDecoder) else {}
    codecs = json.loads(options.get("codecs", "[]"))
    inside = {(one.get("configuration") or {}).get("cname") for one in codecs}
    return "snappy" in inside or any(one["name"] in OF_IMAGECODECS for one in codecs)


def unwritten(dtype: np.dtype, pixel: bytes) -> BlockDecoder:
    """Return the decoder of unwritten pieces, which hold one value.

    Parameters
    ----------
    dtype, pixel : numpy.dtype, bytes
        Dtype of the pixels, in native byte order, and the value in this dtype.
    """
    return BlockDecoder(UNIFORM, dtype, (("dtype", dtype), ("pixel", pixel)))


def fill(block: Block, fetch: Fetch, *, dtype: np.dtype, pixel: bytes) -> Array:
    """Return a block filled with one value."""
    return np.broadcast_to(np.frombuffer(pixel, dtype, 1)[0], block.shape)
