"""Files that are compressed as a whole: gzip, bzip2 and xz."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import os
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.coded import Block, Fetch
from dask_tiled.decoders import BlockDecoder
from dask_tiled.errors import CorruptFileError, TruncatedFileError
from dask_tiled.files import File, read_head
from dask_tiled.layout import Layout
from dask_tiled.pieces import Piece

OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""What a compressed file begins with, and what reads it."""
BROKEN = (OSError, EOFError, ValueError, OverflowError, MemoryError, zlib.error, lzma.LZMAError)


def is_compressed(head: bytes) -> bool:
    """Tell whether a file that begins with these bytes is compressed as a whole."""
    return head.startswith(tuple(OPENERS))


def read_start(path: str | os.PathLike[str], nbytes: int) -> bytes:
    """Read the first bytes of what a file holds, whether it is compressed or not; fewer if it ends.

    Raises
    ------
    CorruptFileError
        It cannot be decompressed.
    """
    head = read_head(path, nbytes)
    if not is_compressed(head):
        return head
    try:
        with _opened(path, head) as stream:
            return bytes(stream.read(nbytes))
    except BROKEN as error:
        raise CorruptFileError(
            "the file cannot be decompressed", path=path, found=repr(error)
        ) from error


def compressed_layout(
    file: File, grid: tuple[int, ...], sig_shape: tuple[int, ...], dtype: np.dtype, offset: int
) -> Layout:
    """Lay out pixels in C order, from a byte of the decompressed file on: one block, never cut.

    Whether it holds so many pixels shows when it is decompressed.
    """
    decode = BlockDecoder(
        "dask_tiled.compression:decode",
        dtype.newbyteorder("="),
        (("offset", offset), ("dtype", dtype.str)),
    )
    shape = grid + sig_shape
    whole = Piece(0, (0,) * len(shape), shape, 0, (0,) * len(shape), nbytes=file.size)
    return Layout([file], grid, sig_shape, [whole], [decode])


def decode(block: Block, fetch: Fetch, *, offset: int, dtype: str) -> npt.NDArray[Any]:
    """Decompress a file, and take its pixels.

    Raises
    ------
    TruncatedFileError
        There are fewer than the header promises.
    CorruptFileError
        It cannot be decompressed.
    """
    stored = np.dtype(dtype)
    data = fetch(block.file, block.offset, block.offset + block.nbytes)
    wanted = math.prod(block.shape) * stored.itemsize
    try:
        with _opened(io.BytesIO(data.data), data[:8].tobytes()) as stream:
            stream.seek(offset)
            found = stream.read(wanted)
            stream.read(1)  # at the end there is a checksum
    except BROKEN as error:
        raise CorruptFileError(
            "the file cannot be decompressed", path=block.file.path, found=repr(error)
        ) from error
    if len(found) < wanted:
        raise TruncatedFileError(
            "the decompressed file ends inside the pixels",
            path=block.file.path,
            expected=f"{offset + wanted} bytes",
            found=f"{offset + len(found)} bytes",
        )
    pixels = np.frombuffer(found, stored).reshape(block.shape)
    return pixels.astype(stored.newbyteorder("="), copy=False)


def _opened(source: Any, head: bytes) -> Any:
    return next(opener for magic, opener in OPENERS.items() if head.startswith(magic))(source)
