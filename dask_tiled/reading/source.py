"""What is read: a layout, its conversion, its backend."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.model.conversion import Conversion
from dask_tiled.model.indexing import Cut
from dask_tiled.model.layout import Layout

LARGE_BYTES = 4096
"""More than this is no part of every task."""


class Source:
    """The pixels that a layout holds, as they are shown.

    It is a plain class, so that dask passes it on as one value and does not look inside.
    """

    __slots__ = ("_token", "conversion", "io", "layout")

    def __init__(self, layout: Layout, conversion: Conversion, io: str) -> None:
        self.layout = layout
        self.conversion = conversion
        self.io = io
        self._token = ""

    @property
    def dtype(self) -> np.dtype:
        """Type of the pixels."""
        return self.conversion.dtype

    @property
    def token(self) -> str:
        """What tells it from every other source, in every process."""
        if not self._token:
            values = self.layout.__dask_tokenize__(), self.conversion.__dask_tokenize__(), self.io
            # repr is the same in every process, and exact for numbers.
            self._token = hashlib.blake2b(repr(values).encode(), digest_size=16).hexdigest()
        return self._token

    @property
    def is_large(self) -> bool:
        """Whether it is too large to be a part of every task."""
        return self.nbytes > LARGE_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of numbers that a task needs to know what it reads."""
        corrections = self.conversion.corrections
        arrays: list[Any] = [self.layout.pieces, self.layout.selection.numbers]
        if corrections is not None:
            arrays += [corrections.dark, corrections.gain, corrections.excluded_pixels]
        return sum(array.nbytes for array in arrays if array is not None)

    def cut(self, cuts: Sequence[Cut]) -> Source:
        """Show a part."""
        return Source(self.layout.cut(cuts), self.conversion, self.io)

    def __dask_tokenize__(self) -> tuple[str, str]:
        # dask does not look inside what this returns: values only.
        return "dask_tiled.Source", self.token
