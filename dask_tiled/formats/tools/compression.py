"""Files that are compressed as a whole: gzip, bzip2 and xz."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, TruncatedFileError
from dask_tiled.model.coded import Block, Fetch
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.model.files import File, read_head
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece

OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""What a compressed file begins with, and what reads it."""
MOST_RATIO = {b"\x1f\x8b": 1032, b"BZh": 1 << 21, b"\xfd7zXZ\0": 1 << 13}
"""No byte of a compressed file stands for more; of zeros, it stands for nearly so many."""
STEP = 1 << 20
"""So many bytes are decompressed at a time."""
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
    with _opened(path, head, path) as stream:
        return bytes(stream.read(nbytes))


def compressed_layout(
    file: File, grid: tuple[int, ...], sig_shape: tuple[int, ...], dtype: np.dtype, offset: int
) -> Layout:
    """Lay out pixels in C order, from a byte of the decompressed file on: one block, never cut.

    Whether it holds so many pixels shows when it is decompressed.

    Raises
    ------
    TruncatedFileError
        No file of that size could hold them.
    """
    shape = grid + sig_shape
    head = read_head(file.path, 8)
    most = file.size * next((r for m, r in MOST_RATIO.items() if head.startswith(m)), 1)
    if offset + math.prod(shape) * dtype.itemsize > most:
        raise TruncatedFileError(
            "a compressed file of this size cannot hold the pixels",
            path=file.path,
            expected=f"{offset + math.prod(shape) * dtype.itemsize} bytes, decompressed",
            found=f"{most} at most",
        )
    decode = BlockDecoder(
        "dask_tiled.formats.tools.compression:decode",
        dtype.newbyteorder("="),
        (("offset", offset), ("dtype", dtype.str)),
    )
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
    data = fetch(block.file, block.offset, block.offset + block.nbytes)
    pixels = np.empty(block.shape, np.dtype(dtype))
    wanted, found = pixels.reshape(-1).view(np.uint8).data, 0
    with _opened(io.BytesIO(data.data), data[:8].tobytes(), block.file.path) as stream:
        stream.seek(offset)
        while n := stream.readinto(wanted[found : found + STEP]):
            found += n
        stream.read(1)  # at the end there is a checksum
    if found < len(wanted):
        raise TruncatedFileError(
            "the decompressed file ends inside the pixels",
            path=block.file.path,
            expected=f"{offset + len(wanted)} bytes",
            found=f"{offset + found} bytes",
        )
    return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)


@contextmanager
def _opened(source: Any, head: bytes, path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open what begins with some bytes; whatever goes wrong with it is a CorruptFileError."""
    opener = next(opener for magic, opener in OPENERS.items() if head.startswith(magic))
    try:
        with opener(source) as stream:
            yield stream
    except BROKEN as error:
        raise CorruptFileError(
            "the file cannot be decompressed", path=path, found=repr(error)
        ) from error
