"""Folds as jobs, and the way to do them without ever making a tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import tokenize

from dask_tiled.backends import Backend, Bytes
from dask_tiled.coded import CodedRange
from dask_tiled.decoders import Decoder
from dask_tiled.file_order import Places, are_neighbours
from dask_tiled.jobs import Chunk, Run, TileInfo
from dask_tiled.loader import RawChunk
from dask_tiled.planning import frame_ranges
from dask_tiled.ranges import ReadRanges
from dask_tiled.requests import TilingRequest
from dask_tiled.selection import Index

Array = npt.NDArray[Any]

STREAMED_BYTES = 16384
"""So much is decoded at a time: what stays in the innermost cache with the results."""
DEPTH = 8
"""Frames that are decoded together, where their pixels are added up."""
SHARED_BYTES = 4 << 20
"""So much is fetched at a time for several folds: it stays in the outer cache for all of them."""
LEAST_RUN = 64
"""Pixels of a run that are worth a call."""
NARROW_FRAMES = 1 << 15
"""So many counts of 2 bytes can be added up in 4 bytes."""


ANY_ORDER = {"sum_frames", "min_frames", "max_frames", "any_frames", "all_frames"}
"""Folds that the order of a frame's pixels is nothing to."""


def can_fold(dtype: np.dtype) -> bool:
    """Tell whether there are folds of pixels of a type."""
    known = dtype.kind in "biuf" and dtype.itemsize in {1, 2, 4, 8} and dtype != np.float16
    return known and dtype.isnative


@dataclass(frozen=True, eq=False)
class Fold:
    """A reduction of a chunk by one of the functions of :mod:`dask_tiled.folds`.

    Attributes
    ----------
    name : str
        Name of the function, which ends in ``_frames`` or ``_pixels``.
    dtype : numpy.dtype
        Type of the results.
    initial : tuple of scalar
        What the results are before anything is folded into them; several of them give the results
        an axis of their own, the last one.
    weights : array, optional
        Weights of the pixels: one, then the signal axes of the whole array.
    """

    name: str
    dtype: np.dtype
    initial: tuple[Any, ...] = (0,)
    weights: Array | None = None

    request = TilingRequest("frame")

    @property
    def by_frame(self) -> bool:
        """Whether there is a result for each frame, or for each pixel."""
        return self.name.endswith("_frames")

    def as_is(self, decoder: Decoder, pixel: np.dtype) -> str:
        """Name the fold that does the same to undecoded pixels; empty where there is none.

        The order of a frame's pixels makes no difference to sums and extremes, and that of their
        bytes none to whether they are zero.
        """
        kernel = decoder.kernel.removeprefix("dask_tiled.kernels:")
        if kernel not in {"copy", "swap2", "swap4", "swap8"} or self.name not in ANY_ORDER:
            return ""
        if kernel == "copy" or pixel.itemsize == 1 or self.name in {"any_frames", "all_frames"}:
            return self.function(pixel)
        return "sum_reversed_frames" if self.function(pixel) == "sum_short_frames" else ""

    def function(self, pixel: np.dtype) -> str:
        """Name the function for pixels of a type."""
        short = pixel.kind == "u" and pixel.itemsize <= 4
        return "sum_short_frames" if self.name == "sum_frames" and short else self.name

    def begin(self, chunk: Chunk) -> FoldRun:
        """Begin to work on a chunk."""
        return FoldRun(self, chunk)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        weights = None if self.weights is None else tokenize(self.weights)
        return "dask_tiled.Fold", self.name, str(self.dtype), repr(self.initial), weights


class FoldRun:
    """A fold at work on one chunk."""

    def __init__(self, fold: Fold, chunk: Chunk) -> None:
        self._fold = fold
        self._chunk = chunk
        self._pixel = np.dtype(np.uint8) if chunk.dtype == bool else chunk.dtype
        frames, pixels = math.prod(chunk.nav_shape), math.prod(chunk.sig_shape)
        dtype = fold.dtype
        narrow = chunk.dtype.itemsize <= 2 and dtype.kind in "iu" and frames <= NARROW_FRAMES
        if fold.name == "sum_pixels" and narrow:
            dtype = np.dtype(f"{dtype.kind}4")
        shape = (frames, len(fold.initial)) if fold.by_frame else (len(fold.initial), pixels)
        self._results = np.empty(shape, dtype)
        columns = self._results if fold.by_frame else self._results.T
        columns[...] = fold.initial
        weights = np.empty((0, 0), np.float32)
        if fold.weights is not None:
            sig = tuple(slice(*bounds) for bounds in chunk.box[chunk.nav_ndim :])
            part = fold.weights[(slice(None), *sig)]
            weights = np.ascontiguousarray(part).reshape(len(part), -1)
        self._weights = weights
        self._types = self._pixel, dtype, weights.dtype

    def step(self, tile: Array, first: int, info: TileInfo) -> None:  # noqa: ARG002
        """Fold some whole frames."""
        self._take(tile.reshape(len(tile), -1), np.arange(first, first + len(tile)), 0)

    def fill(self, frames: Index, value: Any) -> None:
        """Fold frames that have one value everywhere."""
        tile = np.full((1, math.prod(self._chunk.sig_shape)), value, self._chunk.dtype)
        for frame in frames:
            self._take(tile, frame[None], 0)

    def stream(self, part: ReadRanges, data: Bytes, base: int) -> None:
        """Fold read ranges, unit after unit as the file has them."""
        from dask_tiled.fold_functions import stream, stream_as_is

        runs, decoder = part.units.runs, part.units.decoder
        tile = _lying(part, data, base, self._pixel)
        if tile is not None:
            self._take(tile, part.frames, int(runs.dests[0]) // self._pixel.itemsize)
            return
        name = self._fold.as_is(decoder, self._pixel)
        if name and abs(runs.step) == decoder.nbytes and _is_aligned(part, data, base, self._pixel):
            stream_as_is(name, *self._types)(
                data,
                part.offsets - base,
                part.frames,
                runs.starts + min(0, runs.step * (runs.length - 1)),
                runs.length * decoder.nbytes,
                np.empty(0, self._pixel),
                self._results,
                self._weights,
            )
            return
        depth = min(DEPTH, len(part.frames))
        if self._fold.name == "sum_frames":
            depth = 1
        block = min(runs.length, max(1, STREAMED_BYTES // (depth * decoder.width)))
        places = None if are_neighbours(part.units) else Places(part.units, self._pixel)
        firsts, results, weights = runs.dests // self._pixel.itemsize, self._results, self._weights
        if places is not None:
            firsts = places.firsts
            if not self._fold.by_frame:
                results = places.take(results)
            elif weights.size:
                weights = places.take(weights)
        stream(self._fold.function(self._pixel), *self._types, decoder.kernel)(
            data,
            part.offsets - base,
            part.frames,
            runs.starts,
            runs.step,
            firsts,
            runs.length,
            decoder.nbytes,
            decoder.width,
            decoder.lag,
            block,
            depth,
            np.empty(depth * block * decoder.pixels, self._pixel),
            results,
            weights,
        )
        if places is not None and not self._fold.by_frame:
            places.put(results, self._results)

    def _take(self, tile: Array, rows: Index, first: int) -> None:
        from dask_tiled.fold_functions import fold

        function = fold(self._fold.function(self._pixel), *self._types)
        function(tile.view(self._pixel), rows, first, self._results, self._weights)

    def result(self) -> Array:
        """Give the results: with the axes of the chunk, those that are gone of length 1."""
        fold, chunk = self._fold, self._chunk
        ones = (1,) * len(chunk.nav_shape), (1,) * len(chunk.sig_shape)
        shape = chunk.nav_shape + ones[1] if fold.by_frame else ones[0] + chunk.sig_shape
        results = self._results if fold.by_frame else self._results.T
        if fold.name.startswith("moments"):
            sizes = chunk.sig_shape if fold.by_frame else chunk.nav_shape
            results = _about_the_mean(results, math.prod(sizes))
        tail = (len(fold.initial),) if len(fold.initial) > 1 or fold.weights is not None else ()
        return np.ascontiguousarray(results, fold.dtype).reshape(shape + tail)


def _about_the_mean(results: Array, count: int) -> Array:
    """Turn values and sums of differences from them into number, mean and spread."""
    shift, total, squares = results.T
    with np.errstate(all="ignore"):  # infinite pixels have no spread
        mean = shift + total / count
        spread = squares - total * total / count
    return np.stack([np.full_like(mean, count), mean, spread], axis=-1)


def stream(raw: RawChunk, runs: Sequence[Run], backend: Backend) -> bool:
    """Fold a chunk without making tiles, where all jobs are folds and pixels stay as they are.

    Returns
    -------
    bool
        Whether that was possible; otherwise nothing was done.
    """
    folds = [run for run in runs if isinstance(run, FoldRun)]
    if len(folds) < len(runs) or not raw.conversion.nothing:
        return False
    region = raw.region()
    ranges = []
    for piece in frame_ranges(raw.layout, region.frames, region.sig):
        if isinstance(piece, CodedRange) or not _is_streamable(piece):
            return False
        ranges.append(piece)
    limit = None if len(folds) == 1 else SHARED_BYTES
    for piece in ranges:
        for part, data, base in backend.windows(piece, limit):
            for run in folds:
                run.stream(part, data, base)
    absent = np.flatnonzero(raw.layout.selection.are_absent(region.frames))
    for run in folds:
        run.fill(absent, raw.conversion.fill_value)
    return True


def _is_streamable(piece: ReadRanges) -> bool:
    """Tell whether runs of units are long enough to go through a file as it lies."""
    units = piece.units
    long = units.runs.length * units.decoder.pixels >= LEAST_RUN
    return units.pick is None and (long or are_neighbours(units))


def _is_aligned(part: ReadRanges, data: Bytes, base: int, pixel: np.dtype) -> bool:
    """Tell whether all runs begin at multiples of a pixel in memory."""
    places = np.add.outer(part.offsets - base + data.ctypes.data, part.units.runs.starts)
    return not (places % pixel.alignment).any()


def _lying(part: ReadRanges, data: Bytes, base: int, pixel: np.dtype) -> Array | None:
    """Look at pixels that lie in memory as numpy has them: frames by pixels, or None."""
    first = int(part.offsets[0]) - base
    if not part.lies_as(pixel) or (data.ctypes.data + first) % pixel.alignment:
        return None
    return data[first : first + part.nbytes].view(pixel).reshape(len(part.frames), -1)
