"""Text headers of frames, decoded together: at once those with commas in the same places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.model.headers import Records, WrongHeader
from dask_tiled.model.indexing import Array


class Place(NamedTuple):
    """Where a value stands in a header."""

    start: int
    stop: int
    per: float | None = None  # how many of what is counted there make one


DATE = np.frombuffer(b"0000-00-00 00:00:00.".ljust(40, b"0"), np.uint8)
Places = Mapping[str, Sequence[Place]]
"""Where the values of each field of what headers say stand."""


def fields_between(header: bytes, separator: bytes = b",") -> list[Place]:
    """Find the fields of a header that hold text: neither blanks alone, nor what fills it up."""
    places, at = [], 0
    for text in header.split(separator):
        if b"\0" not in text and text.strip():
            places.append(Place(at, at + len(text)))
        at += len(text) + 1
    return places


def decode_text(
    records: Records, facts: Records, find: Callable[[bytes], Places], separator: bytes = b","
) -> None:
    """Decode headers of text; see :class:`~dask_tiled.model.headers.Headers`.

    Parameters
    ----------
    records : array of bytes
    facts : structured array
        A field of several values has as many in every header.
    find : callable
        Finds the values in one header, which stands for all with separators in the same places.
    separator : bytes
        What stands between the values.

    Raises
    ------
    WrongHeader
        A value is missing, or cannot be read.
    """
    if not len(records):
        return
    text = records.view(np.uint8).reshape(len(records), -1)
    for rows in _alike(text == ord(separator)):
        places = find(text[rows[0]].tobytes())
        for name in facts.dtype.names or ():
            of_one = facts[name].reshape(len(facts), -1)
            found = places.get(name, ())
            if len(found) != of_one.shape[1]:
                count = f"{of_one.shape[1]} values, as in the first frame"
                raise WrongHeader(int(rows[0]), name, count, len(found))
            for k, place in enumerate(found):
                of_one[rows, k] = _values(text, rows, place, of_one.dtype, name)
            facts[name] = of_one.reshape(facts[name].shape)


def _alike(separators: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray[np.int64]]:
    """List the rows that are equal, group by group."""
    if (separators == separators[0]).all():
        yield np.arange(len(separators))
        return
    packed = np.packbits(separators, axis=1)
    keys = packed.view(f"S{packed.shape[1]}")[:, 0]
    _, which = np.unique(keys, return_inverse=True)
    order = np.argsort(which, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(which[order])) + 1)


def _values(
    text: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64], at: Place, dtype: np.dtype, name: str
) -> Array:
    """Read a value of some headers; most have the same."""
    part = text[rows, at.start : at.stop]
    texts = np.ascontiguousarray(part).view(f"S{at.stop - at.start}")[:, 0]
    if (part == part[0]).all():
        texts = texts[:1]
    try:
        values = _read(texts, dtype)
    except (ValueError, OverflowError):
        number = next(k for k in range(len(texts)) if not _is_read(texts[k : k + 1], dtype))
        where, expected = f"bytes {at.start} to {at.stop} ({name})", f"a {dtype}"
        found = repr(bytes(texts[number]).decode("latin1"))
        raise WrongHeader(int(rows[number]), where, expected, found) from None
    return values if at.per is None else values / at.per


def _read(texts: npt.NDArray[np.bytes_], dtype: np.dtype) -> Array:
    if dtype.kind == "M":  # numpy takes words, and moves by time zones
        signs = texts.view(np.uint8).reshape(len(texts), -1).copy()
        signs[:, 10:11][signs[:, 10:11] == ord("T")] = ord(" ")
        is_digit = (signs >= ord("0")) & (signs <= ord("9"))
        if not (np.where(is_digit, ord("0"), signs) == DATE[: signs.shape[1]]).all():
            raise ValueError("no date and time")
    return texts.astype(dtype)


def _is_read(text: npt.NDArray[np.bytes_], dtype: np.dtype) -> bool:
    try:
        _read(text, dtype)
    except (ValueError, OverflowError):
        return False
    return True
