"""What is written beside pixels: where they come from, in terms of JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from dask_tiled.model.description import Description

MARK = "dask_tiled"
"""The attribute by which an array is known as written, or shown, by this package."""


def attributes_of(desc: Description | None) -> dict[str, Any]:
    """Write down what is known of an array; of one that was not opened, who writes it."""
    from importlib.metadata import version

    mark: dict[str, Any] = {"version": version("dask-tiled")}
    if desc is not None:
        mark |= {
            "format": desc.format,
            "files": [file.path for file in desc.files],
            "axes": [asdict(axis) for axis in desc.axes],
            "metadata": plain(desc.metadata),
        }
    return {MARK: mark}


def plain(value: Any) -> Any:
    """Give a value in terms of JSON; what that has no form for becomes text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    item = value.item() if isinstance(value, np.generic) else str(value)
    return str(item) if isinstance(item, np.generic) else plain(item)
