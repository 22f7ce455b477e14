"""Arrays to choose from: a single one, or all pictures that a file lists."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.bridges.pictures import pictures_of
from dask_tiled.live.recording import Recording
from dask_tiled.opened.inputs import is_array
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.opening.arrays import opened
from dask_tiled.opening.datasets import Datasets
from dask_tiled.opening.listing import Contents

PLAIN = str, int, float, tuple, list, dict
"""Types of options that are shown in code; others are named."""


def source_of(data: Any, options: Mapping[str, Any]) -> str:
    """Return code that opens files, or a lazy form of a NumPy array; empty for lazy arrays."""
    if isinstance(data, np.ndarray):
        return "da.from_array(arr)"
    if isinstance(data, Recording):
        settled = {key: x for key, x in data.options.items() if x is not None}
        data, options = data.path, {"missing": "fill", **settled, **options}
    if is_array(data):
        return ""
    is_series = not isinstance(data, str | os.PathLike)
    path = [os.fspath(one) for one in data] if is_series else os.fspath(data)
    told = {key: repr(x) if isinstance(x, PLAIN) else key for key, x in options.items()}
    named = "".join(f", {key}={text}" for key, text in told.items())
    return f"dask_tiled.open_dataset({path!r}{named})"


def pictures_shown(data: Any, options: Mapping[str, Any], *, follow: bool) -> tuple[Pictures, bool]:
    """Return the arrays of what a user shows, and whether their files are followed.

    The first frame of a recording is waited for.
    """
    if isinstance(data, Recording):
        data, follow = data.array, True
    return Pictures.of(data, options, follow=follow), follow


class Pictures:
    """Arrays by number, opened on first access."""

    def __init__(self, first: da.Array, contents: Contents) -> None:
        self.names = [*contents.keys]
        self.begins_with = self.names.index(contents.meant)
        self.chosen = [
            "" if name == contents.meant else f", {contents.option}={key!r}"
            for name, key in contents.keys.items()
        ]
        """Code of the option that chooses each picture; empty where none is needed."""
        self._first, self._datasets = first, Datasets(contents)

    @classmethod
    def of(cls, data: Any, options: Mapping[str, Any], *, follow: bool = False) -> Pictures:
        """Open an array, or the default picture of files, and list the other pictures."""
        if is_array(data):
            return cls(opened(data, **options), pictures_of(data, options, None))
        options = {**options, "follow": True} if follow else options
        first = opened(data, **options)
        return cls(first, pictures_of(data, options, description_of(first)))

    def __getitem__(self, number: int) -> da.Array:
        """Open a picture."""
        return self._first if number == self.begins_with else self._datasets[self.names[number]]
