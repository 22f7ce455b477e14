"""Text headers as tables: for each key what may stand behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from dask_tiled.errors import CorruptFileError, DatasetError, printable
from dask_tiled.formats.tools.headers import choices


class Value(NamedTuple):
    """What may stand behind a key.

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
    pairs : mapping
        Keys and their texts. Those that are not in the table are left out.
    keys : mapping
        The table.

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
    for key, length in lengths.items():
        if values[key] and len(values[key]) != length:
            raise CorruptFileError(
                "too many values, or too few",
                path=path,
                where=f"the key {key!r}",
                expected=length,
                found=len(values[key]),
            )


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
    found = "no such key" if text is None else text[:100]
    raise kind(problem, path=path, where=f"the key {key!r}", expected=value.expected, found=found)
