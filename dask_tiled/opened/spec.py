"""Metadata of an array, available without computing it."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import dask.array as da
import numpy as np
from dask.base import tokenize

from dask_tiled.model.description import Description, facts_of
from dask_tiled.opened.axes import ArrayAxes, shown_of
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.tiling.bases import Chunks


class Given(NamedTuple):
    """Metadata of an array for an export, collected once."""

    name: str
    """Name in dask: arrays with equal names are equal."""
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: Chunks
    shown: ArrayAxes
    """Axes, units, and the descriptions of the files that are read."""
    description: Description | None = None
    """Description of an opened array; None for any other."""

    @classmethod
    def of(cls, arr: da.Array) -> Self:
        """Collect the metadata of an array."""
        shape, desc = tuple(map(int, arr.shape)), description_of(arr)
        return cls(arr.name, shape, arr.dtype, arr.chunks, shown_of(arr), desc)

    @property
    def token(self) -> str:
        """Hash of the pixels, independent of the chunks of an opened array."""
        desc = self.description
        return tokenize(self.name if desc is None else (desc.layout, desc.conversion))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def chunksize(self) -> tuple[int, ...]:
        """Shape of the largest chunk."""
        return tuple(int(max(axis)) for axis in self.chunks)

    @property
    def nav_ndim(self) -> int:
        """Number of leading axes that can be cut without cutting frames."""
        return self.ndim if self.description is None else self.description.nav_ndim

    @property
    def frame_bytes(self) -> int:
        """Bytes of a frame of an opened array; 0 of any other."""
        desc = self.description
        return 0 if desc is None else math.prod(desc.sig_shape) * self.dtype.itemsize

    @property
    def has_labels(self) -> bool:
        """Whether pixels are numbers of labelled regions."""
        return bool(facts_of(self.description).get("has_labels"))
