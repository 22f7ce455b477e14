"""What is known of an array before any of it is computed."""

from __future__ import annotations

from typing import NamedTuple, Self

import dask.array as da
import numpy as np
from dask.base import tokenize

from dask_tiled.array.axes import Shown, shown_of
from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.model.description import Description
from dask_tiled.tiling.bases import Chunks


class Given(NamedTuple):
    """The facts about an array that an export needs: the array is asked for them once."""

    name: str
    """That of dask: arrays with the same name are the same."""
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: Chunks
    shown: Shown
    """Axes and units, and the files that are read."""
    description: Description | None = None
    """What an opened array shows of files; None for any other."""

    @classmethod
    def of(cls, arr: da.Array) -> Self:
        """Ask an array."""
        shape, desc = tuple(map(int, arr.shape)), description_of(arr)
        return cls(arr.name, shape, arr.dtype, arr.chunks, shown_of(arr), desc)

    @property
    def token(self) -> str:
        """Hash of the pixels: dask chunks of an opened array do not change it."""
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
        """Number of the first axes that may be cut, so that frames stay whole."""
        return self.ndim if self.description is None else self.description.nav_ndim


def description_of(arr: da.Array) -> Description | None:
    """Return what an array shows of files; None for any other."""
    return arr.description if isinstance(arr, TiledArray) else None
