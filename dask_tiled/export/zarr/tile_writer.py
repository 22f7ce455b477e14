"""Write an array tile by tile, while results are computed from the same tiles."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.blocks.running import run_tasks
from dask_tiled.engine.jobs import Chunk, TileInfo
from dask_tiled.export.zarr.targets import ZarrTarget, write_blocks
from dask_tiled.model.indexing import Array, Box
from dask_tiled.opened.job_arrays import Reducible, job_array
from dask_tiled.opened.tiled_array import description_of
from dask_tiled.tiling.bases import Grid
from dask_tiled.tiling.negotiation import TilingRequest


@dataclass(frozen=True, eq=False)
class WriteTiles:
    """The job of writing chunks whose edges coincide with those of stored keys."""

    target: ZarrTarget
    done: Collection[tuple[int, ...]]
    """First positions of the chunks that are stored completely."""

    @property
    def request(self) -> TilingRequest:
        """Tiling request: any tiles suit."""
        return TilingRequest()

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the results: True for each chunk."""
        return np.dtype(bool)

    def begin(self, chunk: Chunk) -> TileWriter:
        """Create the writer of a chunk."""
        is_done = tuple(start for start, _ in chunk.box) in self.done
        return TileWriter(self.target, chunk, is_done=is_done)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "dask_tiled.WriteTiles", self.target.token


class _FrameRun(NamedTuple):
    """Consecutive frames of a chunk that fill whole keys."""

    first: int
    stop: int
    box: Box
    """Location in the array."""


class TileWriter:
    """Collects the tiles of a chunk, and stores complete runs.

    Frames are collected in the smallest runs that fill whole keys: usually a row of one shard.
    Tiles may be parts of frames.
    """

    def __init__(self, target: ZarrTarget, chunk: Chunk, *, is_done: bool) -> None:
        self._target = target
        self._chunk = chunk
        self._is_done = is_done
        unit = target.stack.unit[: chunk.nav_ndim]
        # Along the axes before this one, every position begins a key.
        self._axis = next((k for k, n in enumerate(unit) if n > 1), max(0, len(unit) - 1))
        self._size = unit[self._axis] if unit else 1
        self._gathered: dict[_FrameRun, tuple[Array | None, int]] = {}
        self._unused: list[Array] = []
        self._entries: dict[str, list[int]] = {}

    @property
    def arrays(self) -> list[Array]:
        """All arrays that the writer holds: incomplete runs, and memory for others."""
        runs = (pixels for pixels, _ in self._gathered.values() if pixels is not None)
        return [*runs, *self._unused]

    def working_bytes(self, _: tuple[int, ...]) -> int:
        """Return the bytes of a run, and of the same run encoded."""
        run = self._run_at(0)
        pixels = (run.stop - run.first) * math.prod(self._chunk.sig_shape)
        return 2 * pixels * self._chunk.dtype.itemsize

    def take(self, tile: Array, first: int, info: TileInfo) -> None:
        """Copy a tile to its place, and store the runs that it completes."""
        part = self._chunk.part(info)
        while len(tile) and not self._is_done:
            run = self._run_at(first)
            some = tile[: run.stop - first]
            pixels, count = self._gathered.pop(run, (None, 0))
            if pixels is None:
                pixels = self._room(run)
            pixels[(slice(first - run.first, first - run.first + len(some)), *part)] = some
            count += some.size
            if count < pixels.size:
                self._gathered[run] = pixels, count
            else:
                self._store(run, pixels)
            tile, first = tile[len(some) :], first + len(some)

    def _run_at(self, frame: int) -> _FrameRun:
        """Return the run of a frame, given its number in the chunk."""
        nav, k = self._chunk.nav_shape or (1,), self._axis
        inner = math.prod(nav[k + 1 :])
        outer, row = divmod(frame // inner, nav[k])
        low = row // self._size * self._size
        high = min(low + self._size, nav[k])
        box = [(int(n), int(n) + 1) for n in np.unravel_index(outer, nav[:k])] if k else []
        box += [(low, high), *((0, n) for n in nav[k + 1 :])]
        corner = self._chunk.box[: self._chunk.nav_ndim]
        moved = [(a + start, b + start) for (a, b), (start, _) in zip(box, corner, strict=False)]
        first = (outer * nav[k] + low) * inner
        whole = (*moved, *self._chunk.box[self._chunk.nav_ndim :])
        return _FrameRun(first, first + (high - low) * inner, whole)

    def _room(self, run: _FrameRun) -> Array:
        """Return memory for a run, reused from an earlier one if it is large enough."""
        shape = run.stop - run.first, *self._chunk.sig_shape
        if self._unused and len(self._unused[-1]) >= shape[0]:
            return self._unused.pop()[: shape[0]]
        return np.empty(shape, self._chunk.dtype)

    def _store(self, run: _FrameRun, pixels: Array) -> None:
        shape = [stop - start for start, stop in run.box]
        self._entries |= self._target.put(run.box, pixels.reshape(shape))
        self._unused.append(pixels)

    def result(self) -> Array:
        """Note the stored keys in the journal: the source files have not changed meanwhile."""
        self._target.place.note(self._entries)
        return np.ones((1,) * len(self._chunk.box), bool)


def write_and_compute(
    arr: da.Array,
    target: ZarrTarget,
    done: Collection[str],
    results: Sequence[da.Array],
    *,
    show: bool | None,
) -> list[Array]:
    """Write the chunks of an array, tile by tile if it is an opened one, and compute results."""
    desc = description_of(arr)
    if desc is None:
        return write_blocks(arr, arr.chunks, target, done, show=show, results=results)
    grid = Grid.of(arr.chunks)
    boxes = map(grid.box, product(*map(range, arr.numblocks)))
    whole = [box for box in boxes if all(key in done for key in target.stack.keys(box))]
    corners = frozenset(tuple(start for start, _ in box) for box in whole)
    written = job_array(Reducible(arr, desc.nav_ndim), WriteTiles(target, corners))
    return run_tasks(written, arr, *results, show=show, title="to_zarr")
