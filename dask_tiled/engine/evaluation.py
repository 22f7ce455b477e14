"""Computations of a chunk and their sinks.

A program of one source runs on vectors of its bytes, a program of several sources on tiles in step;
sums of weighted frames are matrix products, tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dask_tiled.engine.expressions import Register
from dask_tiled.engine.folding import FrameSink, Kernel, Stored, can_fold
from dask_tiled.engine.jobs import Chunk, TileInfo
from dask_tiled.engine.limits import (
    KEPT_READERS,
    LEAST_PRODUCT_FRAMES,
    MOST_PRODUCT_PIXELS,
    MOST_SHARED,
    PIECE_PIXELS,
    PIXELS_DEPTH,
    PROGRAM_BYTES,
    SHARED_CONSTANTS,
    TILE_BYTES,
    WEIGHTED_DEPTH,
)
from dask_tiled.engine.programs import Program
from dask_tiled.engine.reductions import HISTOGRAM, Reduction
from dask_tiled.engine.vectors import Vectors
from dask_tiled.model.decoders import Decoder
from dask_tiled.model.events import EventRun, EventTarget
from dask_tiled.model.indexing import Array, Index
from dask_tiled.model.requests import IN_MEMORY
from dask_tiled.reading.amounts import memory_of
from dask_tiled.reading.ranges import ReadRanges, Runs, Window
from dask_tiled.reading.reader import Reader, Source, Workspace
from dask_tiled.tiling.bases import Base, fill


class Weighting(NamedTuple):
    """A weighted sum over the pixels of each frame."""

    weights: Array
    """Axes that the result has at its end, then the signal axes of the chunk."""
    dtype: np.dtype
    """Dtype of a product, as in NumPy. Sums are accumulated and returned in 8 bytes."""


@dataclass(frozen=True, eq=False)
class Computation:
    """A program for a chunk, and the reduction or weighting of its pixels."""

    program: Program
    operands: Sequence[Array]
    """Operands of the program, cut to the chunk: with all axes, of length 1 where they
    broadcast."""
    shape: tuple[int, ...]
    """Shape of the chunk, whose axes may be split."""
    axes_of: tuple[int, ...]
    """For each axis of the chunk, the axis of the sources that it is, or is a part of."""
    nav_ndim: int
    """Number of navigation axes."""
    end: Reduction | Weighting | None = None
    """None keeps the pixels."""
    out: Array | None = None
    """Output buffer for kept pixels, C-contiguous."""

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the result."""
        wanted = None if self.end is None else self.end.dtype
        return self.program.dtype if wanted is None else wanted

    @property
    def values(self) -> Computation:
        """The computation that keeps the pixels."""
        return self if self.end is None else replace(self, end=None)

    @property
    def reduction(self) -> Reduction | None:
        """The reduction; None for a weighting or kept pixels."""
        return self.end if isinstance(self.end, Reduction) else None

    def vectors(self, tile: np.dtype | None, depth: int = 0) -> Vectors:
        """Return the vectors of the program; tasks with equal ones share them if they are small.

        The ``tile`` is the dtype of the chunk, if all pixels come from there; a ``depth`` other
        than 0 limits the output to the last frames.
        """
        reduction, shapes = self.reduction, tuple(block.shape for block in self.operands)
        end = None if reduction is None else (reduction.row, reduction.axes, reduction.dtype)
        key = self.program.key, shapes, self.shape, self.nav_ndim, tile, depth, end
        vectors = SHARED.get(key)
        if vectors is None:
            vectors = Vectors(
                self.program,
                self.operands,
                self.shape,
                self.nav_ndim,
                tile=tile,
                gone=() if reduction is None else reduction.axes,
                end=None if reduction is None else reduction.steps,
                in_order=reduction is not None and reduction.row.finds_place,
                depth=depth,
            )
            is_whole = reduction is None or reduction.row is not HISTOGRAM  # bins are not in keys
            if is_whole and vectors.constant_bytes <= SHARED_CONSTANTS:
                if len(SHARED) >= MOST_SHARED:
                    SHARED.clear()
                SHARED[key] = vectors
        return vectors


SHARED: dict[Hashable, Vectors] = {}
"""Vectors of the last tasks of this process."""


class VectorSink(FrameSink):
    """Sink that runs a program of one source on the frames of a chunk."""

    def __init__(self, job: Computation, chunk: Chunk, depth: int = 0) -> None:
        vectors, n = job.vectors(chunk.dtype, depth), job.nav_ndim
        self._bound = vectors.bind(job.operands, job.out)
        (steps,), kept = self._bound.steps, vectors.kept
        super().__init__(Kernel("run_program", vectors.frames, steps, self._bound.header), chunk)
        self.needs_whole_frames = vectors.group > 1
        self._rows, self._nav_shape = vectors.rows
        self.any_order = vectors.any_order
        self._accumulates = vectors.adds_frames
        self.needs_order = not (self.any_order or self._accumulates)
        results = math.prod(self._nav_shape)
        self._is_by_pixel = any(kept[n:]) and results < len(vectors.frames)
        if self._is_by_pixel:
            self._bound.take_pieces(PIECE_PIXELS)
            self._together = self._rows if results > 1 else None
        self._grid = job.shape[:n], kept[:n]
        # Whether the lines of a frame are summed: the result then depends on the frames together.
        self._adds_lines = self._is_by_pixel and not all(kept[n:])
        self._packed = None if job.reduction is None else job.reduction.row.packed
        self._taken_from: ProductSink | None = None
        self.programs = [self._bound]
        """Programs that run together."""

    @property
    def arrays(self) -> list[Array]:
        """All arrays that the sink holds."""
        return [*super().arrays, self._rows, *self._bound.arrays]

    @property
    def alike(self) -> Hashable:
        """Key: sinks with equal keys traverse pixels in the same way and share a pass."""
        if self._accumulates:
            return None
        grid = None if self._together is None else self._grid
        return "run_program", self._bound.walk, self.needs_order, self._is_by_pixel, grid

    @classmethod
    def joined(cls, sinks: Sequence[VectorSink]) -> VectorSink:
        """Merge sinks: return the first, with the steps of all."""
        sinks[0].work_for(sinks[1:])
        return sinks[0]

    def can_share(self, ranges: Iterable[ReadRanges]) -> bool:
        """Return whether frames are folded where they lie, in any order and number."""
        return not self._adds_lines and super().can_share(ranges)

    def can_cut(self, pixels: int) -> bool:
        """Return whether results are the same if frames are cut after each ``pixels`` pixels."""
        if self._is_by_pixel or all(bound.vectors.fetches for bound in self.programs):
            return True
        columns, vector = self._bound.row
        return not pixels % (columns if columns < math.prod(self._chunk.sig_shape) else vector)

    def _kernel_of(self, stored: Stored) -> Kernel | None:
        match stored:
            case Stored.NATIVE:
                return self._kernel
            case Stored.REVERSED:
                twin = self._twin
                return None if twin is None else self._kernel._replace(results=twin)
        if self.sums is None or self._packed is None or len(self.programs) > 1:
            return None
        return Kernel(self._packed.frames, self._rows, self.sums, np.empty((0, 0), np.float32))

    @cached_property
    def _twin(self) -> Array | None:
        """Steps for pixels in reversed byte order."""
        twins = [bound.twin() for bound in self.programs]
        known = [twin for twin in twins if twin is not None]
        return np.concatenate(known) if len(known) == len(twins) else None

    @property
    def sums(self) -> Array | None:
        """Sums of integers that only pixels are added to, in any order: a row for some frames."""
        totals = self._bound.vectors.totals
        if totals is None or not totals.adds:
            return None
        return self._bound.totals.reshape(math.prod(self._nav_shape), -1)

    @property
    def adds_frame(self) -> bool:
        """Whether only all pixels of each frame are added, integers that kernels take in pairs."""
        sums, narrow = self.sums, self._chunk.dtype.kind in "biu" and self._pixel.itemsize <= 2
        return narrow and sums is not None and sums.shape == (len(self._rows), 1)

    def as_product(self) -> ProductSink:
        """Return a sink with weights of 1, whose sums become those of this sink."""
        ones = Weighting(np.ones((1, *self._chunk.sig_shape), np.int64), np.dtype(np.int64))
        self._taken_from = ProductSink(ones, self._chunk)
        return self._taken_from

    def target(self, run: EventRun) -> EventTarget:
        """Return the sums as the output of events."""
        sums = self.sums
        assert sums is not None  # noqa: S101 - for the type checker
        columns = run.columns if self._accumulates else np.minimum(run.columns, 0)
        return run.target(self._rows[run.frames] * sums.shape[1], columns, sums)

    @property
    def _columns(self) -> Array:
        return self._bound.totals.reshape(-1, math.prod(self._chunk.sig_shape))

    def _with(self, columns: Array) -> Kernel:
        return self._kernel._replace(results=self._bound.moved(self._kernel.results, columns))

    def _begin(self, results: Array) -> None:
        totals = self._bound.vectors.totals
        assert totals is not None  # noqa: S101 - for the type checker
        results.reshape(len(self._bound.totals), -1)[...] = np.reshape(totals.initial, (-1, 1))

    def _fold_units(self, kernel: Kernel, decoder: Decoder, runs: Runs, window: Window) -> None:
        from dask_tiled.kernels.fold_functions import packed_pixels

        is_one = self._accumulates and self.sums is not None and len(self.sums) == 1
        if self._packed is None or not is_one or decoder.kernel != "unpack12":
            super()._fold_units(kernel, decoder, runs, window)
            return
        sums = self._columns if self._places is None else self._taken
        packed_pixels(self._packed.pixels, sums.dtype)(
            *window.frames(self._rows[window.ranges.frames]),
            runs.starts,
            runs.step,
            self._firsts(runs),
            runs.length,
            decoder.nbytes,
            sums,
        )

    def work_for(self, others: Sequence[VectorSink]) -> None:
        """Append the steps of others, which keep their own memory; don't feed them."""
        self.programs += [program for one in others for program in one.programs]
        steps = np.concatenate([step for bound in self.programs for step in bound.steps])
        self._kernel = self._kernel._replace(results=steps)
        self._bound.shorten(min(bound.vectors.vector for bound in self.programs))

    def _depth(self, offsets: Index, nbytes: int) -> int:
        if not self._adds_lines:
            return super()._depth(offsets, nbytes)
        dense = self._together is None and bool((np.diff(offsets) == nbytes).all())
        return PIXELS_DEPTH if dense else 1

    def frames(self, first: int, count: int) -> Array:
        """Return frames of the output, a ring buffer of the last ``depth`` frames."""
        start = first % len(self._bound.output)
        return self._bound.output[start : start + count]

    def result(self) -> Array:
        """Return the output, or the reduction with reduced axes of length 1."""
        self._put_back()
        if self._taken_from is not None and self.sums is not None:
            self.sums[...] = self._taken_from.sums
        return self._bound.result()


class StageSink:
    """Sink that runs a program of several sources on tiles in step, stage by stage."""

    def __init__(self, job: Computation, chunk: Chunk) -> None:
        self._sources, self._width = job.program.sources, job.program.width
        self._chunk, self._bound = chunk, job.vectors(None).bind(job.operands, job.out)
        self._shape = math.prod(chunk.nav_shape), *chunk.sig_shape
        places = (table.places for table in self._bound.vectors.tables)
        self._stages = list(zip(job.program.stages, self._bound.steps, places, strict=True))
        self._memory: dict[Register, Array] = {}
        self.workspace = Workspace()
        """Files of the other sources, which stay open while the chunk is read."""
        self._readers: dict[Hashable, Reader] = {}

    def tile_shape(self) -> tuple[int, ...]:
        """Return the preferred tile shape; tiles follow one another in C order."""
        shape = self._shape
        if any(source.layout.has_blocks for source in self._sources):
            return shape
        pixels = min(TILE_BYTES // self._chunk.dtype.itemsize, PROGRAM_BYTES // self._width)
        bases = [Base()] * (len(shape) - 1) + [Base(self._bound.vectors.group)]
        return fill(shape, max(1, pixels), bases)

    @property
    def arrays(self) -> list[Array]:
        """All arrays that the sink holds, without the tiles in registers."""
        return [*self._bound.arrays, *self._bound.steps]

    def working_bytes(self, tile: tuple[int, ...]) -> int:
        """Return the bytes of the registers for a tile, and to read the sources of a stage."""
        others = ({*stage.reads.values()} - {0} for stage, *_ in self._stages)
        read = (sum(memory_of(self._sources[k], self._chunk.box, tile) for k in x) for x in others)
        return math.prod(tile) * self._width + max(read, default=0)

    def others(self) -> list[Source]:
        """List the sources that are read besides the first, in the order of the stages."""
        numbers = [number for stage, *_ in self._stages for number in stage.reads.values()]
        return [self._sources[number] for number in numbers if number]

    def take(self, tile: Array, first: int, info: TileInfo) -> None:
        """Run all stages on a tile of the first source and on the same tile of the others."""
        place = slice(first, first + len(tile)), *self._chunk.part(info)
        corner = [cut.start for cut in place]
        start = int(np.ravel_multi_index(corner, self._shape))
        values: dict[Register, Array] = {}
        for stage, steps, places in self._stages:
            for to, source in stage.reads.items():
                values[to] = self._read(source, to, place) if source else tile
            values.update((to, self._room(to, tile.shape)) for to in stage.kept)
            self._run(steps, places, values, start, tile)

    def _read(self, number: int, to: Register, place: tuple[slice, ...]) -> Array:
        """Read the tile of another source."""
        source, n = self._sources[number], self._chunk.nav_ndim
        sig = [
            (a + cut.start, a + cut.stop)
            for (a, _), cut in zip(self._chunk.box[n:], place[1:], strict=True)
        ]
        reader = self._readers.get((number, *sig))
        if reader is None:
            reader = Reader(source, (*self._chunk.box[:n], *sig), self.workspace)
            # Plans of corrections are as large as frames: keep them for one tile only.
            if source.conversion.corrections is None and len(self._readers) < KEPT_READERS:
                self._readers[number, *sig] = reader
        first, *_ = place
        tile = reader.tile(first.start, first.stop, 0, lambda shape: self._room(to, shape))
        return tile.reshape([cut.stop - cut.start for cut in place])

    def _room(self, register: Register, shape: tuple[int, ...]) -> Array:
        """Return the memory of a register, reused for every tile."""
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
        """Run a stage on the pixels of a tile, whose first pixel has the position ``start``."""
        from dask_tiled.kernels.fold_functions import fold_in_place

        steps = steps.copy()
        for row, column, register in places:
            pixels = values[register]
            steps[row, column] += pixels.ctypes.data - start * pixels.itemsize
        zero, nothing = np.zeros(1, np.int64), np.empty(0, np.void)  # registers have all pixels
        kernel = Kernel("run_program", zero, steps, self._bound.header)
        frames = IN_MEMORY, nothing.view(np.uint8), zero, zero
        fold_in_place()(kernel.call(nothing.dtype), *frames, zero, np.array([start]), tile.size, 1)

    def result(self) -> Array:
        """Return the output, or the reduction with reduced axes of length 1."""
        return self._bound.result()


def weighted(job: Computation, chunk: Chunk) -> Computation | None:
    """Convert a sum of weighted frames to a matrix product; None for other reductions."""
    reduction, n, dtype = job.reduction, job.nav_ndim, job.program.dtype
    if reduction is None or not reduction.row.is_ufunc or reduction.row.ufunc is not np.add:
        return None
    step = job.program.only_step
    factors = step and step.factors
    if factors is None or reduction.axes != tuple(range(n, len(job.shape))):
        return None
    if dtype.kind in "iu" and job.dtype.kind in "fc":
        return None  # floats do not overflow
    if (
        math.prod(chunk.sig_shape) > MOST_PRODUCT_PIXELS
        or math.prod(chunk.nav_shape) < LEAST_PRODUCT_FRAMES
    ):
        return None
    read, block = job.program.read, job.operands[factors[1].number]
    if math.prod(block.shape[:n]) > 1 or not _hold_products(dtype, read.dtype, block):
        return None
    weights = np.broadcast_to(block.reshape(block.shape[n:]), job.shape[n:])
    return replace(job, program=read, end=Weighting(weights.reshape(chunk.sig_shape), dtype))


def contracted(job: Computation, weights: Array, chunk: Chunk) -> Computation | None:
    """Return the matrix product of frames and weights with optional leading axes, or None."""
    n = job.nav_ndim
    further = weights.shape[: -len(job.shape)]
    dtype = np.result_type(job.dtype, weights.dtype)
    known = can_fold(job.dtype) and can_fold(np.empty(0, dtype).real.dtype)
    one_for_all = weights.shape == (*further, *(1,) * n, *job.shape[n:])
    if not known or not one_for_all or dtype.kind == "b" or len(job.program.sources) > 1:
        return None
    return replace(job, end=Weighting(weights.reshape(further + chunk.sig_shape), dtype))


def _hold_products(dtype: np.dtype, pixel: np.dtype, weights: Array) -> bool:
    """Return whether a dtype holds whole products, not only their last bytes."""
    if not can_fold(pixel) or not can_fold(dtype):
        return False
    if dtype.kind == "f" or dtype.itemsize == 8:
        return dtype.itemsize >= 4
    return weights.dtype.kind == "b" and pixel.kind in "iu"


class ProductSink(FrameSink):
    """Sink of the weighted sums of the frames of a chunk.

    Some thousand products are summed in the dtype of the weights, these sums in 8 bytes.
    Integers overflow as in NumPy: the last bytes of a sum depend on no others.
    """

    def __init__(self, job: Weighting, chunk: Chunk) -> None:
        sig_shape = chunk.sig_shape
        ones = (1,) * len(sig_shape)
        self._shape = chunk.nav_shape + ones + job.weights.shape[: -len(sig_shape)]
        self._kind = job.dtype.kind
        weights = job.weights.reshape(-1, math.prod(sig_shape))
        if self._kind == "c":
            weights = np.stack([weights.real, weights.imag], axis=1).reshape(-1, weights.shape[1])
        self.chunk = chunk
        self.weights = np.require(
            weights, type_of_weights(weights, chunk.dtype, job.dtype), ["C", "W"]
        )
        first = shift_of(self.weights, chunk.dtype) * self.weights.sum(axis=1, dtype=np.int64)
        sums = np.int64 if self.weights.dtype.kind == "i" else np.float64
        self.sums = np.repeat(first[None].astype(sums), math.prod(chunk.nav_shape), axis=0)
        super().__init__(_kernel(self.sums, self.weights), chunk)

    @property
    def alike(self) -> Hashable:
        """Key: sinks with equal keys share a pass."""
        return "dots_frames", self.weights.dtype

    @property
    def in_pairs(self) -> bool:
        """Whether the kernel multiplies pairs of integers, so that a further mask takes little."""
        return self.weights.dtype == np.int16

    @classmethod
    def joined(cls, sinks: Sequence[ProductSink]) -> FrameSink:
        """Merge sinks: one fold with the weights of all, and columns of its sums for each."""
        weights = np.concatenate([one.weights for one in sinks])
        sums = np.concatenate([one.sums for one in sinks], axis=1)
        ends = np.cumsum([len(one.weights) for one in sinks])
        for one, columns in zip(sinks, np.split(sums, ends[:-1], axis=1), strict=True):
            one.sums = columns
        return FrameSink(_kernel(sums, weights), sinks[0].chunk)

    def result(self) -> Array:
        """Return the sums: axes of the chunk, signal axes of length 1, then axes of the weights."""
        wanted = np.dtype(
            {"i": np.int64, "u": np.uint64, "c": np.complex128}.get(self._kind, float)
        )
        sums = self.sums if wanted.kind in "iu" else self.sums.astype(np.float64, copy=False)
        return sums.view(wanted).reshape(self._shape)


def _kernel(sums: Array, weights: Array) -> Kernel:
    name = "dot_frames" if len(weights) == 1 else "dots_frames"
    return Kernel(name, np.arange(len(sums)), sums, weights)


def type_of_weights(weights: Array, pixel: np.dtype, dtype: np.dtype) -> np.dtype:
    """Choose the dtype of weights: whole numbers of 2 bytes where they are, which are exact."""
    from dask_tiled.kernels.products import MOST_IN_PAIRS

    is_float = dtype.kind not in "iu"
    if pixel.kind in "biu" and pixel.itemsize <= 2:
        least, most = float(weights.min(initial=0)), float(weights.max(initial=0))
        is_whole = not is_float or (weights == np.rint(weights)).all()
        if is_whole and max(-least, most) <= MOST_IN_PAIRS:
            return np.dtype(np.int16)
    if is_float:
        return np.dtype(f"f{max(4, dtype.itemsize // (2 if dtype.kind == 'c' else 1))}")
    few = pixel.kind in "iu" and pixel.itemsize <= 4 and weights.size
    fits = (
        few and np.iinfo(np.int32).min < weights.min() and weights.max() <= np.iinfo(np.int32).max
    )
    return np.dtype(np.int32 if fits else np.int64)


def shift_of(weights: Array, pixel: np.dtype) -> int:
    """Return the number that kernels subtract from all pixels."""
    from dask_tiled.kernels.products import SHIFT

    return SHIFT if weights.dtype == np.int16 and pixel == np.uint16 else 0


class ValueSink:
    """Sink of the weighted sums of the frames that a program computes."""

    def __init__(self, job: Computation, end: Weighting, chunk: Chunk) -> None:
        self._values = VectorSink(job, chunk, WEIGHTED_DEPTH)
        self._sums = ProductSink(end, chunk._replace(dtype=job.program.dtype))
        self.tile_shape = self._values.tile_shape

    @property
    def arrays(self) -> list[Array]:
        """All arrays that the sink holds."""
        return [*self._values.arrays, *self._sums.arrays]

    def working_bytes(self, tile: tuple[int, ...]) -> int:
        """Return the memory of both sinks, besides their arrays."""
        return self._values.working_bytes(tile) + self._sums.working_bytes(tile)

    def take(self, tile: Array, first: int, info: TileInfo) -> None:
        """Compute the frames of a tile, and multiply them by the weights while they are cached."""
        while len(tile):
            part = tile[: WEIGHTED_DEPTH - first % WEIGHTED_DEPTH]  # the ring buffer wraps around
            self._values.take(part, first, info)
            self._sums.take(self._values.frames(first, len(part)), first, info)
            tile, first = tile[len(part) :], first + len(part)

    def result(self) -> Array:
        """Return the sums."""
        return self._sums.result()
