"""Trees of named entries, in the headers of JEOL's files.

Layout facts: RosettaSciIO's reader, and real files.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import printable
from dask_tiled.formats import tools

BEFORE_TREE = 12
"""Bytes of zeros before a tree."""
OPENS = 1
"""Byte before an entry; any other one ends the entry that is open, or the tree."""
NUMBERS = "<u1", "<u2", "<i4", "<f4", "<f8"
"""Types 1 to 5 are numbers, and 6 to 10 arrays of them."""
TEXTS = 12, 13
MOST_DEPTH, MOST_SHOWN = 64, 2
MOST_ENTRIES = 1 << 18
"""Limit of entries, which need many times the memory and time of their bytes."""


class ArrayEntry(NamedTuple):
    """Numbers that are not read: their offset in the tree, type and length."""

    offset: int
    dtype: str
    length: int


def read_tree(path: str, data: bytes) -> dict[str, Any]:
    """Read entries, as dicts by name; the value of an entry with others inside has no name.

    Raise a TruncatedFileError if the bytes end inside the header of an entry, and a
    CorruptFileError if there are too many entries.
    """
    root: dict[str, Any] = {}
    levels, at, count = [root], 0, 0
    try:
        while levels and at < len(data):
            if data[at] != OPENS:
                levels, at = levels[:-1], at + 1
                continue
            count += 1
            if count > MOST_ENTRIES:
                what, expected = "the header has too many entries", f"{MOST_ENTRIES} at most"
                raise tools.CorruptFileError(what, path=path, expected=expected)
            (length,) = struct.unpack_from("<I", data, at + 1)
            name = _text(data[at + 5 : at + 5 + length])
            kind, nbytes = struct.unpack_from("<II", data, at + 5 + length)
            at += 13 + length + nbytes
            entry: dict[str, Any] = {"": _value(kind, data[at - nbytes : at], at - nbytes, nbytes)}
            levels[-1].setdefault(name, entry)
            levels = [*levels, entry][:MOST_DEPTH]
    except struct.error as error:
        raise tools.TruncatedFileError(
            "the header ends inside an entry", path=path, where=f"byte {at} of it"
        ) from error
    return {name: _plain(entry) for name, entry in root.items()}


def _text(data: bytes) -> str:
    """Decode a text of new or of old files."""
    text = data.partition(b"\0")[0]
    try:
        return text.decode("utf8")
    except UnicodeDecodeError:
        return text.decode("cp932", "replace")


def _value(kind: int, data: bytes, at: int, nbytes: int) -> Any:
    if kind in TEXTS:
        return printable(_text(data))
    if not 0 < kind <= 2 * len(NUMBERS):
        return None
    dtype = np.dtype(NUMBERS[(kind - 1) % len(NUMBERS)])
    length = nbytes // dtype.itemsize
    if length > MOST_SHOWN or len(data) < nbytes:
        return ArrayEntry(at, dtype.str, length)
    values = np.frombuffer(data, dtype, length).tolist()
    return values[0] if length == 1 else tuple(values)


def _plain(entry: dict[str, Any]) -> Any:
    """Return the value of an entry without others inside; drop the value if there is none."""
    value = entry.pop("")
    inner = {name: _plain(one) for name, one in entry.items()}
    if not inner:
        return value
    return inner if value is None else {"": value, **inner}


def inside(tree: Any, *names: str) -> dict[str, Any]:
    """Return the entries inside another one; empty if there are none."""
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}
