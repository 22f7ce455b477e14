"""Headers as tables: for each field of binary ones a place and a type, for each key a text."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError, printable
from dask_tiled.model.files import File, RemoteFile, opened_fd, read_exactly
from dask_tiled.model.indexing import Array

Fields: TypeAlias = Mapping[str, tuple[int, str]]
"""Name of a field, the byte that it begins at, and its numpy type: ``{"width": (42, "u2")}``.

A type can have a shape, ``"3i4"``, or be text, ``"S80"``.
"""

Order: TypeAlias = Literal["<", ">"]
"""Byte order: little-endian, or big-endian."""
Allowed: TypeAlias = Mapping[str, Sequence[int]]
"""What whole numbers in a header may be: ``{"depth": (8, 16), "width": POSITIVE}``."""
NEAR_BYTES = 8192
"""So many bytes are read at once, with what lies between the headers of a table."""
POSITIVE = range(1, 1 << 63)
"""What the number of something may be."""


def size_of(fields: Fields) -> int:
    """Return the bytes from the start of a header to the end of its last field."""
    return max(at + np.dtype(kind).itemsize for at, kind in fields.values())


def parse_fields(data: bytes, fields: Fields, order: Order = "<") -> dict[str, Any]:
    """Read the fields of a header.

    Parameters
    ----------
    data : bytes
        The header from its start on, of at least :func:`size_of` bytes.
    fields : mapping
    order : {"<", ">"}
        Byte order of all of them.

    Returns
    -------
    dict
        Plain Python values: numbers, tuples of numbers, and text without what fills it up.
    """
    (values,) = np.frombuffer(data, record_dtype(fields, order), 1)
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
) -> dict[str, Array]:
    """Read the same fields of many headers, without what lies between them.

    Parameters
    ----------
    path : path-like
    fields : mapping
    at, step, count : int
        The byte of the file that the first header begins at, bytes from one to the next, and how
        many there are, at least one.
    order : {"<", ">"}

    Returns
    -------
    dict
        For each field an array of `count` values in native byte order.

    Raises
    ------
    TruncatedFileError
        The file ends before the last header does.
    """
    record = record_dtype(fields, order)
    file = File.at(path)
    if at + step * (count - 1) + size_of(fields) > file.size:
        problem, found = "the file ends inside a header", f"{file.size} bytes"
        expected = f"{count} headers, {step} bytes apart, from byte {at} on"
        raise TruncatedFileError(problem, path=path, expected=expected, found=found)
    if isinstance(file, RemoteFile):
        spans = [(first, first + record.itemsize) for first in range(at, at + step * count, step)]
        values = np.concatenate(file.fetch(spans)).view(record)
        return {name: values[name].astype(record[name].newbyteorder("=")) for name in fields}
    values = np.empty(count, record.newbyteorder("="))
    together = max(1, NEAR_BYTES // step)
    with opened_fd(path) as fd:
        for first in range(0, count, together):
            part = values[first : first + together]
            nbytes = step * (len(part) - 1) + record.itemsize
            data = os.pread(fd, nbytes, at + step * first)
            if len(data) < nbytes:
                file.check()  # it has been cut off just now
            part[:] = np.ndarray(len(part), record, data, 0, (step,))
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
    values, fields, allowed : mapping
        What was found, the table that it was read by, and what it may be.
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
        where, expected = f"byte {at + fields[name][0]} ({name})", choices(allowed[name])
        found = values[name]
        raise kind(problem, path=path, where=where, expected=expected, found=found, hint=hint)


def choices(known: Sequence[int]) -> str:
    """Say in words what a whole number may be."""
    if not isinstance(known, range):
        return " or ".join(map(str, known))
    steps = f", in steps of {known.step}" if known.step > 1 else ""
    last = "more" if known[-1] == POSITIVE[-1] else known[-1]
    return f"{known[0]} {'or' if last == 'more' else 'to'} {last}{steps}"


class Value(NamedTuple):
    """What may stand behind a key of a text header.

    Attributes
    ----------
    read : callable
        Makes it of the text. It raises KeyError for what may be there but is not read, and
        ValueError for what may not.
    expected : str
        What errors say.
    default : object
        What it is where there is no such key. None: there has to be one.
    """

    read: Callable[[str], Any]
    expected: str
    default: Any = None


Keys: TypeAlias = Mapping[str, Value]
"""Name of a key, and what may stand behind it: ``{"width": whole(POSITIVE)}``."""


def choice(known: Mapping[str, Any], default: Any = None) -> Value:
    """Stand for one of some words, in upper or lower case."""
    lower = {word.lower(): value for word, value in known.items()}
    return Value(lambda text: lower[text.lower()], " or ".join(known), default)


def whole(known: range, default: Any = None) -> Value:
    """Stand for a whole number, one of a range."""

    def read(text: str) -> int:
        if int(text) not in known:
            raise ValueError(text)
        return int(text)

    return Value(read, choices(known), default)


def several(value: Value, default: Any = None) -> Value:
    """Stand for one value or more, with blanks between them."""

    def read(text: str) -> tuple[Any, ...]:
        if not text:
            raise ValueError(text)
        return tuple(map(value.read, text.split()))

    return Value(read, f"{value.expected}, once or more", default)


TEXT = Value(str, "text")
"""Stands for text as it is, the name of a file for one."""
WORD = Value(printable, "text", "")
"""Stands for text that people read, which may be missing."""
NUMBER = Value(float, "a number", 0.0)
"""Stands for a number, 0 where it is missing."""


def parse_keys(
    path: str | os.PathLike[str], pairs: Mapping[str, str], keys: Keys
) -> dict[str, Any]:
    """Read what stands behind keys.

    Parameters
    ----------
    path : path-like
        What to name in errors.
    pairs, keys : mapping
        Texts by their keys, and the table; keys that are not in the table are left out.

    Raises
    ------
    CorruptFileError
        A key is missing, or there is something behind it that cannot be.
    DatasetError
        It is something that is not read.
    """
    return {key: _value(path, key, value, pairs.get(key)) for key, value in keys.items()}


def check_lengths(
    path: str | os.PathLike[str], values: Mapping[str, Any], lengths: Mapping[str, int]
) -> None:
    """Make sure that there are as many values behind keys as there have to be, or none at all.

    Raises
    ------
    CorruptFileError
        There are others.
    """
    problem = "too many values, or too few"
    for key, length in lengths.items():
        found, where = len(values[key]), f"the key {key!r}"
        if found not in {0, length}:
            raise CorruptFileError(problem, path=path, where=where, expected=length, found=found)


def record_dtype(fields: Fields, order: Order = "<") -> np.dtype:
    """Return the structured type of a header."""
    offsets, formats = zip(*fields.values(), strict=True)
    record = np.dtype({"names": list(fields), "formats": formats, "offsets": offsets})
    return record.newbyteorder(order)


def _plain(value: Any) -> Any:
    plain = value.tolist()
    if isinstance(plain, bytes):
        return plain.partition(b"\0")[0].decode("latin1").strip()
    return tuple(plain) if isinstance(plain, list) else plain


def _value(path: str | os.PathLike[str], key: str, value: Value, text: str | None) -> Any:
    if text is None and value.default is not None:
        return value.default
    kind: type[DatasetError] = CorruptFileError
    problem = "a key is missing"
    try:
        if text is not None:
            return value.read(text)
    except KeyError:
        kind, problem = DatasetError, "this is not read"
    except (ValueError, OverflowError):
        problem = "this makes no sense"
    found = "no such key" if text is None else text
    raise kind(problem, path=path, where=f"the key {key!r}", expected=value.expected, found=found)
