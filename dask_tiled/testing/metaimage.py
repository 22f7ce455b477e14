"""Write MetaImage volumes."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tiled.testing.detached import lines_of, write_parts

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import numpy.typing as npt

_TYPES = {"i1": "CHAR", "u1": "UCHAR", "i2": "SHORT", "u2": "USHORT", "i4": "INT", "u4": "UINT"}
_TYPES |= {"i8": "LONG_LONG", "u8": "ULONG_LONG", "f4": "FLOAT", "f8": "DOUBLE"}


def write_metaimage(
    path: str | os.PathLike[str],
    volume: npt.ArrayLike,
    *,
    channels: bool = False,
    compressed: bool = False,
    files: int = 0,
    pattern: bool = False,
    keys: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a volume.

    Parameters
    ----------
    path
        The file of the header; an existing one is replaced, also those beside it.
    volume
        Array in C order, (z, y, x). It keeps its dtype and byte order.
    channels
        Whether its last axis is that of the channels.
    compressed
        Compress the pixels.
    files
        Write so many files for the pixels, of equal parts: the path without its suffix, a number of
        three digits, and ``.raw``. With 0 they follow the header.
    pattern
        Name these files by a pattern instead of one by one.
    keys
        Keys that come on top, or instead: None leaves one out. Text is written as it is, and
        sequences with blanks between their items. If there is a ``HeaderSize``, files begin with
        that many bytes of text, or with seven for -1.

    Returns
    -------
    list of pathlib.Path
        The files: pixels, header.
    """
    header, stored = Path(path), np.asarray(volume)
    sizes = stored.shape[:-1] if channels else stored.shape
    known = {
        "ObjectType": "Image",
        "NDims": len(sizes),
        "BinaryData": "True",
        "BinaryDataByteOrderMSB": stored.dtype.str[0] == ">",
        "CompressedData": compressed,
        "DimSize": sizes[::-1],
        "ElementNumberOfChannels": stored.shape[-1] if channels else None,
        "ElementType": f"MET_{_TYPES[stored.dtype.str[1:]]}",
        **(keys or {}),
    }
    text = lines_of(known, " = ")
    size = int(known.get("HeaderSize") or 0)
    before = b"header " if size < 0 else (b"header " * (size // 7 + 1))[:size]
    parts = [part.tobytes() for part in stored.reshape(max(files, 1), -1)]
    parts = [before + (zlib.compress(part) if compressed else part) for part in parts]
    if files:
        return write_parts(header, text, "ElementDataFile = ", parts, pattern=pattern)
    header.write_bytes(f"{text}ElementDataFile = LOCAL\n".encode() + parts[0])
    return [header]
