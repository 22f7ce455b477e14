"""Sinks of programs: on vectors of one source as its bytes come, or of tiles of several in step."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.computations import Computation
from dask_tiled.engine.folding import PIXELS_DEPTH, TILE_BYTES, FrameSink, rows_of
from dask_tiled.engine.jobs import Chunk, TileInfo
from dask_tiled.engine.programs import Register, has_blocks
from dask_tiled.model.indexing import Index
from dask_tiled.reading.reader import Reader, Workspace
from dask_tiled.tiling.bases import Base, fill

Array = npt.NDArray[Any]

REGISTER_BYTES = 8 << 20
"""All tiles that a program works on at once together have so many bytes at most."""
PIECE = 1 << 13
"""So many pixels of some frames are taken together where there are results for each pixel."""
KEPT_READERS = 256
"""Of so many sources it is kept where their bytes are, some KiB each, from tile to tile."""


class VectorSink(FrameSink):
    """What a program of one source makes of one chunk."""

    def __init__(self, job: Computation, chunk: Chunk, depth: int = 0) -> None:
        self._vectors = job.vectors(depth)
        (stage,), kept, n = job.program.stages, self._vectors.kept, job.nav_ndim
        end = job.reduction and job.reduction.steps
        self.steps, _ = self._vectors.steps(stage, chunk.dtype, end)
        frames = np.arange(math.prod(chunk.nav_shape))
        super().__init__("run_program", chunk, frames, self.steps, self._vectors.header)
        self.needs_whole_frames = self._vectors.group > 1
        rows, nav_shape = rows_of(job.shape[:n], [axis for axis in range(n) if kept[axis]])
        self._any_order = self._vectors.any_order
        self.needs_order = not self._any_order
        self._is_by_pixel = any(kept[n:]) and math.prod(nav_shape) < len(frames)
        if self._is_by_pixel:
            self._vectors.take_pieces(PIECE)
            self._together = rows if math.prod(nav_shape) > 1 else None
        self._grid = job.shape[:n], kept[:n]

    @property
    def alike(self) -> Hashable:
        """Key: sinks with equal keys share a pass, if they go through pixels in the same way."""
        grid = None if self._together is None else self._grid
        return "run_program", self._vectors.walk, self.needs_order, self._is_by_pixel, grid

    @classmethod
    def joined(cls, sinks: Sequence[VectorSink]) -> VectorSink:
        """Give what works for several: the first of them, with the steps of all."""
        sinks[0].work_for(sinks[1:])
        return sinks[0]

    @property
    def vector(self) -> int:
        """Pixels that there is memory for at a time."""
        return self._vectors.vector

    def work_for(self, others: Sequence[VectorSink]) -> None:
        """Make what others make, too, in memory that they keep; they are shown no pixels."""
        self._results = np.concatenate([self._results, *(one.steps for one in others)])
        self._vectors.shorten(min(one.vector for one in others))

    def _take(self, tile: Array, rows: Index, first: int) -> None:
        depth = PIXELS_DEPTH if self._is_by_pixel else len(tile)
        for k in range(0, len(tile), depth):
            super()._take(tile[k : k + depth], rows[k : k + depth], first)

    def frames(self, first: int, count: int) -> Array:
        """Show some of the last ``depth`` frames of the output, which lie side by side."""
        start = first % len(self._vectors.results)
        return self._vectors.results[start : start + count]

    def result(self) -> Array:
        """Give the output, or the reduction with axes of length 1."""
        return self._vectors.result()


class StageSink:
    """What a program of several sources makes of one chunk, stage by stage, on tiles in step."""

    def __init__(self, job: Computation, chunk: Chunk) -> None:
        self._sources, self._width = job.program.sources, job.program.width
        self._chunk, self._vectors = chunk, job.vectors()
        self._shape = math.prod(chunk.nav_shape), *chunk.sig_shape
        end = job.reduction and job.reduction.steps
        self._stages = [
            (stage, *self._vectors.steps(stage, None, end)) for stage in job.program.stages
        ]
        self._memory: dict[Register, Array] = {}
        self._workspace = Workspace()
        self._readers: dict[Hashable, Reader] = {}

    def tile_shape(self) -> tuple[int, ...]:
        """Give the shape of the tiles that it wishes: they follow one another in C order."""
        shape = self._shape
        if has_blocks(*self._sources):
            return shape
        pixels = min(TILE_BYTES // self._chunk.dtype.itemsize, REGISTER_BYTES // self._width)
        bases = [Base()] * (len(shape) - 1) + [Base(self._vectors.group)]
        return fill(shape, max(1, pixels), bases)

    def take(self, tile: Array, first: int, info: TileInfo) -> None:
        """Work on a tile; that of the first source is there."""
        place = slice(first, first + len(tile)), *self._chunk.part(info)
        corner = [one.start for one in place]
        start = int(np.ravel_multi_index(corner, self._shape))
        values: dict[Register, Array] = {}
        for stage, steps, places in self._stages:
            with self._workspace:  # what is read may be a view of a mapped file
                for to, source in stage.reads.items():
                    values[to] = self._read(source, to, place) if source else tile
                values.update((to, self._room(to, tile.shape)) for to in stage.kept)
                self._run(steps, places, values, start, tile)

    def _read(self, number: int, to: Register, place: tuple[slice, ...]) -> Array:
        """Read the tile of another source."""
        source, n = self._sources[number], self._chunk.nav_ndim
        sig = [
            (a + x.start, a + x.stop)
            for (a, _), x in zip(self._chunk.box[n:], place[1:], strict=True)
        ]
        reader = self._readers.get((number, *sig))
        if reader is None:
            reader = Reader(source, (*self._chunk.box[:n], *sig), self._workspace)
            # Plans of corrections are as large as frames: only one tile at a time has them.
            if source.conversion.corrections is None and len(self._readers) < KEPT_READERS:
                self._readers[number, *sig] = reader
        first, *_ = place
        tile = reader.tile(first.start, first.stop, 0, lambda shape: self._room(to, shape))
        return tile.reshape([x.stop - x.start for x in place])

    def _room(self, register: Register, shape: tuple[int, ...]) -> Array:
        """Give the memory of a register, the same for every tile."""
        size = math.prod(shape)
        if register not in self._memory or self._memory[register].size < size:
            self._memory[register] = np.empty(size, register.dtype)
        return self._memory[register][:size].reshape(shape)

    def _run(
        self,
        steps: Array,
        places: Sequence[tuple[int, int, Register]],
        values: dict[Register, Array],
        start: int,
        tile: Array,
    ) -> None:
        """Run a stage on the pixels from ``start`` on, as many as a tile has."""
        from dask_tiled.kernels.fold_functions import fold

        steps = steps.copy()
        for row, column, register in places:
            found = values[register]
            steps[row, column] += found.ctypes.data - start * found.itemsize
        byte, number = np.dtype(np.uint8), np.dtype(np.int64)
        shown = tile.reshape(-1).view(byte)[: tile.size].reshape(1, -1)  # nothing but its size
        run = fold("run_program", byte, number, number)
        run(shown, np.zeros(1, np.int64), start, steps, self._vectors.header)

    def result(self) -> Array:
        """Give the output, or the reduction with axes of length 1."""
        return self._vectors.result()
