"""Stream codecs, decoded step by step: gzip, bzip2, xz and zlib."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from dask_tiled.codecs.byte_codecs import BYTE_CODECS
from dask_tiled.codecs.limits import most_bytes

STEP = 1 << 20
"""Bytes that are read, or decompressed, at a time."""
BROKEN = (OSError, EOFError, ValueError, OverflowError, MemoryError, zlib.error, lzma.LZMAError)
"""Errors of damaged streams."""
ZLIB = "numcodecs.zlib"
MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "numcodecs.bz2", b"\xfd7zXZ\0": "numcodecs.lzma", b"": ZLIB}
"""Magic numbers of streams; zlib has none, so it comes last."""


class Inflated(io.RawIOBase):
    """The decompressed content of a zlib stream."""

    def __init__(self, file: io.BytesIO) -> None:
        self._file = file
        self._stream = zlib.decompressobj()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompress until there are bytes; return 0 at the end, and for an empty buffer."""
        while len(buffer) and not self._stream.eof:  # zlib treats 0 as no limit
            packed = self._stream.unconsumed_tail or self._file.read(STEP)
            content = self._stream.decompress(packed, len(buffer))
            if not packed and not content:
                raise EOFError("the stream is truncated")
            if content:
                buffer[: len(content)] = content
                return len(content)
        return 0


OPENERS: Mapping[str, Callable[[Any], Any]] = {
    "gzip": gzip.open,
    "numcodecs.bz2": bz2.open,
    "numcodecs.lzma": lzma.open,
    ZLIB: Inflated,
}


def stream_codec(head: bytes) -> dict[str, Any]:
    """Return the codec document of a stream, given its first 6 bytes or more."""
    return {"name": next(name for magic, name in MAGIC.items() if head.startswith(magic))}


def open_stream(codec: Mapping[str, Any], file: Any) -> Any:
    """Open a compressed stream for reading from its start.

    Parameters
    ----------
    codec : mapping
        A document of :func:`stream_codec`.
    file : file object
        Open for reading bytes.

    Returns
    -------
    file object
        It needs little memory, whatever its length. Reading damaged data raises one of
        :data:`BROKEN`.
    """
    return OPENERS[codec["name"]](file)


def most_streamed(codec: Mapping[str, Any], packed: int) -> int:
    """Return the maximum number of bytes that ``packed`` compressed bytes can decode to."""
    return most_bytes(BYTE_CODECS[codec["name"]].compresses, max(0, packed))
