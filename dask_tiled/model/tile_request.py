"""The request that a format's ``adjust_tile`` receives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dask_tiled.model.description import Description


@dataclass(frozen=True, slots=True)
class TileRequest:
    """The combined request of all consumers of a chunk, for a format's ``adjust_tile``.

    Attributes
    ----------
    desc : Description
        Description of the array.
    chunk : tuple of int
        Shape of the largest chunk, with the axes of a tile: frames, then signal axes.
    blocks : tuple of int
        Block size along each of these axes: a tile holds a multiple of it, or ends with the chunk.
    by : {"tile", "frame", "pixel"}
        The strictest request; with "frame", tiles hold whole frames.
    depth : int or None
        Largest number of frames that a consumer accepts.
    pixels : int
        Number of pixels that fit into the cache, or the requested number.
    """

    desc: Description
    chunk: tuple[int, ...]
    blocks: tuple[int, ...]
    by: str
    depth: int | None
    pixels: int


AdjustTile: TypeAlias = Callable[[tuple[int, ...], TileRequest], tuple[int, ...]]
"""Return the shape that a negotiated tile should have instead."""
