"""Sinks that take whole frames, from tiles or directly from the bytes of a file."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple, Self

import numpy as np

from dask_tiled.engine.expressions import Scalar
from dask_tiled.engine.jobs import Chunk, TileInfo
from dask_tiled.engine.limits import (
    CACHED_BYTES,
    DOT_BYTES,
    DOT_DEPTH,
    FOLD_BYTES,
    GROUPED_BYTES,
    LEAST_VIEW,
    MOST_REVERSED,
    NARROW_FRAMES,
    PIXELS_BYTES,
    PIXELS_DEPTH,
    PIXELS_TILE_BYTES,
    READ_DEPTH,
    SHARED_PIXELS,
    TILE_BYTES,
)
from dask_tiled.errors import DatasetError, Guard
from dask_tiled.model.decoders import Decoder, plain
from dask_tiled.model.indexing import Array, Index
from dask_tiled.model.requests import IN_MEMORY
from dask_tiled.reading.ranges import FrameData, ReadRanges, Runs, Units, Window

WORDS = {"copy": 1, "swap2": 2, "swap4": 4, "swap8": 8}
"""Bytes of the words that a decoder reverses."""


def can_fold(dtype: np.dtype) -> bool:
    """Return whether folds support a pixel dtype."""
    known = dtype.kind in "biuf" and dtype.itemsize in {1, 2, 4, 8} and dtype != np.float16
    return known and dtype.isnative


def are_narrow(pixel: np.dtype, frames: int) -> bool:
    """Return whether sums over ``frames`` values fit into 4 bytes."""
    return pixel.itemsize <= 2 and pixel.kind in "biu" and frames <= NARROW_FRAMES


class Kernel(NamedTuple):
    """A function of ``dask_tiled.kernels`` that takes frames, and its arrays."""

    name: str
    rows: Index  # row of the results for each frame
    results: Array
    weights: Array

    def call(self, pixel: np.dtype) -> Index:
        """Return the call, as ``dask_tiled.kernels.fold_layout`` has it.

        It refers to the memory of the arrays.
        """
        from dask_tiled.kernels.fold_functions import address

        call = [address(self.name, pixel, self.results.dtype, self.weights.dtype), pixel.itemsize]
        for array in (self.results, self.weights):
            call += [array.ctypes.data, *array.shape, array.itemsize]
        return np.array([*call, self.rows.ctypes.data])


class Stored(Enum):
    """How files hold pixels that kernels take without decoding."""

    NATIVE = "native"
    REVERSED = "reversed"
    """In reversed byte order."""
    PACKED = "packed"
    """16 pixels of 12 bits in 24 bytes."""


class FrameSink:
    """Sink that feeds frames, as files hold them, to a function of ``dask_tiled.kernels``."""

    def __init__(self, kernel: Kernel, chunk: Chunk) -> None:
        self._kernel = kernel
        self._chunk = chunk
        self._pixel = np.dtype(np.uint8) if chunk.dtype == bool else chunk.dtype
        self.any_order = False  # whether pixels may come in any order
        self._is_by_pixel = False  # whether results are by pixel, shared by many frames
        self._together: Index | None = None  # frames with equal numbers are fed together
        self._places: FramePermutation | None = None
        self._taken: Array = np.empty((0, 0))
        self._fresh: dict[int, bool] = {}

    @property
    def arrays(self) -> list[Array]:
        """All arrays that the sink holds."""
        own = [*self._kernel[1:], self._taken]
        return own if self._together is None else [*own, self._together]

    def working_bytes(self, _: tuple[int, ...]) -> int:
        """Return the bytes of the pixels that are decoded at a time."""
        return PIXELS_BYTES if self._is_by_pixel else DOT_BYTES

    needs_order = False
    """Whether the pixels of a frame must come in order."""
    needs_whole_frames = False
    """Whether all pixels of a frame must come at once."""

    @property
    def at_once(self) -> int:
        """Frames to read at once: those that share results or weights while these are cached."""
        if self.is_product:
            return READ_DEPTH
        return PIXELS_DEPTH if self._is_by_pixel else 1

    @property
    def is_product(self) -> bool:
        """Whether results are weighted sums."""
        return self._kernel.name.startswith("dot")

    @property
    def alike(self) -> Hashable:
        """Key: sinks with equal keys share a pass; None for sinks that cannot."""
        return None

    def can_share(self, ranges: Iterable[ReadRanges]) -> bool:
        """Return whether frames are folded where they lie, in any order and number."""
        nowhere = np.empty(0, np.uint8)  # buffers that kernels read into are aligned as the file is
        return self._together is None and all(
            self._in_place(x.units) is not None and are_aligned(Window(x, nowhere, 0), self._pixel)
            for x in ranges
        )

    def can_cut(self, pixels: int) -> bool:
        """Return whether results are the same if frames are cut after each ``pixels`` pixels."""
        from dask_tiled.kernels.limits import BLOCK

        return not pixels % BLOCK

    def with_others(self, others: Sequence[FrameSink]) -> FrameSink:
        """Return a sink that feeds the same frames to this sink and to others."""
        return SeveralSinks([self, *others], self._chunk)

    def call_of(self, units: Units) -> Index:
        """Return the call of the kernel of undecoded pixels, with the row of each frame."""
        kernel = self._in_place(units)
        assert kernel is not None  # noqa: S101 - units can be shared
        return kernel.call(self._pixel)

    @property
    def window_bytes(self) -> int | None:
        """Bytes of a window, where frames of one result must come together; else None."""
        return None if self._together is None else GROUPED_BYTES

    @classmethod
    def joined(cls, sinks: Sequence[Self]) -> FrameSink:
        """Merge sinks with equal keys."""
        raise NotImplementedError

    def take(self, tile: Array, first: int, info: TileInfo) -> None:  # noqa: ARG002
        """Fold a tile of whole frames."""
        rows = self._kernel.rows[first : first + len(tile)]
        self._take(tile.reshape(len(tile), -1), rows, 0)

    def tile_shape(self) -> tuple[int, ...]:
        """Return the preferred tile shape: whole frames."""
        frame = math.prod(self._chunk.sig_shape) * self._chunk.dtype.itemsize
        depth = TILE_BYTES // max(1, frame)
        if self._is_by_pixel:
            depth = max(depth, min(PIXELS_DEPTH, PIXELS_TILE_BYTES // max(1, frame)))
        return max(1, depth), *self._chunk.sig_shape

    def fill(self, frames: Index, value: Scalar) -> None:
        """Fold constant frames."""
        if not len(frames):
            return
        tile = np.full((1, math.prod(self._chunk.sig_shape)), value, self._chunk.dtype)
        for frame in frames:
            self._take(tile, self._kernel.rows[frame : frame + 1], 0)

    def expect(self, units: Iterable[Units]) -> None:
        """Prepare for units that share no pixel."""
        self._fresh = {id(some): True for some in units}

    def take_window(self, window: Window) -> None:
        """Fold read ranges, unit after unit in file order."""
        ranges = window.ranges
        units, decoder = ranges.units, ranges.units.decoder
        if self._places is not None and self._places.units is not units:
            self._put_back()  # other units may hold the same pixels of other frames
        if self._together is not None:
            order = np.argsort(self._together[ranges.frames], kind="stable")
            ranges = ranges._replace(offsets=ranges.offsets[order], frames=ranges.frames[order])
            window = window._replace(ranges=ranges)
        kernel = self._in_place(units)
        if kernel is None:
            fresh = self._fresh.get(id(units))
            if fresh is None:  # not announced: others may hold the same pixels
                self._fresh.clear()
            else:
                self._fresh[id(units)] = False
            self._decode(window, fresh=bool(fresh))
            return
        runs = units.runs
        runs = runs._replace(starts=runs.starts + min(0, runs.step * (runs.length - 1)))
        nbytes, firsts = runs.length * decoder.nbytes, self._firsts(runs)
        if (nbytes < LEAST_VIEW and len(runs.starts) > 1) or not are_aligned(window, self._pixel):
            count = decoder.nbytes // self._pixel.itemsize
            copy = replace(plain(self._pixel), nbytes=decoder.nbytes, pixels=count)
            copied = runs._replace(step=decoder.nbytes)
            self._fold_units(kernel, copy, copied, window)
        else:
            frames = window.frames(kernel.rows[ranges.frames])
            self._run(kernel, frames, nbytes, runs.starts, firsts)

    def _in_place(self, units: Units) -> Kernel | None:
        """Return the kernel that takes units where they lie; None if they are decoded first."""
        stored = stored_as(units, self._pixel, any_order=self.any_order)
        return None if stored is None else self._kernel_of(stored)

    def _kernel_of(self, stored: Stored) -> Kernel | None:
        """Return the kernel of undecoded pixels, or None."""
        pixel, kernel = self._pixel, self._kernel
        if stored is not Stored.REVERSED:
            return kernel if stored is Stored.NATIVE else None
        # What many weights need is put in order once; and floats are added up as all others are.
        few = len(kernel.weights) <= MOST_REVERSED and pixel.kind in "iu" and pixel.itemsize <= 4
        return kernel._replace(name=kernel.name.replace("_", "_reversed_")) if few else None

    def _run(
        self, kernel: Kernel, frames: FrameData, nbytes: int, starts: Index, firsts: Index
    ) -> None:
        """Process runs of pixels where they lie."""
        from dask_tiled.kernels.fold_functions import fold_in_place

        width, depth = nbytes // self._pixel.itemsize, self._depth(frames.offsets, nbytes)
        fold_in_place()(kernel.call(self._pixel), *frames, starts, firsts, width, depth)

    def _depth(self, offsets: Index, nbytes: int) -> int:  # noqa: ARG002
        """Return the most frames to fold together, given their offsets and bytes."""
        return max(1, len(offsets))

    def _firsts(self, runs: Runs) -> Index:
        """Return the first pixel of each run; 0 in any order, so that no run exceeds a frame."""
        return runs.dests // self._pixel.itemsize * (not self.any_order)

    def _decode(self, window: Window, *, fresh: bool) -> None:
        """Process pixels that have to be decoded first."""
        units, kernel = window.ranges.units, self._kernel
        if are_adjacent(units) or self.any_order:
            self._fold_units(kernel, units.decoder, units.runs, window)
            return
        if self._places is None:
            self._places = FramePermutation(units, self._pixel)
            if fresh and self._accumulates:
                self._taken = self._places.room(self._columns, self._taken)
                self._begin(self._taken)
            else:
                self._taken = self._places.take(self._columns, self._taken)
        runs = units.runs._replace(dests=self._places.firsts * self._pixel.itemsize)
        self._fold_units(self._with(self._taken), units.decoder, runs, window)

    _accumulates = False
    """Whether columns in file order are results, which are put back."""

    @property
    def _columns(self) -> Array:
        """Weights or results by pixel, which are kept in file order while a file is read."""
        return self._kernel.weights

    def _with(self, columns: Array) -> Kernel:
        """Return the kernel with columns in file order."""
        return self._kernel._replace(weights=columns)

    def _put_back(self) -> None:
        """Copy results from file order back to frame order."""
        if self._places is not None and self._accumulates:
            self._places.put(self._taken, self._columns)
        self._places = None

    def _fold_units(self, kernel: Kernel, decoder: Decoder, runs: Runs, window: Window) -> None:
        """Decode units block by block, and process each block."""
        from dask_tiled.kernels.fold_functions import fold_units

        firsts, rows = self._firsts(runs), kernel.rows[window.ranges.frames]
        run_bytes = runs.length * decoder.width
        in_order = bool((np.diff(runs.dests) == run_bytes).all())
        nbytes, depth = FOLD_BYTES, 1
        if self._is_by_pixel:
            nbytes, depth = PIXELS_BYTES, PIXELS_DEPTH
        elif self.is_product:
            nbytes, depth = DOT_BYTES, DOT_DEPTH
        depth = min(depth, len(rows))
        limit = max(1, nbytes // depth)
        block = min(runs.length, max(1, limit // decoder.width))
        group = 1
        if block == runs.length and (in_order or self.any_order):
            group = max(1, min(len(runs.starts), limit // run_bytes))
        with Guard(window.ranges.file.path, "the kernel of the decoder fails", kind=DatasetError):
            fold = fold_units(decoder.kernel)
        fold(
            kernel.call(self._pixel),
            *window.frames(rows),
            runs.starts,
            runs.step,
            firsts,
            runs.length,
            decoder.nbytes,
            decoder.width,
            decoder.lag,
            block,
            group,
            depth,
            np.empty(depth * block * group * decoder.pixels * self._pixel.itemsize, np.uint8),
        )

    def _take(self, tile: Array, rows: Index, first: int) -> None:
        self._put_back()
        nbytes = math.prod(tile.shape[1:]) * tile.itemsize
        data, offsets = tile.reshape(-1).view(np.uint8), np.arange(len(tile)) * nbytes
        frames = FrameData(IN_MEMORY, data, offsets, rows)
        self._run(self._kernel, frames, nbytes, np.zeros(1, np.int64), np.array([first]))

    def _begin(self, results: Array) -> None:
        """Initialise the results."""
        raise NotImplementedError

    def result(self) -> Array:
        """Return the result of the chunk."""
        raise NotImplementedError


class SeveralSinks(FrameSink):
    """Feeds several sinks, one after the other, with parts of some frames while they are cached."""

    def __init__(self, sinks: Sequence[FrameSink], chunk: Chunk) -> None:
        from dask_tiled.kernels.fold_layout import COLUMNS

        frame = math.prod(chunk.sig_shape)
        self._part = SHARED_PIXELS if all(sink.can_cut(SHARED_PIXELS) for sink in sinks) else frame
        frames, part = np.arange(math.prod(chunk.nav_shape)), np.array([[self._part]])
        table = np.empty((len(sinks), COLUMNS), np.int64)
        super().__init__(Kernel("fold_each", frames, table, part), chunk)
        # A product prefetches the next frames meanwhile.
        self._sinks = sorted(sinks, key=lambda sink: not sink.is_product)
        self.any_order = all(sink.any_order for sink in sinks)

    def take_window(self, window: Window) -> None:
        """Fold read ranges; unaligned ones in memory with one sink after the other."""
        if window.request is not IN_MEMORY or are_aligned(window, self._pixel):
            super().take_window(window)
        else:
            for sink in self._sinks:
                sink.take_window(window)

    def _in_place(self, units: Units) -> Kernel:
        self._kernel.results[:] = [sink.call_of(units) for sink in self._sinks]
        return self._kernel

    def _depth(self, offsets: Index, nbytes: int) -> int:  # noqa: ARG002
        return max(1, CACHED_BYTES // min(nbytes, self._part * self._pixel.itemsize))


def together(sinks: Sequence[FrameSink], ranges: Sequence[ReadRanges]) -> Sequence[FrameSink]:
    """Return one sink for several that fold small frames, long runs of pixels, where they lie."""
    if len(sinks) < 2:
        return sinks
    units = {id(piece.units): piece.units for piece in ranges}.values()
    small = all(high - low <= CACHED_BYTES for low, high in (some.reach for some in units))
    long = all(some.runs.length * some.decoder.nbytes >= LEAST_VIEW for some in units)
    if not small or not long or not all(sink.can_share(ranges) for sink in sinks):
        return sinks
    return [sinks[0].with_others(sinks[1:])]


def rows_of(shape: tuple[int, ...], kept: Sequence[int]) -> tuple[Index, tuple[int, ...]]:
    """Return the position of each grid point along the axes that are kept, in C order.

    Returns
    -------
    int64 array, tuple of int
        The index of each point in C order, and the shape of the grid with 1 for axes not kept.
    """
    left = tuple(n if axis in kept else 1 for axis, n in enumerate(shape))
    numbers = np.arange(math.prod(left))
    if left == shape:
        return numbers, left
    return np.broadcast_to(numbers.reshape(left), shape).flatten(), left


def stored_as(units: Units, pixel: np.dtype, *, any_order: bool) -> Stored | None:
    """Return how units hold pixels that need no decoding; None if they are decoded.

    With ``any_order``, the pixels of a frame may come in any order.
    """
    runs, kernel, nbytes = units.runs, units.decoder.kernel, units.decoder.nbytes
    if runs.length > 1 and abs(runs.step) != nbytes:
        return None
    if any_order and kernel == "unpack12":
        return Stored.PACKED
    word, size = WORDS.get(kernel, 0), pixel.itemsize
    in_order = are_adjacent(units) and (runs.length == 1 or runs.step == nbytes)
    if not word or not (any_order or (in_order and word in {1, size})):
        return None
    return Stored.NATIVE if word == 1 or size == 1 else Stored.REVERSED


def are_aligned(window: Window, pixel: np.dtype) -> bool:
    """Return whether all runs are aligned in memory for a pixel dtype."""
    starts, offsets = window.ranges.units.runs.starts, window.ranges.offsets
    first = window.data.ctypes.data - window.origin + int(starts[0]) + int(offsets[0])
    apart = np.bitwise_or.reduce(offsets - offsets[0]) | np.bitwise_or.reduce(starts - starts[0])
    return not (first | int(apart)) % pixel.alignment


def are_adjacent(units: Units) -> bool:
    """Return whether neighbouring units of the runs hold neighbouring pixels."""
    return units.runs.length == 1 or units.runs.out_step == units.decoder.width


class Walk(NamedTuple):
    """A traversal of units: ``length`` units, ``step`` apart, from each first pixel on."""

    firsts: Index
    step: int
    length: int


class FramePermutation:
    """Permutation between file order and frame order.

    Results and weights are kept in file order while a file is read.
    """

    def __init__(self, units: Units, pixel: np.dtype) -> None:
        runs, self._pixels = units.runs, units.decoder.pixels
        self.units = units
        dests, step = runs.dests // pixel.itemsize, runs.out_step // pixel.itemsize
        run = runs.length * self._pixels
        self.firsts = np.arange(len(dests)) * run
        self._size = len(dests) * run
        self._here = Walk(self.firsts, self._pixels, runs.length)
        self._there = Walk(dests, step, runs.length)
        hops = np.diff(dests)
        if 0 < len(hops) < runs.length and (hops == hops[0]).all():
            # Along the rows of the frame: whole cache lines, and few pages at a time.
            rows = np.arange(runs.length)
            self._here = Walk(rows * self._pixels, run, len(dests))
            self._there = Walk(dests[0] + rows * step, int(hops[0]), len(dests))

    def room(self, columns: Array, old: Array) -> Array:
        """Return memory for columns in file order: ``old`` if it fits."""
        shape = len(columns), self._size
        fits = old.shape == shape and old.dtype == columns.dtype
        return old if fits else np.empty(shape, columns.dtype)

    def take(self, columns: Array, old: Array) -> Array:
        """Return the columns of the pixels, in file order."""
        taken = self.room(columns, old)
        self._copy(columns, self._there, taken, self._here)
        return taken

    def put(self, taken: Array, columns: Array) -> None:
        """Copy columns back to frame order."""
        self._copy(taken, self._here, columns, self._there)

    def _copy(self, pixels: Array, starts: Walk, out: Array, dests: Walk) -> None:
        from dask_tiled.kernels.decoding import compiled

        unit = self._pixels * pixels.itemsize
        copy = compiled("copy")
        for row, target in zip(pixels, out, strict=True):
            copy(
                row.view(np.uint8),
                starts.firsts * pixels.itemsize,
                starts.step * pixels.itemsize,
                target.view(np.uint8),
                dests.firsts * pixels.itemsize,
                dests.step * pixels.itemsize,
                starts.length,
                unit,
                0,
            )
