"""The structure of sample files, version 2, for reader and writer.

The header is followed by field descriptors, one record per sample, pages of data, and the
allocation table. Everything is little-endian; pointers count from the start of the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.text import parse_json

VERSION = 2
HEADER: tools.Fields = {
    "version": (0, "u2"), "num_fields": (2, "u2"), "page_size": (4, "u4"),
    "num_samples": (8, "u8"), "alloc_table_ptr": (16, "u8"),
}  # fmt: skip
NAME_BYTES, ARGUMENT_BYTES = 16, 1024
HEADER_BYTES, FIELD_BYTES = tools.size_of(HEADER), 1 + NAME_BYTES + ARGUMENT_BYTES
LEAST_PAGE, MOST_PAGE = 1 << 21, 1 << 31
"""Smallest and largest page; page sizes are powers of two."""

ALLOCATION = np.dtype([("sample", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
FLOAT, INT, IMAGE, BYTES, ARRAY, JSON, TENSOR = range(7)
"""Type numbers of fields."""
PIXELS = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")])
REGION = np.dtype([("ptr", "<u8"), ("size", "<u8")])
JPEG, RAW = range(2)
"""Modes of images."""
STORED = {
    FLOAT: np.dtype("<f8"),
    INT: np.dtype("<i8"),
    IMAGE: PIXELS,
    BYTES: REGION,
    ARRAY: np.dtype("<u8"),
    JSON: REGION,
    TENSOR: np.dtype("<u8"),
}
"""dtype of a field in the records, by type number."""

SHAPE_BYTES, TYPE_BYTES = 256, ARGUMENT_BYTES - 264


class Field(NamedTuple):
    """A field of the samples."""

    type_id: int
    name: str
    arguments: bytes = b""

    @classmethod
    def unpack(cls, data: bytes) -> Field:
        """Parse a descriptor."""
        name, arguments = data[1:][:NAME_BYTES], data[1 + NAME_BYTES :]
        return cls(data[0], name.rstrip(b"\0").decode("ascii", "backslashreplace"), arguments)

    def pack(self) -> bytes:
        """Return the descriptor as bytes; long names are truncated."""
        name = self.name.encode("ascii")[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
        return bytes([self.type_id]) + name + self.arguments.ljust(ARGUMENT_BYTES, b"\0")


def record_of(type_ids: Sequence[int]) -> np.dtype:
    """Return the dtype of a record: ``f0``, ``f1`` and so on, aligned as in C."""
    fields = [(f"f{k}", STORED[type_id]) for k, type_id in enumerate(type_ids)]
    return np.dtype(fields, align=True)


def is_page_size(size: int) -> bool:
    """Return whether a page size is valid."""
    return LEAST_PAGE <= size <= MOST_PAGE and not size & (size - 1)


def pack_array(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the arguments of an array field as bytes."""
    text = json.dumps(dtype.descr).encode()
    sizes = np.array(shape, "<u8").tobytes().ljust(SHAPE_BYTES, b"\0")
    return sizes + len(text).to_bytes(8, "little") + text


def parse_array(arguments: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    """Parse the arguments of an array field.

    Raise a ValueError if the arguments are invalid. Trailing axes of length 0 look like padding,
    and are dropped.
    """
    shape = np.trim_zeros(np.frombuffer(arguments, "<u8", SHAPE_BYTES // 8), "b").tolist()
    length = int.from_bytes(arguments[SHAPE_BYTES : SHAPE_BYTES + 8], "little")
    if length > TYPE_BYTES:
        raise ValueError(f"a type of {length} letters")
    text = arguments[SHAPE_BYTES + 8 :][:length]
    try:
        dtype = _dtype(parse_json(text))
    except (ArithmeticError, LookupError, RecursionError, SyntaxError, TypeError) as error:
        raise ValueError(f"invalid type: {text!r}") from error
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"not a type of pixels: {dtype}")
    if math.prod(n or 1 for n in shape) * dtype.itemsize > MOST_PAGE:
        raise ValueError(f"shape {shape} of {dtype}, larger than a page can be")
    return dtype, tuple(shape)


def _dtype(descr: Any) -> np.dtype:
    """Parse ``numpy.dtype.descr``, a list of fields; a plain dtype is a field without name."""
    ((name, kind), *others) = (field[:2] for field in descr)
    plain = not name and not others and len(descr[0]) == 2
    return np.dtype(kind) if plain else np.lib.format.descr_to_dtype(descr)
