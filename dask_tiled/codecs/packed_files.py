"""Files that are compressed as a whole, or from an offset on."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from dask_tiled.codecs.streams import BROKEN, STEP, ZLIB, most_streamed, open_stream, stream_codec
from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.files.file import File, is_refusal, opened, read_head
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.model.indexing import Array

MOST_BEFORE = 1 << 28
"""Maximum number of bytes decompressed before pixels at the end of a file."""


def is_compressed(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is compressed as a whole."""
    return _is_packed(read_head(path, 8))


def _is_packed(head: bytes) -> bool:
    return stream_codec(head)["name"] != ZLIB


def read_start(path: str | os.PathLike[str], nbytes: int, head: bytes | None = None) -> bytes:
    """Read the first bytes of a file's content, decompressed if needed; fewer if it ends.

    Parameters
    ----------
    path : path-like
    nbytes : int
    head : bytes, optional
        First bytes of the file, if known. They are returned if the file is not compressed.

    Raises
    ------
    CorruptFileError
        It cannot be decompressed.
    """
    head = read_head(path, nbytes) if head is None else head
    if not _is_packed(head):
        return head
    with opened(path) as content, _opened(content, stream_codec(head), path) as stream:
        return bytes(stream.read(nbytes))


@contextmanager
def content_reader(path: str | os.PathLike[str]) -> Iterator[Callable[[int, int], bytes]]:
    """Open a file for reading parts of its content, decompressed if the whole file is compressed.

    Parameters
    ----------
    path : str or path-like
        The file.

    Yields
    ------
    callable
        ``read(nbytes, at)`` returns up to ``nbytes`` bytes from byte ``at`` on. For compressed
        files it is fast in ascending order only.

    Raises
    ------
    CorruptFileError
        It cannot be decompressed.
    """
    head = read_head(path, 8)
    if not _is_packed(head):
        yield partial(read_head, path)
        return
    with opened(path) as file, _opened(file, stream_codec(head), path) as stream:

        def read(nbytes: int, at: int) -> bytes:
            stream.seek(at)
            return bytes(stream.read(nbytes))

        yield read


def packed_by(file: File, nbytes: int = 0, at: int = 0) -> dict[str, Any]:
    """Return the codec of the data from byte ``at`` on, as a zarr 3 document.

    Parameters
    ----------
    file : File
    nbytes : int
        Required number of decompressed bytes.
    at : int

    Raises
    ------
    TruncatedFileError
        The compressed data are too short for ``nbytes``.
    """
    codec = stream_codec(read_head(file.path, 8, at))
    most = most_streamed(codec, file.size - at)
    if nbytes > most:
        problem = "a compressed file of this size cannot hold the pixels"
        expected, found = f"{nbytes} bytes, decompressed", f"at most {most}"
        raise TruncatedFileError(problem, path=file.path, expected=expected, found=found)
    return codec


def unpacker(
    dtype: np.dtype,
    offset: int = 0,
    *,
    codec: Mapping[str, Any],
    exact: bool = False,
    moved: np.dtype | None = None,
) -> BlockDecoder:
    """Return the decoder of pixels in a compressed file.

    Parameters
    ----------
    dtype : numpy.dtype
        Type in the file, of either byte order.
    offset : int
        Number of decompressed bytes before the pixels; -1 if the pixels are the last bytes.
    codec : mapping
        The codec, as :func:`packed_by` returns it.
    exact : bool
        Whether decompressed bytes after the pixels are an error.
    moved : numpy.dtype, optional
        Integer dtype of pixels that are stored with the opposite signedness, shifted by half
        of the range.
    """
    shown = moved or dtype.newbyteorder("=")
    options = {"packed_by": codec["name"], "offset": offset, "dtype": dtype.str, "exact": exact}
    options["moved"] = moved and moved.str
    return BlockDecoder(f"{__name__}:decode", shown, tuple(options.items()))


def decode(
    block: Block,
    fetch: Fetch,
    *,
    packed_by: str,
    offset: int,
    dtype: str,
    exact: bool,
    moved: str | None,
) -> Array:
    """Decompress a file, and return its pixels."""
    packed, path = fetch(block.file, block.offset, block.offset + block.nbytes), block.file.path
    pixels = np.empty(block.shape, np.dtype(dtype))
    wanted, filled, skip = pixels.reshape(-1).view(np.uint8), 0, max(offset, 0)
    most = len(wanted) + (MOST_BEFORE if offset < 0 else 0)
    with _opened(io.BytesIO(packed.data), {"name": packed_by}, path) as stream:
        if skip:
            stream.seek(skip)
        while filled < most:
            at = filled % len(wanted)  # a ring buffer: only the last bytes are kept
            count = stream.readinto(wanted.data[at : at + min(STEP, most - filled)])
            if not count:
                break
            filled += count
        more = stream.read(STEP)  # reads to the end, as the checksum is there
    if filled < len(wanted):
        problem = "the decompressed file ends inside the pixels"
        expected, found = (f"{skip + n} bytes" for n in (len(wanted), filled))
        raise TruncatedFileError(problem, path=path, expected=expected, found=found)
    if more and (exact or offset < 0):
        problem, expected = "the decompressed file is too long", f"{skip + most} bytes at most"
        raise CorruptFileError(problem, path=path, expected=expected, found="more bytes")
    if filled % len(wanted):
        wanted[:] = np.roll(wanted, -filled)
    pixels = pixels.astype(pixels.dtype.newbyteorder("="), copy=False)
    return pixels if moved is None else shifted(pixels, moved)


def shifted(pixels: Array, moved: str) -> Array:
    """Return integers of the opposite signedness, shifted by half of their range."""
    unsigned = np.dtype(f"u{pixels.itemsize}")
    return (pixels.view(unsigned) ^ unsigned.type(1 << 8 * pixels.itemsize - 1)).view(moved)


@contextmanager
def _opened(file: Any, codec: Mapping[str, Any], path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a stream for decompression; raise CorruptFileError for its errors."""
    try:
        with open_stream(codec, file) as stream:
            yield stream
    except DatasetError:  # raised inside the context
        raise
    except BROKEN as error:
        if is_refusal(error):
            raise
        raise CorruptFileError(
            "the file cannot be decompressed", path=path, found=repr(error)
        ) from error
