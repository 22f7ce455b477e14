"""Protocols of jobs, which process the tiles of a chunk, and of their sinks."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from dask_tiled.model.indexing import Array, Box, Index
from dask_tiled.tiling.negotiation import TilingRequest


class TileInfo(NamedTuple):
    """Position of a tile in its array.

    Attributes
    ----------
    origin : tuple of int
        Position of its first pixel: index of the frame, then signal axes.
    shape : tuple of int
        Shape of the tile: frames, then signal axes.
    frames : int64 array
        Numbers of its frames, counted in C order of the navigation shape.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> def number(tile, info: dask_tiled.TileInfo):
    ...     return info.frames
    >>> print(dask_tiled.map_tiles(number, arr, dtype=int, sig_shape=())[1, :3].compute())
    [64 65 66]
    """

    origin: tuple[int, ...]
    shape: tuple[int, ...]
    frames: Index


class Chunk(NamedTuple):
    """Position and dtype of a chunk."""

    box: Box  # position in the array
    nav_ndim: int
    dtype: np.dtype  # dtype of the pixels

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
        """Return the slices of the signal axes that a tile covers."""
        starts = (start for start, _ in self.box[self.nav_ndim :])
        corner = [at - start for at, start in zip(info.origin[1:], starts, strict=True)]
        return tuple(slice(at, at + n) for at, n in zip(corner, info.shape[1:], strict=True))


class Sink(Protocol):
    """Consumer of the tiles of one chunk."""

    @property
    def arrays(self) -> list[Array]:
        """All arrays that the sink holds, to count their memory."""

    def working_bytes(self, tile: tuple[int, ...]) -> int:
        """Return the memory besides the arrays, while the sink processes a tile of a shape."""

    def take(self, tile: Array, first: int, info: TileInfo) -> None:
        """Process a tile, whose first frame has the number ``first`` in the chunk."""

    def result(self) -> Array:
        """Return the result of the chunk, in the shape that the job states."""


class Job(Protocol):
    """Processing of all tiles of a chunk: a picklable value that dask can tokenize."""

    @property
    def request(self) -> TilingRequest:
        """Preferred tiles."""

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the results."""

    def begin(self, chunk: Chunk) -> Sink:
        """Return the sink of a chunk."""
