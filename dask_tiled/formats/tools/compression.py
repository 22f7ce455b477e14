"""Files that are compressed as a whole or from a byte on: gzip, bzip2, xz and zlib."""

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
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.model.files import File, read_head
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece

OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""What a compressed file begins with, and what reads it."""
MOST_RATIO = {b"BZh": 1 << 21, b"\xfd7zXZ\0": 1 << 13, b"": 1032}
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
    check_ratio(file, offset + math.prod(shape) * dtype.itemsize)
    whole = Piece(0, (0,) * len(shape), shape, 0, (0,) * len(shape), nbytes=file.size)
    return Layout([file], grid, sig_shape, [whole], [unpacker(dtype, offset)])


def check_ratio(file: File, nbytes: int, at: int = 0) -> None:
    """Make sure that what is compressed from byte ``at`` on can be so many bytes.

    Raises
    ------
    TruncatedFileError
        It cannot.
    """
    head = read_head(file.path, 8, at)
    ratio = next(ratio for magic, ratio in MOST_RATIO.items() if head.startswith(magic))
    most = max(0, file.size - at) * ratio
    if nbytes > most:
        raise TruncatedFileError(
            "a compressed file of this size cannot hold the pixels",
            path=file.path,
            expected=f"{nbytes} bytes, decompressed",
            found=f"{most} at most",
        )


def unpacker(dtype: np.dtype, offset: int = 0) -> BlockDecoder:
    """Give the decoder of pixels from a byte of what is decompressed on."""
    return BlockDecoder(
        "dask_tiled.formats.tools.compression:decode",
        dtype.newbyteorder("="),
        (("offset", offset), ("dtype", dtype.str)),
    )


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
        if offset:
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
def _opened(file: Any, head: bytes, path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open what begins with some bytes; whatever goes wrong with it is a CorruptFileError."""
    openers = (opener for magic, opener in OPENERS.items() if head.startswith(magic))
    opener = next(openers, Inflated)
    try:
        with opener(file) as stream:
            yield stream
    except BROKEN as error:
        raise CorruptFileError(
            "the file cannot be decompressed", path=path, found=repr(error)
        ) from error


class Inflated(io.RawIOBase):
    """What a zlib stream holds: nothing sure tells that one begins, so it is what is left."""

    def __init__(self, file: io.BytesIO) -> None:
        self._file = file
        self._stream = zlib.decompressobj()

    def readable(self) -> bool:
        """Say so to those who ask."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompress until there is something; 0 bytes at the end.

        Raises
        ------
        EOFError
            The stream has no end.
        """
        while not self._stream.eof:
            data = self._stream.unconsumed_tail or self._file.read(STEP)
            found = self._stream.decompress(data, len(buffer))
            if not data and not found:
                raise EOFError("the stream has no end")
            if found:
                buffer[: len(found)] = found
                return len(found)
        return 0
