"""Folds as jobs: on tiles, and on the bytes of a file as they come."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import tokenize

from dask_tiled.engine.file_order import Places, are_aligned, are_neighbours, as_frames
from dask_tiled.engine.fold_names import adds_packed, as_is, function_of
from dask_tiled.engine.jobs import Chunk, TileInfo
from dask_tiled.model.decoders import Decoder, plain
from dask_tiled.model.selection import Index
from dask_tiled.reading.backends import Bytes
from dask_tiled.reading.ranges import ReadRanges, Units
from dask_tiled.reading.runs import Runs
from dask_tiled.tiling.requests import TilingRequest

Array = npt.NDArray[Any]

STREAMED_BYTES = 16384
"""So much is decoded at a time: what stays in the innermost cache with the results."""
DEPTH = 8
"""Frames that are decoded together, where their pixels are added up."""
HELD_BYTES = 256 << 10
"""Results and weights of so many bytes stay in the cache from frame to frame."""
LEAST_VIEW = 4096
"""Bytes of a run that are worth a call; shorter ones are put together first."""
NARROW_FRAMES = 1 << 16
"""So many counts of 2 bytes can be added up in 4 bytes."""


def can_fold(dtype: np.dtype) -> bool:
    """Tell whether there are folds of pixels of a type."""
    known = dtype.kind in "biuf" and dtype.itemsize in {1, 2, 4, 8} and dtype != np.float16
    return known and dtype.isnative


def are_narrow(pixel: np.dtype, frames: int) -> bool:
    """Tell whether sums over so many frames fit into 4 bytes."""
    return pixel.itemsize <= 2 and pixel.kind in "biu" and frames <= NARROW_FRAMES


@dataclass(frozen=True, eq=False)
class Fold:
    """A reduction of a chunk by one of the functions of :mod:`dask_tiled.kernels.folds`.

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
        if fold.name == "sum_pixels" and are_narrow(chunk.dtype, frames):
            dtype = np.dtype(f"{dtype.kind}4")
        shape = (frames, len(fold.initial)) if fold.by_frame else (len(fold.initial), pixels)
        self._results = np.empty(shape, dtype)
        columns = self._results if fold.by_frame else self._results.T
        columns[...] = fold.initial
        weights: Array = np.empty((0, 0), np.float32)
        if fold.weights is not None:
            sig = tuple(slice(*bounds) for bounds in chunk.box[chunk.nav_ndim :])
            part = fold.weights[(slice(None), *sig)]
            weights = np.ascontiguousarray(part).reshape(len(part), -1)
        self._weights = weights
        self._any_order = fold.by_frame and not weights.size  # of the pixels
        self._held = weights.nbytes if fold.by_frame else self._results.nbytes
        self._types = self._pixel, dtype, weights.dtype
        self._places: Places | None = None
        self._taken: Array = np.empty((0, 0))
        self._fresh: dict[int, bool] = {}

    def step(self, tile: Array, first: int, info: TileInfo) -> None:  # noqa: ARG002
        """Fold some whole frames."""
        self._take(tile.reshape(len(tile), -1), np.arange(first, first + len(tile)), 0)

    def fill(self, frames: Index, value: Any) -> None:
        """Fold frames that have one value everywhere."""
        if not len(frames):
            return
        tile = np.full((1, math.prod(self._chunk.sig_shape)), value, self._chunk.dtype)
        for frame in frames:
            self._take(tile, frame[None], 0)

    def expect(self, units: Iterable[Units]) -> None:
        """Prepare for units that come from now on, and never hold the same pixels."""
        self._fresh = {id(some): True for some in units}

    def stream(self, part: ReadRanges, data: Bytes, base: int) -> None:
        """Fold read ranges, unit after unit as the file has them."""
        from dask_tiled.kernels.fold_functions import stream_as_is

        runs, decoder = part.units.runs, part.units.decoder
        if self._places is not None and self._places.units is not part.units:
            self._put_back()  # other units may hold the same pixels of other frames
        tile = as_frames(part, data, base, self._pixel)
        if tile is not None:
            self._take(tile, part.frames, int(runs.dests[0]) // self._pixel.itemsize)
            return
        name = as_is(self._fold.name, decoder, self._pixel)
        if not name and self._held <= HELD_BYTES and part.units.are_as_shown():
            name = function_of(self._fold.name, self._pixel)
        if not name or abs(runs.step) != decoder.nbytes:
            fresh = self._fresh.get(id(part.units))
            if fresh is None:  # a part of some units: who knows which others it meets
                self._fresh.clear()
            else:
                self._fresh[id(part.units)] = False
            self._decode(part, data, base, fresh=bool(fresh))
            return
        starts = runs.starts + min(0, runs.step * (runs.length - 1))
        nbytes = runs.length * decoder.nbytes
        if nbytes >= LEAST_VIEW and are_aligned(part, data, base, self._pixel):
            stream_as_is(name, *self._types)(
                data,
                part.offsets - base,
                part.frames,
                starts,
                runs.dests // self._pixel.itemsize,
                nbytes,
                np.empty(0, self._pixel),
                self._results,
                self._weights,
            )
            return
        size = self._pixel.itemsize
        copy = replace(plain(self._pixel), nbytes=decoder.nbytes, pixels=decoder.nbytes // size)
        copied = runs._replace(starts=starts, step=decoder.nbytes)
        self._stream(name, copy, copied, part, data, base, self._results, self._weights)

    def _decode(self, part: ReadRanges, data: Bytes, base: int, *, fresh: bool) -> None:
        """Fold pixels that have to be decoded first."""
        name, units = function_of(self._fold.name, self._pixel), part.units
        results, weights = self._results, self._weights
        if are_neighbours(units) or self._any_order:
            self._stream(name, units.decoder, units.runs, part, data, base, results, weights)
            return
        if self._places is None:
            self._places = Places(units, self._pixel)
            if self._fold.by_frame:
                self._taken = self._places.take(self._weights, self._taken)
            elif fresh:
                self._taken = self._places.room(self._results, self._taken)
                self._taken.T[...] = self._fold.initial
            else:
                self._taken = self._places.take(self._results, self._taken)
        if self._fold.by_frame:
            weights = self._taken
        else:
            results = self._taken
        dests = self._places.firsts * self._pixel.itemsize
        runs = units.runs._replace(dests=dests)
        self._stream(name, units.decoder, runs, part, data, base, results, weights)

    def _put_back(self) -> None:
        """Put results that are in the order of the file into that of the frame."""
        if self._places is not None and not self._fold.by_frame:
            self._places.put(self._taken, self._results)
        self._places = None

    def _stream(
        self,
        name: str,
        decoder: Decoder,
        runs: Runs,
        part: ReadRanges,
        data: Bytes,
        base: int,
        results: Array,
        weights: Array,
    ) -> None:
        from dask_tiled.kernels.fold_functions import add_packed, stream

        firsts = runs.dests // self._pixel.itemsize
        if adds_packed(name, decoder, results.dtype):
            add_packed(results.dtype)(
                data,
                part.offsets - base,
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
        depth = 1 if self._fold.name == "sum_frames" else min(DEPTH, len(part.frames))
        limit = max(1, STREAMED_BYTES // depth)
        block = min(runs.length, max(1, limit // decoder.width))
        group = 1
        if block == runs.length and (in_order or self._any_order):
            group = max(1, min(len(runs.starts), limit // run_bytes))
        stream(name, *self._types, decoder.kernel)(
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
            group,
            depth,
            np.empty(depth * block * group * decoder.pixels, self._pixel),
            results,
            weights,
        )

    def _take(self, tile: Array, rows: Index, first: int) -> None:
        from dask_tiled.kernels.fold_functions import fold

        self._put_back()
        function = fold(function_of(self._fold.name, self._pixel), *self._types)
        function(tile.view(self._pixel), rows, first, self._results, self._weights)

    def result(self) -> Array:
        """Give the results: with the axes of the chunk, those that are gone of length 1."""
        self._put_back()
        fold, chunk = self._fold, self._chunk
        ones = (1,) * len(chunk.nav_shape), (1,) * len(chunk.sig_shape)
        shape = chunk.nav_shape + ones[1] if fold.by_frame else ones[0] + chunk.sig_shape
        results = self._results if fold.by_frame else self._results.T
        if fold.name.startswith("moments"):
            sizes = chunk.sig_shape if fold.by_frame else chunk.nav_shape
            _about_the_mean(results, math.prod(sizes))
        tail = (len(fold.initial),) if len(fold.initial) > 1 or fold.weights is not None else ()
        return results.astype(fold.dtype, copy=False).reshape(shape + tail)


def _about_the_mean(results: Array, count: int) -> None:
    """Turn a value and the sums of differences from it into number, mean and spread."""
    shift, total, squares = results.T
    with np.errstate(all="ignore"):  # infinite pixels have no spread
        total /= count
        squares -= count * total * total
        total += shift
    shift[...] = count
