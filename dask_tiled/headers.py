"""Binary headers as tables: for each field a name, the byte that it begins at, and a type."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from dask_tiled.errors import TruncatedFileError
from dask_tiled.files import read_head

Fields: TypeAlias = Mapping[str, tuple[int, str]]
"""Name of a field, the byte that it begins at, and its numpy type: ``{"width": (42, "u2")}``.

A type can have a shape, ``"3i4"``, or be text, ``"S80"``.
"""

Order: TypeAlias = Literal["<", ">"]


def size_of(fields: Fields) -> int:
    """Give the bytes from the start of a header to the end of its last field."""
    return max(at + np.dtype(kind).itemsize for at, kind in fields.values())


def parse_fields(data: bytes, fields: Fields, order: Order = "<") -> dict[str, Any]:
    """Read the fields of a header.

    Parameters
    ----------
    data : bytes
        The header from its start on, of at least :func:`size_of` bytes.
    fields : mapping
        A table of fields.
    order : {"<", ">"}
        Byte order of all of them.

    Returns
    -------
    dict
        Plain Python values: numbers, tuples of numbers, and text without what fills it up.
    """
    names = list(fields)
    record = np.dtype(
        {
            "names": names,
            "formats": [kind for _, kind in fields.values()],
            "offsets": [at for at, _ in fields.values()],
        }
    ).newbyteorder(order)
    (values,) = np.frombuffer(data, record, 1)
    return {name: _plain(values[name]) for name in names}


def read_fields(
    path: str | os.PathLike[str], fields: Fields, order: Order = "<", at: int = 0
) -> dict[str, Any]:
    """Read the fields of a header from a file; the parameters are those of :func:`parse_fields`.

    Parameters
    ----------
    at : int
        The byte of the file that the header begins at.

    Raises
    ------
    TruncatedFileError
        The file ends before the last field does.
    """
    size = size_of(fields)
    data = read_head(path, size, at)
    if len(data) < size:
        raise TruncatedFileError(
            "the file ends inside a header",
            path=path,
            where=f"byte {at}",
            expected=f"a header of {size} bytes",
            found=f"{len(data)} bytes",
        )
    return parse_fields(data, fields, order)


def _plain(value: Any) -> Any:
    plain = value.tolist()
    if isinstance(plain, bytes):
        return plain.partition(b"\0")[0].decode("latin1").strip()
    return tuple(plain) if isinstance(plain, list) else plain
