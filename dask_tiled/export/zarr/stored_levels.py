"""Levels that are stored, shown as arrays: what later passes are made of."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import dask.array as da
import numpy as np

from dask_tiled.array.tasks import Block
from dask_tiled.model.indexing import Array, Box
from dask_tiled.tiling.bases import Grid, split


def in_blocks(
    read: Callable[[Box], Array], shape: Sequence[int], dtype: np.dtype, unit: Sequence[int]
) -> da.Array:
    """Show what is read of a box as an array, in blocks of a shape."""
    chunks = tuple(map(split, shape, unit))
    return da.map_blocks(
        _read_block,
        read,
        Grid.of(chunks),
        chunks=chunks,
        dtype=dtype,
        meta=np.empty((0,) * len(chunks), dtype),
        name=f"stored-level-{uuid.uuid4().hex}",  # what is stored may change
    )


def _read_block(read: Callable[[Box], Array], grid: Grid, block_id: Block) -> Array:
    return read(grid.box(block_id))
