"""Arrays to choose from: a single one, or all pictures that a file lists."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.bridges.pictures import listing_of
from dask_tiled.opened.inputs import is_array
from dask_tiled.opening import opened

PLAIN = str, int, float, tuple, list, dict
"""Types of options that are shown in code; others are named."""


def source_of(data: Any, options: Mapping[str, Any]) -> str:
    """Return code that opens files, or a lazy form of a NumPy array; empty for lazy arrays."""
    if isinstance(data, np.ndarray):
        return "da.from_array(arr)"
    if is_array(data):
        return ""
    is_series = not isinstance(data, str | os.PathLike)
    path = [os.fspath(one) for one in data] if is_series else os.fspath(data)
    told = {key: repr(x) if isinstance(x, PLAIN) else key for key, x in options.items()}
    named = "".join(f", {key}={text}" for key, text in told.items())
    return f"dask_tiled.open_dataset({path!r}{named})"


class Pictures:
    """Arrays by number, opened on first access."""

    def __init__(self, first: da.Array, others: Mapping[str, Callable[[], da.Array]]) -> None:
        self.names = [*others]
        self._open = [*others.values()]
        self._first = first
        self.begins_with = 0
        self.chosen = [""] * len(self.names)
        """Code of the option that chooses each picture; empty where none is needed."""

    @classmethod
    def of(cls, data: Any, options: Mapping[str, Any], *, follow: bool = False) -> Pictures:
        """Open an array, or the default picture of files, and list the other pictures."""
        if follow and not is_array(data):
            options = {**options, "follow": True}
        first = opened(data, **options)
        listing = None if first is data else listing_of(first, options)
        if listing is None:
            return cls(first, {"data": lambda: first})
        option, meant, names = listing
        plain = {key: value for key, value in options.items() if key != "axes"}

        def opens(key: Any) -> Callable[[], da.Array]:
            return lambda: opened(data, **plain, **{option: key})

        found = cls(first, {name: opens(key) for key, name in names.items()})
        found.begins_with = [*names].index(meant)
        found.chosen = ["" if key == meant else f", {option}={key!r}" for key in names]
        return found

    def __getitem__(self, number: int) -> da.Array:
        """Open a picture."""
        return self._first if number == self.begins_with else self._open[number]()
