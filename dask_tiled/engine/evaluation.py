"""Programs as jobs: on vectors of one source as its bytes come, or on tiles of several in step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.expressions import Cast, Operand
from dask_tiled.engine.folding import PIXELS_DEPTH, TILE_BYTES, FrameSink, rows_of
from dask_tiled.engine.jobs import Chunk, TileInfo
from dask_tiled.engine.programs import RESULT, Program, Register, Stage, Step, has_blocks
from dask_tiled.engine.reductions import Reduction
from dask_tiled.engine.vectors import Collect, NoPrimitive, Vectors
from dask_tiled.model.indexing import Index
from dask_tiled.reading.reader import Reader, Workspace
from dask_tiled.tiling.bases import Base, fill
from dask_tiled.tiling.negotiation import TilingRequest

Array = npt.NDArray[Any]

REGISTER_BYTES = 8 << 20
"""All tiles that a program works on at once together have so many bytes at most."""
PIECE = 1 << 13
"""So many pixels of some frames are taken together where there are results for each pixel."""
KEPT_READERS = 256
"""Of so many sources it is kept where their bytes are, some KiB each, from tile to tile."""


@dataclass(frozen=True, eq=False)
class Programmed:
    """The job of a program: a chunk of an expression, or a reduction of it."""

    program: Program
    operands: Sequence[Array]
    """Those of the program, cut to the chunk: with all axes, of length 1 where they have none."""
    reduction: Reduction | None
    shape: tuple[int, ...]
    """Of the chunk, whose axes may be split for the reduction."""
    nav_ndim: int
    """How many of them are navigation axes."""
    depth: int = 0
    """Of so many frames the output has room, one after the other; 0 is all of a chunk."""
    out: Array | None = None
    """Memory for the output of a chunk, C-contiguous."""

    request = TilingRequest("frame")

    @property
    def dtype(self) -> np.dtype:
        """Type of the results."""
        wanted = None if self.reduction is None else self.reduction.dtype
        return self.program.dtype if wanted is None else wanted

    def begin(self, chunk: Chunk) -> VectorSink | StageSink:
        """Begin to work on a chunk; NoPrimitive if it cannot be reduced in vectors."""
        if len(self.program.sources) == 1:
            with suppress(NoPrimitive):
                return VectorSink(self, chunk)
        return StageSink(self, chunk)

    def vectors(self) -> Vectors:
        """Prepare to work in vectors."""
        gone = () if self.reduction is None else self.reduction.axes
        in_order = self.reduction is not None and self.reduction.row.finds_place
        shape = self.shape, self.nav_ndim, self.depth
        given = self.program, self.operands, gone, *shape, self.out
        return Vectors(*given, in_order=in_order)

    def end(self, vectors: Vectors, last: Step) -> Collect:
        """Add the steps of the reduction."""
        assert self.reduction is not None  # noqa: S101 - for the type checker
        return self.reduction.row.steps(vectors, last, self.reduction)


class VectorSink(FrameSink):
    """What a program of one source makes of one chunk."""

    def __init__(self, job: Programmed, chunk: Chunk) -> None:
        self._vectors = job.vectors()
        (stage,), kept, n = job.program.stages, self._vectors.kept, job.nav_ndim
        end = None if job.reduction is None else job.end
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
    def alike(self) -> Any:
        """What those have in common that can be worked for as one: how they go through pixels."""
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
    """What a program makes of one chunk, stage by stage: in vectors, or else by calls of numpy."""

    def __init__(self, job: Programmed, chunk: Chunk) -> None:
        self._job, self._chunk, self._vectors = job, chunk, job.vectors()
        self._shape = math.prod(chunk.nav_shape), *chunk.sig_shape
        self._stages: list[tuple[Stage, tuple[Array, Any] | None]] = []
        *stages, last = job.program.stages
        for stage in stages:
            self._begin(stage)
        if not self._begin(last) and job.reduction is not None:  # what is called is reduced after
            self._stages.pop()
            to, step = Register(RESULT - 1, job.program.dtype), last.steps[-1]
            reduced = Stage({}, [Step(Cast(to.dtype), (to,), step.to)], set())
            called = last._replace(steps=[*last.steps[:-1], step._replace(to=to)])
            self._stages += [(called, None), (reduced, self._vectors.steps(reduced, None, job.end))]
        self._memory: dict[Register, Array] = {}
        self._workspace = Workspace()
        self._readers: dict[Any, Reader] = {}

    def _begin(self, stage: Stage) -> bool:
        """Prepare a stage, and tell whether it is one in vectors."""
        steps = None
        with suppress(NoPrimitive):
            end = None if self._job.reduction is None else self._job.end
            steps = self._vectors.steps(stage, None, end)
        self._stages.append((stage, steps))
        return steps is not None

    def tile_shape(self) -> tuple[int, ...]:
        """Give the shape of the tiles that it wishes: they follow one another in C order."""
        program, shape = self._job.program, self._shape
        if has_blocks(*program.sources):
            return shape
        pixels = min(TILE_BYTES // self._chunk.dtype.itemsize, REGISTER_BYTES // program.width)
        bases = [Base()] * (len(shape) - 1) + [Base(self._vectors.group)]
        return fill(shape, max(1, pixels), bases)

    def take(self, tile: Array, first: int, info: TileInfo) -> None:
        """Work on a tile; that of the first source is there."""
        place = slice(first, first + len(tile)), *self._chunk.part(info)
        corner = [one.start for one in place]
        values: dict[Any, Array] = {}
        for stage, steps in self._stages:
            with self._workspace:  # what is read may be a view of a mapped file
                for to, source in stage.reads.items():
                    values[to] = self._read(source, to, place) if source else tile
                if steps is None:
                    self._call(stage, values, place)
                else:
                    values.update((to, self._room(to, tile.shape)) for to in stage.kept)
                    self._run(*steps, values, int(np.ravel_multi_index(corner, self._shape)), tile)

    def _read(self, number: int, to: Register, place: tuple[slice, ...]) -> Array:
        """Read the tile of another source."""
        source, n = self._job.program.sources[number], self._chunk.nav_ndim
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
        self, steps: Array, places: Any, values: dict[Any, Array], start: int, tile: Array
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

    def _call(self, stage: Stage, values: dict[Any, Array], place: tuple[slice, ...]) -> None:
        """Call the functions of a stage one by one."""
        shape = tuple(x.stop - x.start for x in place)
        for step in stage.steps:
            operands = [
                values[x]
                if isinstance(x, Register)
                else self._beside(self._job.operands[x.number], place)
                if isinstance(x, Operand)
                else x
                for x in step.operands
            ]
            if step.to.number == RESULT:
                out = self._vectors.results.reshape(self._shape)[place]
            else:
                out = self._room(step.to, shape)
            function: Any = step.function
            values[step.to] = function(*operands, out=out)

    def _beside(self, block: Array, place: tuple[slice, ...]) -> Array:
        """Take what a tile needs of an array that is repeated along axes of length 1."""
        chunk, n = self._chunk, self._chunk.nav_ndim
        if len(self._job.shape) > len(chunk.box):  # axes are split, but tiles are not
            return np.broadcast_to(block, self._job.shape).reshape(self._shape)[place]
        frames = block.reshape(-1, *block.shape[n:])
        if len(frames) > 1:
            kept = [axis for axis in range(n) if block.shape[axis] > 1]
            frames = frames[rows_of(chunk.nav_shape, kept)[0][place[0]]]
        sizes = zip(frames.shape[1:], place[1:], strict=True)
        return frames[(slice(None), *(x if size > 1 else slice(None) for size, x in sizes))]

    def result(self) -> Array:
        """Give the output, or the reduction with axes of length 1."""
        return self._vectors.result()
