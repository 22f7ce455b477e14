"""Binary headers as tables: for each field a name, the byte that it begins at, and a type."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.model.files import read_exactly

Fields: TypeAlias = Mapping[str, tuple[int, str]]
"""Name of a field, the byte that it begins at, and its numpy type: ``{"width": (42, "u2")}``.

A type can have a shape, ``"3i4"``, or be text, ``"S80"``.
"""

Order: TypeAlias = Literal["<", ">"]
"""Byte order: little-endian, or big-endian."""
Allowed: TypeAlias = Mapping[str, Sequence[int]]
"""What whole numbers in a header may be: ``{"depth": (8, 16), "width": POSITIVE}``."""
POSITIVE = range(1, 1 << 63)
"""What the number of something may be."""


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
    (values,) = np.frombuffer(data, _record(fields, order), 1)
    return {name: _plain(values[name]) for name in fields}


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
    return parse_fields(read_exactly(path, size_of(fields), at, "a header"), fields, order)


def read_table(
    path: str | os.PathLike[str], fields: Fields, at: int, step: int, count: int, order: Order = "<"
) -> dict[str, npt.NDArray[Any]]:
    """Read the same fields of many headers, without what lies between them.

    Parameters
    ----------
    path : path-like
    fields : mapping
        A table of fields.
    at, step : int
        The byte of the file that the first header begins at, and bytes from one to the next.
    count : int
        How many of them, at least one.
    order : {"<", ">"}
        Byte order of the fields.

    Returns
    -------
    dict
        For each field an array of `count` values in native byte order.

    Raises
    ------
    TruncatedFileError
        The file ends before the last header does.
    """
    record = _record(fields, order)
    with (
        open(path, "rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        if at + step * (count - 1) + size_of(fields) > len(mapped):
            raise TruncatedFileError(
                "the file ends inside a header",
                path=path,
                expected=f"{count} headers, {step} bytes apart, from byte {at} on",
                found=f"{len(mapped)} bytes",
            )
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)  # pages between headers are not wanted
        values = np.ndarray((count,), record, mapped, at, (step,)).astype(record.newbyteorder("="))
    return {name: values[name] for name in fields}


def wrong_field(values: Mapping[str, Any], allowed: Allowed) -> str | None:
    """Name the first field that is none of what it may be."""
    return next((name for name, known in allowed.items() if values[name] not in known), None)


def check_fields(
    path: str | os.PathLike[str],
    values: Mapping[str, Any],
    fields: Fields,
    allowed: Allowed,
    problem: str,
    *,
    at: int = 0,
    hint: str | None = None,
    kind: type[DatasetError] = CorruptFileError,
) -> None:
    """Make sure that the fields of a header are what they may be.

    Parameters
    ----------
    path : path-like
    values : mapping
        What was found, by name.
    fields : mapping
        The table that they were read by.
    allowed : mapping
    problem : str
        What the error says.
    at : int
        The byte of the file that the header begins at.
    hint : str, optional
    kind : type
        Of the error.

    Raises
    ------
    CorruptFileError, or `kind`
        One is something else.
    """
    name = wrong_field(values, allowed)
    if name is not None:
        where = f"byte {at + fields[name][0]} ({name})"
        expected = choices(allowed[name])
        raise kind(
            problem, path=path, where=where, expected=expected, found=values[name], hint=hint
        )


def choices(known: Sequence[int]) -> str:
    """Say in words what a whole number may be."""
    if not isinstance(known, range):
        return " or ".join(map(str, known))
    steps = f", in steps of {known.step}" if known.step > 1 else ""
    last = "more" if known[-1] == POSITIVE[-1] else known[-1]
    return f"{known[0]} {'or' if last == 'more' else 'to'} {last}{steps}"


def _record(fields: Fields, order: Order) -> np.dtype:
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for _, kind in fields.values()],
            "offsets": [at for at, _ in fields.values()],
        }
    ).newbyteorder(order)


def _plain(value: Any) -> Any:
    plain = value.tolist()
    if isinstance(plain, bytes):
        return plain.partition(b"\0")[0].decode("latin1").strip()
    return tuple(plain) if isinstance(plain, list) else plain
