"""Writer of NRRD volumes."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.detached import lines_of, write_parts
from dask_tiled.testing.frames import StrPath

_TYPES = {"i1": "signed char", "u1": "uchar", "i2": "short", "u2": "ushort", "i4": "int"}
_TYPES |= {"u4": "uint", "i8": "longlong", "u8": "ulonglong", "f4": "float", "f8": "double"}
_PACK: dict[str, Any] = {"raw": bytes, "gzip": gzip.compress, "bzip2": bz2.compress}


def write_nrrd(
    path: StrPath,
    volume: npt.ArrayLike,
    *,
    encoding: str = "raw",
    files: int = 0,
    pattern: bool = False,
    lines: int = 0,
    skip: int = 0,
    fields: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a NRRD volume; the header lists the axes fastest first.

    Parameters
    ----------
    encoding
        ``"raw"``, ``"gzip"`` or ``"bzip2"``.
    files
        Number of pixel files, of equal size, named by the path without its suffix, a three-digit
        number and ``.raw``. With 0 the pixels follow the header.
    pattern
        Whether the header names the pixel files by a pattern instead of a list.
    lines
        Number of text lines before the pixels of each file.
    skip
        Number of bytes before the text lines, outside the compressed data.
    fields
        Fields that are added or replaced; None removes a field. Sequences are written with blanks
        between their items.
    """
    header, stored = Path(path), np.asarray(volume)
    kind, order = stored.dtype.str[1:], stored.dtype.str[0]
    known = {
        "type": _TYPES[kind],
        "dimension": stored.ndim,
        "sizes": stored.shape[::-1],
        "encoding": encoding,
        "endian": {"<": "little", ">": "big", "|": None}[order],
        "line skip": lines or None,
        "byte skip": skip or None,
        **(fields or {}),
    }
    text = "NRRD0004\n# written to test\n" + lines_of(known, ": ")
    before = b"a line: of text\n" * lines
    parts = [
        before + _PACK[encoding](b"\x55" * skip + part.tobytes())
        for part in stored.reshape(max(files, 1), -1)
    ]
    if files:
        return write_parts(header, text, "data file: ", parts, pattern=pattern)
    header.write_bytes(text.encode() + b"\n" + parts[0])
    return [header]
