"""Align the chunks of arrays to zarr chunks or shards."""

from __future__ import annotations

import math

import dask.array as da

from dask_tiled.opened.spec import Given
from dask_tiled.opened.tiled_array import read_once
from dask_tiled.tiling.bases import Chunks, cut_no_block, split
from dask_tiled.tiling.scheme import negotiate
from dask_tiled.tiling.sizes import divides, grown

TASK_BYTES = 16 << 20
"""Bytes read by a task at a time, unless a shard is larger. The allocator reuses memory of this
size; larger chunks cause page faults."""
MERGED_BYTES = 128 << 20
"""Bytes of a task that takes several blocks in turn."""
FEW_TASKS, MANY_TASKS = 2048, 80_000
"""Blocks are merged while more tasks than the first remain, and until there are no more than the
second."""


def aligned(arr: da.Array, grid: tuple[int, ...]) -> da.Array:
    """Rechunk an array to multiples of a grid, so that every chunk is read once."""
    return read_once(arr, aligned_chunks(Given.of(arr), grid))


def aligned_chunks(given: Given, grid: tuple[int, ...]) -> Chunks:
    """Choose chunks that are multiples of a grid: small ones if they are read as fast."""
    desc, shape = given.description, given.shape
    if desc is not None:
        chunk, task = math.prod(given.chunksize), TASK_BYTES // given.dtype.itemsize
        # Divided frames are read by as few tasks as the memory of a chunk allows.
        sizes = grown(grid, shape, max(chunk, task), desc.nav_ndim)
        frames = zip(sizes[desc.nav_ndim :], shape[desc.nav_ndim :], strict=True)
        cut = any(n < size for n, size in frames)
        if not cut:
            sizes = grown(sizes, shape, min(task, chunk))
        small = _split(shape, sizes)
        if cut or cut_no_block(desc, small, given.chunks):
            return small
    if divides(grid, given.chunks):
        return given.chunks
    wanted = given.chunksize
    if desc is not None:
        wanted = tuple(axis[0] for axis in negotiate(desc).chunks)
    sizes = [max(size, int(n) // size * size) for n, size in zip(wanted, grid, strict=True)]
    return _split(shape, sizes)


def merged_blocks(chunks: Chunks, itemsize: int) -> Chunks:
    """Merge chunks to those of tasks that take several chunks in turn, if there are many.

    A scheduler takes some thousand tasks a second, and about a kilobyte of memory for each.
    """
    counts = [len(axis) for axis in chunks]
    count, nbytes = math.prod(counts), itemsize * math.prod(max(axis, default=0) for axis in chunks)
    times = max(1, min(MERGED_BYTES // max(1, nbytes), count // FEW_TASKS), -(-count // MANY_TASKS))
    merged: list[tuple[int, ...]] = []
    for axis in reversed(chunks):  # neighbours in the file
        step = max(1, min(len(axis), times))
        times = -(-times // step)
        merged.insert(0, tuple(sum(axis[k : k + step]) for k in range(0, len(axis), step)))
    return tuple(merged)


def _split(shape: tuple[int, ...], sizes: list[int]) -> Chunks:
    return tuple(split(int(n), size) for n, size in zip(shape, sizes, strict=True))
