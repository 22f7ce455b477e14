"""Entries of TIFF pages as plain values, for display and metadata.

tifffile has the names of tags, and readers for those of vendors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import BytesIO
from typing import Any

import numpy as np

from dask_tiled.errors import require
from dask_tiled.foreign import Use, find
from dask_tiled.formats.tiff import eer
from dask_tiled.formats.tiff.ifd import COUNTS, OFFSETS, SUB_IFDS, Ifd, unpack
from dask_tiled.formats.tiff.metamorph import UIC_TAGS

NAMES = {
    "tifffile.tifffile": {
        "imagej_metadata": Use("texts and labels of ImageJ", "the tag is shown as bytes"),
    }
}
"""By module: the private names, their use, and what happens without them."""
LINKS = {34665, 34853, 40965, SUB_IFDS, *UIC_TAGS, *OFFSETS, *COUNTS}
"""Tags that refer to other data."""
TEXT, BYTES = 2, {1, 2, 7}  # types of values
ENCODINGS = "utf8", "cp1252"
IJ_COUNTS, IJ_METADATA = 50838, 50839
MOST_VALUE_BYTES = 1 << 16
MOST_LISTED = 256  # longer values are summarised


def read_tags(ifd: Ifd) -> dict[str, Any]:
    """Read the entries of a page as plain values, by the names of tifffile."""
    tifffile = require("tifffile", "tiff", ifd.source.file.path)
    readers, order = tifffile.TIFF.TAG_READERS, ifd.source.flavour.order
    values = ifd.small_values(sorted(ifd.entries.keys() - LINKS), MOST_VALUE_BYTES)
    tags = {}
    for tag, (entry, stored) in values.items():
        value = _value(order, entry[1], stored)
        if isinstance(value, tuple) and len(value) == 1 and tag not in tifffile.TIFF.TAG_TUPLE:
            value = value[0]
        with suppress(Exception), _silenced():  # a value may be damaged
            if tag == IJ_METADATA:
                counts = ifd.source.numbers(values[IJ_COUNTS][0])
                value = find("tifffile.tifffile", "imagej_metadata")(stored, counts, order)
            elif tag in readers:
                handle = tifffile.FileHandle(BytesIO(stored))
                value = readers[tag](handle, order, *entry[1:3], ifd.source.flavour.word.size)
        if tag == eer.ACQUISITION and (facts := eer.read_facts(ifd)):
            tags[eer.FACTS] = facts
            continue
        tags[tifffile.TIFF.TAGS.get(tag, str(tag))] = _plain(value)
    return tags


def _value(order: str, kind: int, stored: bytes) -> Any:
    """Return text, bytes or numbers."""
    for encoding in ENCODINGS if kind == TEXT else ():
        with suppress(UnicodeDecodeError):
            return stored.rstrip(b"\0").decode(encoding).strip()
    return stored if kind in BYTES else unpack(order, kind, stored)


@contextmanager
def _silenced() -> Iterator[None]:
    """Discard what tifffile logs about a value that is read here."""
    logging.getLogger("tifffile").addFilter(_is_heard)  # adding a filter again has no effect
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


_silent: ContextVar[bool] = ContextVar("silent", default=False)


def _is_heard(_: logging.LogRecord) -> bool:
    return not _silent.get()


def _plain(value: Any) -> Any:
    """Return a value as numbers, text and tuples."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist() if value.size <= MOST_LISTED else range(value.size)
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, bytes):
        return value.hex() if len(value) <= MOST_LISTED else f"{len(value)} bytes"
    if isinstance(value, (tuple, list, range)):
        return tuple(map(_plain, value)) if len(value) <= MOST_LISTED else f"{len(value)} values"
    return str(value)[:MOST_LISTED]
