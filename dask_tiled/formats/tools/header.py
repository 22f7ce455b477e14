"""Headers as tables: offset and dtype of each binary field, values of each text key."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError, printable
from dask_tiled.files.file import File, RemoteFile, opened_fd, read_exactly
from dask_tiled.model.indexing import Array, Index
from dask_tiled.system.files import pread

Fields: TypeAlias = Mapping[str, tuple[int, str]]
"""Offset and NumPy dtype of fields by name: ``{"width": (42, "u2")}``. A dtype may have a shape,
``"3i4"``, or be text, ``"S80"``."""

Order: TypeAlias = Literal["<", ">"]
"""Byte order: little-endian or big-endian."""
Allowed: TypeAlias = Mapping[str, Sequence[int]]
"""Allowed integers by field: ``{"depth": (8, 16), "width": POSITIVE}``."""
NEAR_BYTES = 8192
"""Size of a read that includes the bytes between the headers of a table."""
POSITIVE = range(1, 1 << 63)
"""Any positive number."""


def size_of(fields: Fields) -> int:
    """Return the bytes from the start of a header to the end of its last field."""
    return max(at + np.dtype(kind).itemsize for at, kind in fields.values())


def parse_fields(data: bytes, fields: Fields, order: Order = "<") -> dict[str, Any]:
    """Parse the fields of a header.

    Parameters
    ----------
    data : bytes
        The header, at least :func:`size_of` bytes.
    fields : mapping
    order : {"<", ">"}
        Byte order of all fields.

    Returns
    -------
    dict
        Plain Python values: numbers, tuples of numbers, and text without padding.
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
        Offset of the header in the file.

    Raises
    ------
    TruncatedFileError
        The file ends before the last field does.
    """
    return parse_fields(read_exactly(path, size_of(fields), at, "a header"), fields, order)


def read_table(
    path: str | os.PathLike[str],
    fields: Fields,
    at: int,
    step: int,
    count: int,
    order: Order = "<",
) -> dict[str, Array]:
    """Read the same fields of many headers, without the bytes between them.

    Parameters
    ----------
    path : path-like
    fields : mapping
    at, step, count : int
        Offset of the first header, bytes from one header to the next, and number of
        headers, at least one.
    order : {"<", ">"}
        Byte order of all fields.

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
    last = at + step * (count - 1)
    if min(at, last) < 0 or max(at, last) + size_of(fields) > file.size:
        problem, found = "a header lies beyond the file", f"{file.size} bytes"
        expected = f"{count} headers, {step} bytes apart, from byte {at} on"
        raise TruncatedFileError(problem, path=path, expected=expected, found=found)
    if isinstance(file, RemoteFile):
        return read_scattered(path, fields, at + step * np.arange(count), order)
    values = np.empty(count, record.newbyteorder("="))
    together = max(1, NEAR_BYTES // step)
    with opened_fd(path) as fd:
        for first in range(0, count, together):
            part = values[first : first + together]
            nbytes = step * (len(part) - 1) + record.itemsize
            data = pread(fd, nbytes, at + step * first)
            if len(data) < nbytes:
                file.check()  # raises if the file was just truncated
            part[:] = np.ndarray(len(part), record, data, 0, (step,))
    return {name: values[name] for name in fields}


def read_scattered(
    path: str | os.PathLike[str], fields: Fields, places: Index, order: Order = "<"
) -> dict[str, Array]:
    """Read the same fields of headers that lie anywhere; the rest is as for :func:`read_table`.

    Parameters
    ----------
    places : int64 array
        The bytes of the file that the headers begin at.
    """
    record = record_dtype(fields, order)
    file = File.at(path)
    wrong = places[(places < 0) | (places > file.size - record.itemsize)]
    if len(wrong):
        problem, where, found = "a header lies beyond the file", f"byte {wrong[0]}", file.size
        raise TruncatedFileError(problem, path=path, where=where, found=f"{found} bytes")
    spans = [(place, place + record.itemsize) for place in places.tolist()]
    if isinstance(file, RemoteFile):
        data = b"".join(part.tobytes() for part in file.fetch(spans))
    else:
        with opened_fd(path) as fd:
            data = b"".join(pread(fd, record.itemsize, place) for place, _ in spans)
    if len(data) < record.itemsize * len(spans):
        file.check()  # it has been cut off just now
    values = np.frombuffer(data, record)
    return {name: values[name].astype(record[name].newbyteorder("=")) for name in fields}


def wrong_field(values: Mapping[str, Any], allowed: Allowed) -> str | None:
    """Return the name of the first field with an invalid value, or None."""
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
    """Check that the fields of a header have valid values.

    Parameters
    ----------
    path : path-like
    values, fields, allowed : mapping
        Values, the table of the fields, and the allowed values.
    problem : str
        Message of the error.
    at : int
        Offset of the header in the file.
    hint : str, optional
    kind : type
        Type of the error.

    Raises
    ------
    CorruptFileError, or `kind`
        A field has another value.
    """
    name = wrong_field(values, allowed)
    if name is not None:
        where, expected = f"byte {at + fields[name][0]} ({name})", choices(allowed[name])
        found = values[name]
        raise kind(problem, path=path, where=where, expected=expected, found=found, hint=hint)


def choices(known: Sequence[int]) -> str:
    """Return allowed integers as text."""
    if not isinstance(known, range):
        return " or ".join(map(str, known))
    steps = f", in steps of {known.step}" if known.step > 1 else ""
    last = "more" if known[-1] == POSITIVE[-1] else known[-1]
    return f"{known[0]} {'or' if last == 'more' else 'to'} {last}{steps}"


class HeaderValue(NamedTuple):
    """The type of a text header's value.

    Attributes
    ----------
    read : callable
        Function that converts the text. It raises KeyError for unsupported values, and ValueError
        for invalid ones.
    expected : str
        Description of valid values, for errors.
    default : object
        Value of a missing key; None if the key is required.
    """

    read: Callable[[str], Any]
    expected: str
    default: Any = None


Keys: TypeAlias = Mapping[str, HeaderValue]
"""Value types by key: ``{"width": whole(POSITIVE)}``."""


def choice(known: Mapping[str, Any], default: Any = None) -> HeaderValue:
    """Return the type of a value that is one of some words, in any case."""
    lower = {word.lower(): value for word, value in known.items()}
    return HeaderValue(lambda text: lower[text.lower()], " or ".join(known), default)


def whole(known: range, default: Any = None) -> HeaderValue:
    """Return the type of an integer in a range."""

    def read(text: str) -> int:
        if int(text) not in known:
            raise ValueError(text)
        return int(text)

    return HeaderValue(read, choices(known), default)


def several(value: HeaderValue, default: Any = None) -> HeaderValue:
    """Return the type of several values, separated by blanks."""

    def read(text: str) -> tuple[Any, ...]:
        if not text:
            raise ValueError(text)
        return tuple(map(value.read, text.split()))

    return HeaderValue(read, f"{value.expected}, once or more", default)


TEXT = HeaderValue(str, "text")
"""Text as it is, such as a file name."""
WORD = HeaderValue(printable, "text", "")
"""Text for display, empty by default."""
NUMBER = HeaderValue(float, "a number", 0.0)
"""A number, 0 by default."""


def parse_keys(
    path: str | os.PathLike[str], pairs: Mapping[str, str], keys: Keys
) -> dict[str, Any]:
    """Parse the values of keys.

    Parameters
    ----------
    path : path-like
        Path named in errors.
    pairs, keys : mapping
        Texts by key, and the table; other keys are ignored.

    Raises
    ------
    CorruptFileError
        A key is missing, or has an invalid value.
    DatasetError
        A value is not supported.
    """
    return {key: _value(path, key, value, pairs.get(key)) for key, value in keys.items()}


def check_lengths(
    path: str | os.PathLike[str], values: Mapping[str, Any], lengths: Mapping[str, int]
) -> None:
    """Check that keys have the right number of values, or none.

    Raises
    ------
    CorruptFileError
        The number of values is wrong.
    """
    problem = "wrong number of values"
    for key, length in lengths.items():
        found, where = len(values[key]), f"the key {key!r}"
        if found not in {0, length}:
            raise CorruptFileError(problem, path=path, where=where, expected=length, found=found)


def record_dtype(fields: Fields, order: Order = "<") -> np.dtype:
    """Return the structured dtype of a header."""
    offsets, formats = zip(*fields.values(), strict=True)
    record = np.dtype({"names": list(fields), "formats": formats, "offsets": offsets})
    return record.newbyteorder(order)


def _plain(value: Any) -> Any:
    plain = value.tolist()
    if isinstance(plain, bytes):
        return plain.partition(b"\0")[0].decode("latin1").strip()
    return tuple(plain) if isinstance(plain, list) else plain


def _value(path: str | os.PathLike[str], key: str, value: HeaderValue, text: str | None) -> Any:
    if text is None and value.default is not None:
        return value.default
    kind: type[DatasetError] = CorruptFileError
    problem = "a key is missing"
    try:
        if text is not None:
            return value.read(text)
    except KeyError:
        kind, problem = DatasetError, "unsupported value"
    except (ValueError, OverflowError):
        problem = "invalid value"
    found = "no such key" if text is None else text
    raise kind(problem, path=path, where=f"the key {key!r}", expected=value.expected, found=found)
