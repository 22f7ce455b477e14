"""Where chunks begin and end, in a few bytes however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.model.indexing import Box


class Edges:
    """Where the chunks of one axis begin and end.

    Parameters
    ----------
    chunks : tuple of int
        Sizes along the axis.
    """

    __slots__ = ("bounds", "size", "step")

    def __init__(self, chunks: tuple[int, ...]) -> None:
        self.size = sum(chunks)
        self.step = chunks[0] if chunks else 0
        even = chunks[:-1].count(self.step) == len(chunks) - 1 and chunks[-1] <= self.step
        self.bounds = None if even else np.cumsum((0, *chunks), dtype=np.int64)

    def __getitem__(self, i: int) -> tuple[int, int]:
        if self.bounds is None:
            return i * self.step, min((i + 1) * self.step, self.size)
        return int(self.bounds[i]), int(self.bounds[i + 1])

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        bounds = None if self.bounds is None else self.bounds.tobytes()
        return "dask_tiled.Edges", self.size, self.step, bounds


class Grid:
    """The chunks of an array.

    It is a plain class, so that dask passes it on as one value and does not look inside.

    Parameters
    ----------
    axes : tuple of Edges
    """

    __slots__ = ("axes",)

    def __init__(self, axes: tuple[Edges, ...]) -> None:
        self.axes = axes

    @classmethod
    def of(cls, chunks: Sequence[tuple[int, ...]]) -> Grid:
        """Make the grid of chunks as dask has them."""
        return cls(tuple(map(Edges, chunks)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(edges.size for edges in self.axes)

    def box(self, block_id: tuple[int, ...]) -> Box:
        """Give the box of a chunk."""
        return tuple(edges[i] for edges, i in zip(self.axes, block_id, strict=True))

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "dask_tiled.Grid", *(edges.__dask_tokenize__() for edges in self.axes)
