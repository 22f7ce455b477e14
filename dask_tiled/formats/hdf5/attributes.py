"""Attributes of HDF5 objects; unreadable ones are skipped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_tiled.formats.tools.text import NOTHING

MOST_BYTES = 1 << 20
"""Larger attributes are not read."""
LONGEST_TEXT, MOST_VALUES = 1000, 64
"""Maximum number of characters of a text, and maximum number of attributes of an object or
numbers of an attribute."""


def attribute(item: Any, name: str) -> Any:
    """Read an attribute; None if it is missing, null, large, or of an unknown type."""
    import h5py

    try:
        large = item.attrs.get_id(name).get_storage_size() > MOST_BYTES
        value = None if large else item.attrs[name]
    except (OSError, RuntimeError, TypeError, ValueError, LookupError, AttributeError):
        return None
    return None if isinstance(value, h5py.Empty) else value


def text(value: Any) -> str:
    """Return a text, however it is stored; empty for other values."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        value = value.decode("utf8", "replace")
    return str(value) if isinstance(value, str) else ""


def text_of(value: Any) -> str:
    """Return a text or an integer as text."""
    array = np.asarray(value)
    found = text(value)
    return str(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "iu" else found


def label(value: Any) -> str:
    """Return a name or unit; empty for placeholders."""
    found = text(value).strip()
    return "" if found in NOTHING else found


def texts(value: Any) -> list[str]:
    """Return a list of texts, from an array or a text with colons or commas."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return [label(item) for item in value]
    return [label(name) for name in re.split(r"[:,]", text(value).strip("[]"))]


def number(value: Any, default: float) -> float:
    """Return a finite number, or ``default``."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        return default
    return float(array.reshape(-1)[0])


def plain_attributes(item: Any) -> Mapping[str, Any]:
    """Read the first attributes of an object as plain values; skip large arrays."""
    found: dict[str, Any] = {}
    for key in list(item.attrs)[:MOST_VALUES]:
        value = plain_value(attribute(item, key), MOST_VALUES)
        if value is not None:
            found[key] = value
    return found


def plain_value(value: Any, most: int, longest: int = LONGEST_TEXT) -> Any:
    """Convert to a plain value; None unless it is a text, a number or a small array."""
    if isinstance(value, (bytes, str)):
        return text(value)[:longest]
    if getattr(value, "size", most + 1) > most or value.dtype.kind not in "biufcSUO":
        return None
    items = [text(v)[:longest] if isinstance(v, (bytes, str)) else v for v in value.flat]
    items = [v.item() if isinstance(v, np.generic) else v for v in items]
    if not all(isinstance(item, (bool, int, float, complex, str)) for item in items):
        return None
    return items[0] if value.ndim == 0 else tuple(items)
