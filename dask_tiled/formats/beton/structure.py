"""Where everything lies in a sample file of version 2: what its reader and its writer share.

After the header come the descriptors of the fields, a record for each sample, pages of data, and
the allocation table. Everything is little-endian, and every pointer counts from the file's start.
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
"""Bytes of the smallest and of the largest page; the others are powers of two between them."""

ALLOCATION = np.dtype([("sample", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
FLOAT, INT, IMAGE, BYTES, ARRAY, JSON, TENSOR = range(7)
"""The numbers of the types of fields."""
PIXELS = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")])
REGION = np.dtype([("ptr", "<u8"), ("size", "<u8")])
JPEG, RAW = range(2)
"""The modes of images."""
STORED = {
    FLOAT: np.dtype("<f8"),
    INT: np.dtype("<i8"),
    IMAGE: PIXELS,
    BYTES: REGION,
    ARRAY: np.dtype("<u8"),
    JSON: REGION,
    TENSOR: np.dtype("<u8"),
}
"""What the record of a sample says of a field, by the number of its type."""

SHAPE_BYTES, TYPE_BYTES = 256, ARGUMENT_BYTES - 264


class Field(NamedTuple):
    """A field of the samples."""

    type_id: int
    name: str
    arguments: bytes = b""

    @classmethod
    def unpack(cls, data: bytes) -> Field:
        """Read a descriptor."""
        name, arguments = data[1:][:NAME_BYTES], data[1 + NAME_BYTES :]
        return cls(data[0], name.rstrip(b"\0").decode("ascii", "backslashreplace"), arguments)

    def pack(self) -> bytes:
        """Write the descriptor, which has room for the first letters of the name."""
        name = self.name.encode("ascii")[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
        return bytes([self.type_id]) + name + self.arguments.ljust(ARGUMENT_BYTES, b"\0")


def record_of(type_ids: Sequence[int]) -> np.dtype:
    """Return the type of a record: ``f0``, ``f1`` and so on, aligned as in C."""
    fields = [(f"f{k}", STORED[type_id]) for k, type_id in enumerate(type_ids)]
    return np.dtype(fields, align=True)


def is_page_size(size: int) -> bool:
    """Return whether pages may have so many bytes."""
    return LEAST_PAGE <= size <= MOST_PAGE and not size & (size - 1)


def pack_array(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Write the arguments of a field of arrays."""
    text = json.dumps(dtype.descr).encode()
    sizes = np.array(shape, "<u8").tobytes().ljust(SHAPE_BYTES, b"\0")
    return sizes + len(text).to_bytes(8, "little") + text


def parse_array(arguments: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    """Read the arguments of a field of arrays.

    Raises
    ------
    ValueError
        They are none. An axis of no length at the end cannot be told from the zeros behind it.
    """
    shape = np.trim_zeros(np.frombuffer(arguments, "<u8", SHAPE_BYTES // 8), "b").tolist()
    length = int.from_bytes(arguments[SHAPE_BYTES : SHAPE_BYTES + 8], "little")
    if length > TYPE_BYTES:
        raise ValueError(f"a type of {length} letters")
    text = arguments[SHAPE_BYTES + 8 :][:length]
    try:
        dtype = _dtype(parse_json(text))
    except (ArithmeticError, LookupError, RecursionError, SyntaxError, TypeError) as error:
        raise ValueError(f"no type: {text!r}") from error
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"no type of pixels: {dtype}")
    if math.prod(n or 1 for n in shape) * dtype.itemsize > MOST_PAGE:
        raise ValueError(f"shape {shape} of {dtype}, which is larger than a page can be")
    return dtype, tuple(shape)


def _dtype(descr: Any) -> np.dtype:
    """Read what ``numpy.dtype.descr`` gives, a list of fields; a plain type is one without name."""
    ((name, kind), *others) = (field[:2] for field in descr)
    plain = not name and not others and len(descr[0]) == 2
    return np.dtype(kind) if plain else np.lib.format.descr_to_dtype(descr)
