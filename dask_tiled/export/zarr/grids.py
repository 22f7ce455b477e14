"""Choose the zarr chunks and shards of an array and of the levels of its pyramid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dask_tiled.errors import DatasetError, TilingError, check_whole
from dask_tiled.export.zarr.levels import BLOCK_BYTES
from dask_tiled.model.axes import Axis
from dask_tiled.model.ome_axes import halved_axes
from dask_tiled.model.pyramids import Halving
from dask_tiled.opened.spec import Given
from dask_tiled.tiling.bases import largest_divisor
from dask_tiled.tiling.frames import cut_frame, cut_shard
from dask_tiled.tiling.sizes import common_sizes, divided, equal_chunks, grown

CHUNK_BYTES = 1 << 20
"""Bytes of a zarr chunk before compression, unless one frame is larger. Such a chunk stays in
the cache from decoding to compression."""
SHARD_BYTES = 16 << 20
"""Bytes of a shard before compression. Creating a file takes as long as compressing 100 kB.
Frames that are larger are cut."""
SMALL = 256
"""Pixels along an axis up to which ``pyramid=True`` adds no further level."""
LEAST_BYTES = 128 << 10
"""Shards cover the same area in all levels, unless they would be smaller than this."""


class ChunkGrid(NamedTuple):
    """Shape, chunk shape and shard shape of a zarr array."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    shard: tuple[int, ...] | None

    @property
    def unsharded(self) -> ChunkGrid:
        """The grid with shards as chunks."""
        chunk = map(min, self.shard or self.chunk, (max(1, n) for n in self.shape))
        return ChunkGrid(self.shape, tuple(chunk), None)


class Pyramid(NamedTuple):
    """The levels of a pyramid except the first."""

    halving: Halving = Halving()
    levels: tuple[ChunkGrid, ...] = ()


def grids_of(
    given: Given, chunks: Any, shards: Any, *, keeps: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Choose zarr chunks and shards: those requested, or ones of whole frames or parts of them.

    With ``keeps``, defaults divide the dask chunks.
    """
    shape, dtype, known = given.shape, given.dtype, given.shown.axes
    dims = [axis.name for axis in known if axis] if all(known) else []
    shard = None if shards is None else equal_chunks("shards", shards, shape, dtype, dims)
    if chunks is not None:
        grid = equal_chunks("zarr chunks", chunks, shape, dtype, dims)
    else:
        whole, size, desc = given.nav_ndim, dtype.itemsize, given.description
        large = given.frame_bytes > SHARD_BYTES
        if desc is None or keeps or shard is not None:
            sizes = common_sizes(given.chunks) if keeps else given.chunksize
            shard = shard or divided(sizes, shape, whole, SHARD_BYTES // size)
            grid = divided(shard, shape, whole, CHUNK_BYTES // size)
            if desc is not None and large:
                grid = cut_shard(desc, grid, CHUNK_BYTES // size)
        elif large:
            grid, shard = cut_frame(desc, CHUNK_BYTES // size, SHARD_BYTES // size)
        else:
            grid = divided(shape, shape, whole, CHUNK_BYTES // size)
            shard = tuple(grown(grid, shape, SHARD_BYTES // size))
        if shards is None and grid == shard:
            shard = None
    if shard is None:
        return grid, None
    # A shard that covers an axis may be longer than it.
    axes = zip(shard, grid, shape, strict=True)
    shard = tuple(-(-n // k) * k if n == size else n for n, k, size in axes)
    if any(n % k for n, k in zip(shard, grid, strict=True)):
        raise TilingError("shards must be multiples of zarr chunks", expected=grid, found=shard)
    return grid, shard


def pyramid_of(
    given: Given,
    wanted: Any,
    method: Any,
    names: Sequence[str] | None,
    first: ChunkGrid,
    *,
    like: bool,
    keeps: bool = False,
) -> Pyramid:
    """Choose the levels of an array.

    Parameters
    ----------
    given : Given
        The array.
    wanted : bool or int
        Number of levels besides the array; True adds levels until halved axes have at most
        ``SMALL`` pixels.
    method : {"mean", "mode", "nearest"}
        How levels are computed.
    names : sequence of str, optional
        Names of the dimensions of an array in a group.
    first : ChunkGrid
        Chunks and shards of the array itself.
    like : bool
        Give levels the same zarr chunks as the array, as where frames are cut.
    keeps : bool
        Whether tasks keep the dask chunks of the array.

    Raises
    ------
    DatasetError
        The number is invalid, the array is not an image of numbers, or labels would be averaged.
    """
    if isinstance(wanted, int) and not wanted:
        return Pyramid()
    if given.ndim < 2 or names is None or len({*names}) < given.ndim:
        problem = "the axes do not form an image, which a pyramid needs"
        expected = "layout='group', and 2 axes or more with different names"
        raise DatasetError(problem, expected=expected, found=f"an array of {given.ndim} axes")
    if given.dtype.kind not in "biufc":
        raise DatasetError("a pyramid needs pixels that are numbers", found=str(given.dtype))
    if method == "mode" and given.dtype.kind not in "biu":
        problem = "the mode is a method for labels"
        raise DatasetError(problem, expected="integers or booleans", found=str(given.dtype))
    desc = given.description
    axes = [
        replace(x or Axis(name), name=name) for x, name in zip(given.shown.axes, names, strict=True)
    ]
    sig_ndim = 2 if desc is None else len(desc.sig_shape) or 2
    halving = Halving(halved_axes(axes, sig_ndim), method)
    longest = max(given.shape[k] for k in halving.axes)
    if wanted is True:
        count = max(0, -(-longest // SMALL) - 1).bit_length()
    else:
        most = max(0, longest - 1).bit_length()
        count = check_whole("pyramid", wanted, least=0, most=most)
    cut = given.frame_bytes > SHARD_BYTES
    if count and method == "mean" and given.has_labels:
        problem = "the levels of a label image cannot be means of labels"
        expected = "pyramid_method='nearest' (the default for labels) or 'mode'"
        raise DatasetError(problem, expected=expected, found="pyramid_method='mean'")
    levels, grows = [first], given.description is not None and not (keeps or like or cut)
    while len(levels) <= count:
        most = BLOCK_BYTES >> len(halving.axes) * len(levels) if grows else 0
        inner = first.chunk if like or cut else None
        levels.append(_next(given, levels[-1], halving, inner, most, cut=cut))
    return Pyramid(halving, tuple(levels[1:]))


def _next(
    given: Given,
    before: ChunkGrid,
    halving: Halving,
    chunk: Sequence[int] | None,
    most: int,
    *,
    cut: bool,
) -> ChunkGrid:
    """Choose the shape, chunks and shards of the next level; ``chunk`` overrides the chunks.

    Shards grow up to ``most`` bytes: creating a file takes longer than writing its pixels. Those
    of frames that are cut hold whole chunks.
    """
    axes, size = halving.axes, given.dtype.itemsize
    shape, kept = halving.shape(before.shape), before.shard or before.chunk
    covers = [n >= length for n, length in zip(kept, before.shape, strict=True)]
    kept = tuple(max(1, shape[k]) if covers[k] and k in axes else n for k, n in enumerate(kept))
    inner = (1,) * given.ndim if chunk is None else chunk
    halves = tuple(
        n
        if covers[k]
        or k not in axes
        or n % 2
        or n // 2 % (inner[k] if cut else min(inner[k], n // 2))
        else n // 2
        for k, n in enumerate(kept)
    )
    stored = halves if math.prod(map(min, halves, shape)) * size >= LEAST_BYTES else kept
    stored = tuple(grown(stored, shape, most // size))
    if chunk is None:
        chunk = divided(stored, shape, given.nav_ndim, CHUNK_BYTES // size)
    else:
        chunk = tuple(
            min(n, whole) if covers[k] else largest_divisor(whole, n)
            for k, (n, whole) in enumerate(zip(chunk, stored, strict=True))
        )
    # A shard that covers an axis may be longer than it.
    shard = tuple(
        -(-n // k) * k if covered else n
        for n, k, covered in zip(stored, chunk, covers, strict=True)
    )
    return ChunkGrid(shape, chunk, None if shard == chunk else shard)
