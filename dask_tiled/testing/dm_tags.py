"""Writer of the tags of DM3, DM4 and `.gtg` files."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dask_tiled.testing.frames import StrPath

CODES = {"h": 2, "i": 3, "H": 4, "I": 5, "f": 6, "d": 7, "?": 8, "b": 9, "B": 10, "q": 11, "Q": 12}


@dataclass
class Gap:
    """Placeholder for an array whose contents are written later.

    Attributes
    ----------
    kind : str
        `struct` format characters of an element; several characters make a record.
    count : int
        Number of elements.
    offset : int
        Position of the array in the file in bytes; set when the tags are written.
    """

    kind: str
    count: int
    offset: int = -1

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.count * struct.calcsize("<" + self.kind)


Chunks: TypeAlias = list["bytes | Gap"]


def write_tags(
    path: StrPath, tags: Mapping[str, Any], *, version: int = 4, trailer: int = 8
) -> Path:
    """Write a tag file and set the offset of each `Gap` among the tags.

    Parameters
    ----------
    tags
        Groups are mappings, or sequences if the entries have no labels. Values are bool, int
        (stored as int32, or int64 if too large), numpy.uint32, float (stored as float32), text,
        tuples of int (records), bytes (arrays), and `Gap`.
    version
        3 or 4.
    trailer
        Number of zero bytes at the end.
    """
    chunks = _group(tags, version)
    head = struct.pack(">IQI" if version == 4 else ">III", version, _size(chunks), 1)
    with Path(path).open("wb") as file:
        for chunk in (head, *chunks, bytes(trailer)):
            if isinstance(chunk, Gap):
                chunk.offset = file.tell()
                file.seek(chunk.nbytes, 1)
            else:
                file.write(chunk)
        file.truncate()
    return Path(path)


def _size(chunks: Chunks) -> int:
    return sum(chunk.nbytes if isinstance(chunk, Gap) else len(chunk) for chunk in chunks)


def _words(version: int, *values: int) -> bytes:
    return struct.pack(f">{len(values)}{'Q' if version == 4 else 'I'}", *values)


def _group(tags: Mapping[str, Any] | Sequence[Any], version: int) -> Chunks:
    entries = list(tags.items()) if isinstance(tags, Mapping) else [("", tag) for tag in tags]
    chunks: Chunks = [b"\1\0", _words(version, len(entries))]  # flags: sorted, not open
    for label, value in entries:
        name = label.encode("latin1")
        inner = isinstance(value, (Mapping, list))
        if inner:
            body = _group(value, version)
        else:
            info, data = _encoded(value)
            body = [b"%%%%", _words(version, len(info), *info), data]
        chunks.append(struct.pack(">BH", 20 if inner else 21, len(name)) + name)
        if version == 4:
            chunks.append(struct.pack(">Q", _size(body)))
        chunks += body
    return chunks


def _encoded(value: Any) -> tuple[tuple[int, ...], bytes | Gap]:
    if isinstance(value, Gap):
        kinds = [CODES[kind] for kind in value.kind]
        fields = [word for kind in kinds for word in (0, kind)]
        element = kinds if len(kinds) == 1 else [15, 0, len(kinds), *fields]
        return (20, *element, value.count), value
    if isinstance(value, str):
        return (20, CODES["H"], len(value)), value.encode("utf-16-le")
    if isinstance(value, bytes):
        return (20, CODES["B"], len(value)), value
    if isinstance(value, tuple):
        fields = [word for _ in value for word in (0, CODES["i"])]
        return (15, 0, len(value), *fields), struct.pack(f"<{len(value)}i", *value)
    if isinstance(value, np.uint32):
        return (CODES["I"],), value.tobytes()
    if isinstance(value, (bool, float)):
        kind = "?" if isinstance(value, bool) else "f"
    else:
        kind = "i" if -(1 << 31) <= value < 1 << 31 else "q"
    return (CODES[kind],), struct.pack("<" + kind, value)
