"""Plan temporary stores, for exports whose tasks would read the same bytes repeatedly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dask_tiled.export.zarr.grids import SHARD_BYTES, ChunkGrid, grids_of
from dask_tiled.model.blocks import BlockRange
from dask_tiled.model.description import Description
from dask_tiled.model.events import EventRun
from dask_tiled.model.indexing import Index
from dask_tiled.opened.spec import Given
from dask_tiled.reading.planning import cut_to, frame_ranges
from dask_tiled.reading.ranges import ReadRanges
from dask_tiled.tiling.bases import Chunks
from dask_tiled.tiling.sizes import common_sizes, divided

MOST_TIMES = 4
"""Exports that would read bytes this many times are faster through a temporary store."""
PAGE_BYTES = 4096
"""Least bytes of a disk read."""
LOOKED_AT = 1 << 20
"""Number of positions searched for a frame that is not missing."""


def relayed(given: Given, chunks: Chunks, *, keeps: bool = False) -> ChunkGrid | None:
    """Choose the chunks and shards of a temporary store; None if none is needed.

    If the parts of frames that fit into memory are smaller than a disk page or a compressed block,
    whole frames are read first and stored in parts.

    Parameters
    ----------
    given : Given
        The array.
    chunks : tuple of tuple of int
        Chunks of the tasks of a direct export.
    keeps : bool
        Whether tasks that read whole frames keep the dask chunks of the array.
    """
    desc, shape = given.description, given.shape
    if desc is None or given.dtype.kind not in "biufc" or 0 in shape:
        return None
    blocks = [axis[0] for axis in chunks]
    if times_read(desc, blocks[desc.nav_ndim :]) < MOST_TIMES:
        return None
    sizes, nav = common_sizes(given.chunks) if keeps else shape, desc.nav_ndim
    shard = divided(sizes, shape, nav, math.prod(given.chunksize))
    if given.frame_bytes > SHARD_BYTES and given.chunksize[nav:] != shape[nav:]:
        shard = given.chunksize  # whole blocks of the file
    chunk = [
        n if n % block and n < size else min(n, block)
        for n, block, size in zip(shard, blocks, shape, strict=True)
    ]
    return ChunkGrid(shape, *grids_of(given, tuple(chunk), shard))


def times_read(desc: Description, sizes: Sequence[int]) -> float:
    """Return how often each byte is read by tasks that read one part of all frames each."""
    count = math.prod(-(-n // size) for n, size in zip(desc.sig_shape, sizes, strict=True))
    if count == 1:
        return 1
    selection = desc.layout.selection
    numbers = selection.at(np.arange(min(LOOKED_AT, math.prod(desc.nav_shape))))
    there = np.flatnonzero(~selection.are_absent(numbers))[:1]
    if not len(there):
        return 1
    part, whole = (_nbytes(desc, numbers[there], shape) for shape in (sizes, desc.sig_shape))
    return count * part / whole


def _nbytes(desc: Description, frames: Index, sizes: Sequence[int]) -> int:
    """Count the bytes fetched for the first part of frames."""
    cuts = desc.layout.cuts[len(desc.layout.nav_shape) :]
    found = 0
    for piece in frame_ranges(desc.layout, frames, cut_to(cuts, tuple((0, n) for n in sizes))):
        if isinstance(piece, ReadRanges):
            first, last = piece.units.reach
            found += max(PAGE_BYTES, last - first)
        elif isinstance(piece, EventRun):
            found += max(PAGE_BYTES, piece.nbytes)
        else:
            count = piece.decoded if isinstance(piece, BlockRange) else math.prod(piece.shape)
            found += max(PAGE_BYTES, count * desc.dtype.itemsize)
    return max(1, found)
