"""Writer of MetaImage volumes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.detached import lines_of, write_parts
from dask_tiled.testing.frames import StrPath
from dask_tiled.testing.records import filler

_TYPES = {"i1": "CHAR", "u1": "UCHAR", "i2": "SHORT", "u2": "USHORT", "i4": "INT", "u4": "UINT"}
_TYPES |= {"i8": "LONG_LONG", "u8": "ULONG_LONG", "f4": "FLOAT", "f8": "DOUBLE"}


def write_metaimage(
    path: StrPath,
    volume: npt.ArrayLike,
    *,
    channels: bool = False,
    compressed: bool = False,
    files: int = 0,
    pattern: bool = False,
    keys: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a MetaImage volume (z, y, x).

    Parameters
    ----------
    channels
        Whether the last axis of the volume is the channel axis.
    compressed
        Whether the pixels are compressed.
    files, pattern
        As for `write_nrrd`.
    keys
        As `fields` of `write_nrrd`. With a ``HeaderSize``, files begin with that many bytes of
        text, or with seven for -1.
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
    before = filler(b"header ", 7 if size < 0 else size)
    parts = [part.tobytes() for part in stored.reshape(max(files, 1), -1)]
    parts = [before + (zlib.compress(part) if compressed else part) for part in parts]
    if files:
        return write_parts(header, text, "ElementDataFile = ", parts, pattern=pattern)
    header.write_bytes(f"{text}ElementDataFile = LOCAL\n".encode() + parts[0])
    return [header]
