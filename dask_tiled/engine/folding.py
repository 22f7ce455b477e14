"""Sinks that fold frames, from tiles or directly from the bytes of a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
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
    PIXELS_BYTES,
    PIXELS_DEPTH,
    PIXELS_TILE_BYTES,
    READ_DEPTH,
    TILE_BYTES,
)
from dask_tiled.errors import DatasetError, Guard
from dask_tiled.model.decoders import Decoder, plain
from dask_tiled.model.events import EventRun, EventTarget
from dask_tiled.model.indexing import Array, Index
from dask_tiled.model.requests import IN_MEMORY
from dask_tiled.reading.ranges import Frames, ReadRanges, Runs, Units, Window

WORDS = {"copy": 1, "swap2": 2, "swap4": 4, "swap8": 8}
"""Bytes of the words that a decoder reverses."""
NARROW_FRAMES = 1 << 16
"""Maximum number of values of 2 bytes that can be summed in 4 bytes."""


def can_fold(dtype: np.dtype) -> bool:
    """Return whether folds support a pixel dtype."""
    known = dtype.kind in "biuf" and dtype.itemsize in {1, 2, 4, 8} and dtype != np.float16
    return known and dtype.isnative


def are_narrow(pixel: np.dtype, frames: int) -> bool:
    """Return whether sums over ``frames`` values fit into 4 bytes."""
    return pixel.itemsize <= 2 and pixel.kind in "biu" and frames <= NARROW_FRAMES


def call_of(
    name: str, pixel: np.dtype, results: Array, weights: Array, rows: Index | None = None
) -> Index:
    """Return the call of a fold, as ``dask_tiled.kernels.fold_layout`` has it.

    It refers to the memory of the arrays. ``rows`` are only needed by ``fold_each``.
    """
    from dask_tiled.kernels.fold_functions import address

    call = [address(name, pixel, results.dtype, weights.dtype), pixel.itemsize]
    for array in (results, weights):
        call += [array.ctypes.data, *array.shape, array.itemsize]
    return np.array([*call, 0 if rows is None else rows.ctypes.data])


class Fold(NamedTuple):
    """A reduction of a chunk by a function of ``dask_tiled.kernels.folds``."""

    name: str  # name of the function, which ends in ``_frames`` or ``_pixels``
    dtype: np.dtype  # dtype of the results
    initial: tuple[float, ...]
    """Initial values of the results, of a frame or of a pixel, and constants of the fold."""
    kept: tuple[int, ...]
    """Navigation axes that are not reduced."""
    end: Callable[[Array], Array] | None = None
    """Function applied to the results at the end; several of a pixel are along a first axis."""

    @property
    def by_frame(self) -> bool:
        """Whether there is a result per frame, rather than per pixel."""
        return self.name.endswith("_frames")


class FrameSink:
    """Sink that feeds frames, as files hold them, to a function of ``dask_tiled.kernels``."""

    def __init__(
        self, name: str, chunk: Chunk, rows: Index, results: Array, weights: Array
    ) -> None:
        self._name = name
        self._chunk = chunk
        self._pixel = np.dtype(np.uint8) if chunk.dtype == bool else chunk.dtype
        self._rows = rows  # row of the results for each frame
        self._results = results
        self._weights = weights
        by_frame = name.endswith("_frames")
        self.any_order = by_frame and not weights.size  # whether pixels may come in any order
        self._is_by_frame = by_frame
        self._is_by_pixel = name.endswith("_pixels")  # results by pixel, shared by many frames
        self._together: Index | None = None  # frames with equal numbers are fed together
        self._places: FramePermutation | None = None
        self._taken: Array = np.empty((0, 0))
        self._fresh: dict[int, bool] = {}

    @property
    def arrays(self) -> list[Array]:
        """All arrays that the sink holds."""
        own = [self._rows, self._results, self._weights, self._taken]
        return own if self._together is None else [*own, self._together]

    def working_bytes(self, _: tuple[int, ...]) -> int:
        """Return the bytes of the pixels that are decoded at a time."""
        return PIXELS_BYTES if self._is_by_pixel else DOT_BYTES

    needs_order = False
    """Whether the pixels of a frame must come in order."""
    needs_whole_frames = False
    """Whether all pixels of a frame must come at once."""

    @property
    def is_by_pixel(self) -> bool:
        """Whether there is a result per pixel, shared by many frames."""
        return self._is_by_pixel

    @property
    def at_once(self) -> int:
        """Frames to read at once: those that share results or weights while these are cached."""
        if not self._name.startswith("dot"):
            return PIXELS_DEPTH if self._name.endswith("_pixels") else 1
        return READ_DEPTH if len(self._weights) > MOST_REVERSED else PIXELS_DEPTH

    @property
    def alike(self) -> Hashable:
        """Key: sinks with equal keys share a pass; None for sinks that cannot."""
        return None

    def can_share(self, ranges: Iterable[ReadRanges]) -> bool:
        """Return whether frames are folded where they lie, in any order and number."""
        nowhere = np.empty(0, np.uint8)  # buffers that kernels read into are aligned as the file is
        return self._together is None and all(
            self._in_place(x.units) and are_aligned(Window(x, nowhere, 0), self._pixel)
            for x in ranges
        )

    def with_others(self, others: Sequence[FrameSink]) -> FrameSink:
        """Return a sink that feeds the same frames to this sink and to others."""
        return SeveralSinks([self, *others], self._chunk)

    def call_of(self, units: Units) -> Index:
        """Return the call of the fold of undecoded pixels, with the row of each frame."""
        name = self._in_place(units)
        return call_of(name, self._pixel, self._results, self._weights, self._rows)

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
        self._take(tile.reshape(len(tile), -1), self._rows[first : first + len(tile)], 0)

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
            self._take(tile, self._rows[frame : frame + 1], 0)

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
        rows = self._rows[ranges.frames]
        name = self._in_place(units)
        if not name:
            fresh = self._fresh.get(id(units))
            if fresh is None:  # not announced: others may hold the same pixels
                self._fresh.clear()
            else:
                self._fresh[id(units)] = False
            self._decode(window, rows, fresh=bool(fresh))
            return
        runs = units.runs
        runs = runs._replace(starts=runs.starts + min(0, runs.step * (runs.length - 1)))
        nbytes, firsts = runs.length * decoder.nbytes, self._firsts(runs)
        if nbytes < LEAST_VIEW or not are_aligned(window, self._pixel):
            count = decoder.nbytes // self._pixel.itemsize
            copy = replace(plain(self._pixel), nbytes=decoder.nbytes, pixels=count)
            copied = runs._replace(step=decoder.nbytes)
            self._fold_units(name, copy, copied, window, rows, self._results, self._weights)
        else:
            self._run(name, window.frames(rows), nbytes, runs.starts, firsts)

    def _in_place(self, units: Units) -> str:
        """Name the function that takes units where they lie; empty if they are decoded first."""
        pixel = self._pixel
        name = in_place(self._name, units, pixel, any_order=self.any_order)
        # What many weights need is put in order once; and floats are added up as all others are.
        few = len(self._weights) <= MOST_REVERSED and pixel.kind in "iu" and pixel.itemsize <= 4
        reverses = name.startswith("dot") and name != self._name
        return "" if reverses and not few else name

    def _run(self, name: str, frames: Frames, nbytes: int, starts: Index, firsts: Index) -> None:
        """Fold runs of pixels where they lie."""
        from dask_tiled.kernels.fold_functions import fold_in_place

        width, depth = nbytes // self._pixel.itemsize, self._depth(frames.offsets, nbytes)
        call = call_of(name, self._pixel, self._results, self._weights)
        fold_in_place()(call, *frames, starts, firsts, width, depth)

    def _depth(self, offsets: Index, nbytes: int) -> int:  # noqa: ARG002
        """Return the most frames to fold together, given their offsets and bytes."""
        return max(1, len(offsets))

    def _firsts(self, runs: Runs) -> Index:
        """Return the first pixel of each run; 0 in any order, so that no run exceeds a frame."""
        return runs.dests // self._pixel.itemsize * (not self.any_order)

    def _decode(self, window: Window, rows: Index, *, fresh: bool) -> None:
        """Fold pixels that have to be decoded first."""
        units = window.ranges.units
        name, results, weights = self._name, self._results, self._weights
        if are_adjacent(units) or self.any_order:
            self._fold_units(name, units.decoder, units.runs, window, rows, results, weights)
            return
        if self._places is None:
            self._places = FramePermutation(units, self._pixel)
            if self._is_by_frame:
                self._taken = self._places.take(self._weights, self._taken)
            elif fresh:
                self._taken = self._places.room(self._results, self._taken)
                self._begin(self._taken)
            else:
                self._taken = self._places.take(self._results, self._taken)
        if self._is_by_frame:
            weights = self._taken
        else:
            results = self._taken
        runs = units.runs._replace(dests=self._places.firsts * self._pixel.itemsize)
        self._fold_units(name, units.decoder, runs, window, rows, results, weights)

    def _put_back(self) -> None:
        """Copy results from file order back to frame order."""
        if self._places is not None and not self._is_by_frame:
            self._places.put(self._taken, self._results)
        self._places = None

    def _fold_units(
        self,
        name: str,
        decoder: Decoder,
        runs: Runs,
        window: Window,
        rows: Index,
        results: Array,
        weights: Array,
    ) -> None:
        from dask_tiled.kernels.fold_functions import add_packed, fold_units

        firsts = self._firsts(runs)
        if len(results) == 1 and adds_packed(name, decoder, results.dtype):
            add_packed(results.dtype)(
                *window.frames(rows),
                runs.starts,
                runs.step,
                firsts,
                runs.length,
                decoder.nbytes,
                results,
            )
            return
        run_bytes = runs.length * decoder.width
        in_order = bool((np.diff(runs.dests) == run_bytes).all())
        nbytes, depth = FOLD_BYTES, 1
        if self._is_by_pixel:
            nbytes, depth = PIXELS_BYTES, PIXELS_DEPTH
        elif self._name.startswith("dot"):
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
            call_of(name, self._pixel, results, weights),
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
        frames = Frames(IN_MEMORY, data, offsets, rows)
        self._run(self._name, frames, nbytes, np.zeros(1, np.int64), np.array([first]))

    def _begin(self, results: Array) -> None:
        """Initialise the results."""
        raise NotImplementedError

    def result(self) -> Array:
        """Return the result of the chunk."""
        raise NotImplementedError


class SeveralSinks(FrameSink):
    """Feeds some frames at a time to several sinks, one after the other, while they are cached."""

    def __init__(self, sinks: Sequence[FrameSink], chunk: Chunk) -> None:
        from dask_tiled.kernels.fold_layout import COLUMNS

        frames, table = (
            np.arange(math.prod(chunk.nav_shape)),
            np.empty((len(sinks), COLUMNS), np.int64),
        )
        super().__init__("fold_each", chunk, frames, table, np.empty((0, 0), np.float32))
        self._sinks = sinks
        self.any_order = all(sink.any_order for sink in sinks)

    def take_window(self, window: Window) -> None:
        """Fold read ranges; unaligned ones in memory with one sink after the other."""
        if window.request is not IN_MEMORY or are_aligned(window, self._pixel):
            super().take_window(window)
        else:
            for sink in self._sinks:
                sink.take_window(window)

    def _in_place(self, units: Units) -> str:
        self._results[:] = [sink.call_of(units) for sink in self._sinks]
        return self._name

    def _depth(self, offsets: Index, nbytes: int) -> int:  # noqa: ARG002
        return max(1, CACHED_BYTES // nbytes)


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


class FoldSink(FrameSink):
    """Sink of a fold over the frames of a chunk."""

    def __init__(self, fold: Fold, chunk: Chunk) -> None:
        self._fold = fold
        frames, pixels = math.prod(chunk.nav_shape), math.prod(chunk.sig_shape)
        dtype = np.dtype(np.uint8) if fold.dtype == bool else fold.dtype
        if fold.name == "sum_pixels" and are_narrow(chunk.dtype, frames):
            dtype = np.dtype(f"{dtype.kind}4")
        rows, self._nav_shape = rows_of(chunk.nav_shape, fold.kept)
        count, several = math.prod(self._nav_shape), len(fold.initial)
        shape = (count, several) if fold.by_frame else (count * several, pixels)
        results = np.zeros(shape, dtype)  # untouched memory is zero already
        if any(fold.initial):
            self._begin(results)
        super().__init__(fold.name, chunk, rows, results, np.empty((0, 0), np.float32))
        if count > 1 and not fold.by_frame:
            self._together = rows

    def _begin(self, results: Array) -> None:
        initial = np.array(self._fold.initial, results.dtype)
        if self._fold.by_frame:
            results[...] = initial
        else:
            results.reshape(-1, len(initial), results.shape[1])[...] = initial[:, None]

    @property
    def adds_integers(self) -> bool:
        """Whether the fold adds pixels up exactly, in whatever order."""
        plain = self._fold.end is None and self._fold.name in {"sum_frames", "sum_pixels"}
        return plain and self._results.dtype.kind in "iu"

    def target(self, run: EventRun) -> EventTarget:
        """Return the results as the output of events."""
        columns = np.minimum(run.columns, 0) if self._fold.by_frame else run.columns
        return run.target(self._rows[run.frames] * self._results.shape[1], columns, self._results)

    def result(self) -> Array:
        """Return the results, with reduced axes of length 1.

        Sums of narrow pixels keep the dtype of their accumulator.
        """
        self._put_back()
        sig_shape, several = self._chunk.sig_shape, len(self._fold.initial)
        if self._fold.by_frame:
            results = self._results[:, 0].reshape(self._nav_shape + (1,) * len(sig_shape))
        else:
            results = self._results.reshape(-1, several, self._results.shape[1]).swapaxes(0, 1)
            results = results.reshape((several, *self._nav_shape, *sig_shape))
            results = results[0] if several == 1 else results
        return results if self._fold.end is None else self._fold.end(results)


def rows_of(shape: tuple[int, ...], kept: Sequence[int]) -> tuple[Index, tuple[int, ...]]:
    """Return the position of each grid point along the axes that are kept, in C order.

    Returns
    -------
    int64 array, tuple of int
        The index of each point in C order, and the shape of the grid with 1 for axes not kept.
    """
    left = tuple(n if axis in kept else 1 for axis, n in enumerate(shape))
    rows = np.zeros(shape, np.int64)
    rows += np.arange(math.prod(left)).reshape(left)
    return rows.reshape(-1), left


def in_place(name: str, units: Units, pixel: np.dtype, *, any_order: bool) -> str:
    """Return the fold of undecoded pixels that equals a fold of decoded ones; "" if there is none.

    With ``any_order``, the pixels of a frame may come in any order.
    """
    runs, kernel, nbytes = units.runs, units.decoder.kernel, units.decoder.nbytes
    if runs.length > 1 and abs(runs.step) != nbytes:
        return ""
    if any_order and kernel == "unpack12" and name == "sum_frames":
        return "sum_packed_frames"
    word, size = WORDS.get(kernel, 0), pixel.itemsize
    in_order = are_adjacent(units) and (runs.length == 1 or runs.step == nbytes)
    if not word or not (any_order or (in_order and word in {1, size})):
        return ""
    if word == 1 or size == 1:
        return name
    return "" if name == "run_program" else name.replace("_", "_reversed_")


def adds_packed(name: str, decoder: Decoder, result: np.dtype) -> bool:
    """Return whether packed pixels can be summed without unpacking them into memory."""
    packed = decoder.kernel == "unpack12"
    return packed and name == "sum_pixels" and result.kind in "iu"


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
