"""The answer of the negotiation: chunks, the tiles inside them, and a reason for each number."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dask_tiled.model.tables import html_table, text_table
from dask_tiled.tiling import drawing
from dask_tiled.tiling.bases import Base, Chunks, frames_base, split
from dask_tiled.tiling.pictures import Picture, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dask_tiled.tiling.negotiation import TilingRequest


@dataclass(frozen=True, slots=True)
class TilingScheme:
    """The negotiated answer.

    Attributes
    ----------
    chunks : tuple of tuple of int
        dask chunks of the array.
    tile_shape : tuple of int
        Shape of the tiles inside a chunk: frames, then signal axes. Tiles at the borders of a chunk
        may be smaller.
    reasons : tuple of (str, str)
        What was decided, and why.
    dims : tuple of str
        Names of the axes.
    dtype : numpy.dtype
        Type of the pixels of a tile.
    bases : tuple of Base
        Where each axis may be cut without cutting a block of the file.
    requests : tuple of TilingRequest
        What the consumers wish.
    """

    chunks: Chunks
    tile_shape: tuple[int, ...]
    reasons: tuple[tuple[str, str], ...]
    dims: tuple[str, ...]
    dtype: np.dtype
    bases: tuple[Base, ...]
    requests: tuple[TilingRequest, ...]

    def explain(self) -> str:
        """Tell in words how the numbers came about."""
        return text_table(self.reasons)

    def tiles(self, block_id: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
        """Cut a chunk into its tiles, none of which cuts a block of the file.

        Parameters
        ----------
        block_id : tuple of int
            Number of the chunk along each axis.

        Yields
        ------
        tuple of slice
            Of the frames of the chunk, put one after the other, and of each signal axis of the
            chunk. All tiles of the same frames follow one another.
        """
        ends = map(itertools.pairwise, self._edges(block_id))
        return itertools.product(*([slice(*both) for both in axis] for axis in ends))

    def _edges(self, block_id: Sequence[int]) -> list[list[int]]:
        """Find where the tiles of a chunk begin and end: along its frames, and each signal axis."""
        starts = [sum(axis[:i]) for axis, i in zip(self.chunks, block_id, strict=True)]
        sizes = [axis[i] for axis, i in zip(self.chunks, block_id, strict=True)]
        nav_ndim = len(sizes) - len(self.tile_shape) + 1
        bases = [base.at(start) for base, start in zip(self.bases, starts, strict=True)]
        frames = frames_base(sizes[:nav_ndim], bases[:nav_ndim])
        lengths = (math.prod(sizes[:nav_ndim]), *sizes[nav_ndim:])
        axes = zip(lengths, self.tile_shape, (frames, *bases[nav_ndim:]), strict=True)
        parts = (split(length, size, base.lead % size) for length, size, base in axes)
        return [list(itertools.accumulate(axis, initial=0)) for axis in parts]

    def plot(self) -> Figure:
        """Draw the chunks over the array and the tiles over a chunk.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ImportError
            There is no matplotlib.
        """
        return drawing.figure(self.picture())

    def _repr_html_(self) -> str:
        return f"<div>{drawing.svg(self.picture())}{html_table(self.reasons)}</div>"

    def picture(self) -> Picture:
        """Compose what :meth:`plot` and notebooks show, with the largest chunk as an example."""
        block = tuple(axis.index(max(axis)) for axis in self.chunks)
        edges = self._edges(block)
        return picture(self.chunks, self.dims, block, self.tile_shape, self.dtype, edges)
