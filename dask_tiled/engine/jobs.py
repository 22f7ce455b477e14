"""Jobs: what is done with the tiles of a chunk."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from dask_tiled.model.indexing import Array, Box, Index
from dask_tiled.tiling.negotiation import TilingRequest


class TileInfo(NamedTuple):
    """Where a tile lies in its array.

    Attributes
    ----------
    origin : tuple of int
        Position of its first pixel: number of the frame, then signal axes.
    shape : tuple of int
        Shape of the tile: frames, then signal axes.
    frames : int64 array
        Numbers of its frames, counted in C order of the navigation shape.
    """

    origin: tuple[int, ...]
    shape: tuple[int, ...]
    frames: Index


class Chunk(NamedTuple):
    """What a job has to know about a chunk."""

    box: Box  # where it lies in the array
    nav_ndim: int
    dtype: np.dtype  # type of its pixels

    @property
    def nav_shape(self) -> tuple[int, ...]:
        """Lengths of the navigation axes."""
        return tuple(stop - start for start, stop in self.box[: self.nav_ndim])

    @property
    def sig_shape(self) -> tuple[int, ...]:
        """Lengths of the signal axes."""
        return tuple(stop - start for start, stop in self.box[self.nav_ndim :])

    def origin(self, part: Box) -> list[int]:
        """Return the position in the array of the first pixel of a part of the signal axes."""
        return [a + b for (a, _), (b, _) in zip(self.box[self.nav_ndim :], part, strict=True)]

    def part(self, info: TileInfo) -> tuple[slice, ...]:
        """Return which part of the signal axes a tile is."""
        starts = (start for start, _ in self.box[self.nav_ndim :])
        corner = [at - start for at, start in zip(info.origin[1:], starts, strict=True)]
        return tuple(slice(at, at + n) for at, n in zip(corner, info.shape[1:], strict=True))


class Sink(Protocol):
    """What takes the tiles of one chunk for a job."""

    def take(self, tile: Array, first: int, info: TileInfo) -> None:
        """Take a tile, whose first frame has the number ``first`` in the chunk."""

    def result(self) -> Array:
        """Return what became of the chunk, in the shape that the job has promised."""


class Job(Protocol):
    """What is done with all tiles of a chunk. A picklable value that dask can tokenize."""

    @property
    def request(self) -> TilingRequest:
        """Which tiles it wishes."""

    @property
    def dtype(self) -> np.dtype:
        """Type of its results."""

    def begin(self, chunk: Chunk) -> Sink:
        """Begin to work on a chunk."""
