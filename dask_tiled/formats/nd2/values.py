"""Trees of named values in ND2 files.

A value is stored as its type, the length of its name, the name, and the data. Layout according to
public readers, and real files.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from dask_tiled.formats.tools.text import MAX_DEPTH, MAX_VALUES

NUMBERS = {1: "<?", 2: "<i", 3: "<I", 4: "<q", 5: "<Q", 6: "<d", 7: "<Q"}
TEXT, DATA, LEVEL, PACKED = 8, 9, 11, 76
"""Types of values: text, bytes, a tree, and a tree compressed by zlib; numbers are above."""
MOST_BYTES, MOST_ITEMS = 1 << 24, 10_000
"""Maximum bytes of a decompressed tree, and maximum length of bytes that are listed."""


def parse_values(data: bytes) -> dict[str, Any]:
    """Parse a tree; if it has a single branch, return that.

    Raise a ValueError if the tree is damaged or too large.
    """
    try:
        if data[:1] == bytes([PACKED]):
            data = zlib.decompressobj().decompress(data[12:], MOST_BYTES)
        tree, _ = _Values(data).level(0, 1, 0)
    except (IndexError, struct.error, zlib.error) as error:
        raise ValueError(str(error)) from error
    inner = next(iter(tree.values()), None)
    return inner if len(tree) == 1 and isinstance(inner, dict) else tree


class _Values:
    """Parser of consecutive named values."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = MAX_VALUES

    def level(self, at: int, count: int, depth: int) -> tuple[dict[str, Any], int]:
        """Parse ``count`` values into a dict; unnamed ones are numbered."""
        found: dict[str, Any] = {}
        for number in range(count):
            self.left -= 1
            if self.left < 0 or depth > MAX_DEPTH:
                raise ValueError(f"more than {MAX_VALUES} values, or {MAX_DEPTH} nested levels")
            kind, length = self.data[at], self.data[at + 1]
            start = at + 2 + 2 * length
            name = self.data[at + 2 : start].decode("utf-16-le", "replace").rstrip("\0")
            value, at = self._value(kind, at, start, depth)
            found[name or f"i{number:010}"] = value
        return found, at

    def _value(self, kind: int, begin: int, at: int, depth: int) -> tuple[Any, int]:
        if kind in NUMBERS:
            (value,) = struct.unpack_from(NUMBERS[kind], self.data, at)
            return value, at + struct.calcsize(NUMBERS[kind])
        if kind == TEXT:
            stop = at
            while (stop := self.data.index(b"\0\0", stop)) % 2 != at % 2:
                stop += 1
            return self.data[at:stop].decode("utf-16-le", "replace"), stop + 2
        if kind == DATA:
            (size,) = struct.unpack_from("<Q", self.data, at)
            value = self.data[at + 8 : at + 8 + size]
            return (tuple(value) if size <= MOST_ITEMS else f"{size} bytes"), at + 8 + size
        if kind == LEVEL:
            count, length = struct.unpack_from("<IQ", self.data, at)
            value, stop = self.level(at + 12, count, depth + 1)
            if stop != begin + length:
                raise ValueError(f"a tree of {stop - begin} bytes, with the length {length}")
            return value, stop + 8 * count
        raise ValueError(f"a value of type {kind}")
