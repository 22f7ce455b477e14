"""What tasks read: the chunk of a call of the engine, and the box of a call that reads a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dask_tiled.graphs.aggregation import finished_chunk
from dask_tiled.model.indexing import Box
from dask_tiled.plans.recipes import Recipes, make, make_all, make_later
from dask_tiled.plans.tasks import Block, Function
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Grid


class ChunkCall(NamedTuple):
    """A call of the engine: the recipes of a chunk, its pixels if another task reads them."""

    recipes: Recipes
    block_id: Block
    pixels: Any
    operands: Sequence[Any]

    @classmethod
    def of(cls, function: Function, args: Sequence[Any]) -> ChunkCall | None:
        """Match a call of the engine."""
        if function is finished_chunk:
            recipes, ending, _, block_id, *operands = args
            return cls(recipes, ending.block_of(block_id), None, operands)
        if function in (make, make_all, make_later):
            recipes, block_id, pixels, *operands = args
            return cls(recipes, block_id, pixels, operands)
        return None

    @property
    def box(self) -> Box:
        """Position of the chunk in its sources; results may have further axes."""
        grid = self.recipes.grid
        return grid.box(self.block_id[: len(grid.axes)])


def box_of_read(args: Sequence[Any]) -> Box | None:
    """Return the box that a call reads: of a chunk of a grid, or all; None if it reads no source.

    The source is the first argument.
    """
    if not args or not isinstance(args[0], Source):
        return None
    grid = next((x for x in args if isinstance(x, Grid)), None)
    return tuple((0, n) for n in args[1]) if grid is None else grid.box(args[-1])
