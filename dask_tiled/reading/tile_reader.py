"""Decode parts of a chunk: fetch read ranges, run their kernels, convert the pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.model.coded import CodedRange
from dask_tiled.model.conversion import Conversion
from dask_tiled.model.layout import Cut, Layout
from dask_tiled.model.selection import Index
from dask_tiled.reading.backends import Backend, Bytes, Mapped
from dask_tiled.reading.boxes import Region
from dask_tiled.reading.correction_plans import Plan
from dask_tiled.reading.neighbours import Neighbours, together
from dask_tiled.reading.planning import Ranges, frame_ranges
from dask_tiled.reading.ranges import ReadRanges

Array = npt.NDArray[Any]

CONVERTED_BYTES = 1 << 19
"""So much is decoded at a time before it is converted: it stays in the cache."""


def read_into(
    out: Array,
    ranges: Iterable[Ranges],
    backend: Backend,
    kept: dict[Hashable, Array] | None = None,
) -> None:
    """Fetch and decode ranges into an array.

    Parameters
    ----------
    out : array
        Frames, then signal axes; C-contiguous.
    ranges : iterable of ReadRanges or CodedRange
    backend : Backend
    kept : dict, optional
        Blocks that are decoded already, by their keys; further ones are added.
    """
    for piece in together(ranges):
        if isinstance(piece, CodedRange):
            key = piece.key
            pixels = kept[key] if kept and key in kept else piece.decode(backend)
            if kept is not None:
                kept[key] = pixels
            piece.copy(pixels, out)
            continue
        if isinstance(piece, Neighbours):
            data = backend(piece.file, piece.start, piece.stop)
            for one in piece.ranges:
                run_kernel(one, data, piece.start, out)
            continue
        for part, data, base in backend.windows(piece):
            run_kernel(part, data, base, out)


def run_kernel(ranges: ReadRanges, data: Bytes, base: int, out: Array) -> None:
    """Decode read ranges of ``data``, whose first byte is byte ``base`` of the file."""
    from dask_tiled.kernels.decoding import (
        compiled,
    )  # numba takes long to import: only where pixels are made

    decoder, pick, runs = ranges.units.decoder, ranges.units.pick, ranges.runs()
    target = out
    if pick is not None:
        target = np.empty((len(ranges.frames), *pick.shape), decoder.dtype)
    compiled(decoder.kernel)(
        data,
        runs.starts - base,
        runs.step,
        target.reshape(-1).view(np.uint8),
        runs.dests,
        runs.out_step,
        runs.length,
        decoder.nbytes,
        decoder.lag,
    )
    if pick is not None:
        place: Any = (ranges.frames, *ranges.units.place)
        out[place] = target[..., pick.pixels]


def view_of(
    ranges: Sequence[Ranges], shape: tuple[int, ...], dtype: np.dtype, backend: Backend
) -> Array | None:
    """Look at pixels where they lie mapped, read-only; None unless they lie as numpy has them."""
    if not isinstance(backend, Mapped) or len(ranges) != 1:
        return None
    (piece,) = ranges
    if (
        isinstance(piece, CodedRange)
        or not piece.lies_as(dtype)
        or piece.nbytes != math.prod(shape) * dtype.itemsize
    ):
        return None
    first = piece.offsets[0]
    if first % dtype.alignment:
        return None
    mapped = backend.around(piece)
    if mapped is None:
        return None
    data, base = mapped
    start = int(first) - base
    return data[start : start + piece.nbytes].view(dtype).reshape(shape)


class TileReader:
    """Reads tiles of a region: some of its frames, and a part of each.

    Parameters
    ----------
    layout : Layout
    conversion : Conversion
    region : Region
    backend : Backend
    parts : sequence of tuple of Cut
        The parts of the signal axes, as cuts of the files' own.
    """

    def __init__(
        self,
        layout: Layout,
        conversion: Conversion,
        region: Region,
        backend: Backend,
        parts: Sequence[tuple[Cut, ...]],
    ) -> None:
        self._layout = layout
        self._conversion = conversion
        self._frames = region.frames
        self._parts = parts
        self._backend = backend
        self._ranges = [list(frame_ranges(layout, region.frames, part)) for part in parts]
        self._spans = [_spans(ranges) for ranges in self._ranges]
        self._ends: dict[Hashable, int] = {
            piece.key: int(piece.frames[-1]) + 1
            for ranges in self._ranges
            for piece in ranges
            if isinstance(piece, CodedRange)
        }
        self._kept: dict[Hashable, Array] = {}
        absent = layout.selection.are_absent(region.frames)
        self._absent = absent if absent.any() else None
        corrections = conversion.corrections
        lattices = [[(c.start, c.step, c.length) for c in part] for part in parts]
        self._plans = (
            None
            if corrections is None
            else [Plan(corrections, lattice, layout.sig_shape) for lattice in lattices]
        )
        self._scratch = np.empty(0, conversion.native)

    def pixels(
        self,
        first: int,
        stop: int,
        part: int,
        make: Callable[[tuple[int, ...]], Array],
        *,
        view: bool = True,
    ) -> Array:
        """Read a tile into memory, or look at it where it lies mapped.

        Parameters
        ----------
        first, stop, part
            As in :meth:`read`.
        make : callable
            ``make(shape)`` gives the memory, if it is wanted: an array of the type of the pixels.
        view : bool
            Whether the pixels may be a read-only view of mapped memory.
        """
        shape = (stop - first, *(cut.length for cut in self._parts[part]))
        found = self.view(first, stop, part, shape) if view else None
        if found is not None:
            return found
        tile = make(shape)
        depth = len(tile)
        if not self._conversion.nothing:
            depth = max(1, CONVERTED_BYTES * depth // tile.nbytes)
        for start in range(0, len(tile), depth):
            end = min(start + depth, len(tile))
            self.read(first + start, first + end, part, tile[start:end])
        self._scratch = np.empty(0, self._conversion.native)  # there may be many readers
        return tile

    def view(self, first: int, stop: int, part: int, shape: tuple[int, ...]) -> Array | None:
        """Give a tile without reading it, where it lies in a mapped file as it is."""
        if not self._conversion.nothing or self._absent is not None:
            return None
        ranges = self._between(first, stop, part)
        return view_of(ranges, shape, self._conversion.dtype, self._backend)

    def read(self, first: int, stop: int, part: int, tile: Array) -> None:
        """Read frames ``first`` to ``stop`` of the region, and the part of that number of each.

        Parameters
        ----------
        tile : array
            What they are written to: frames, then signal axes; C-contiguous.
        """
        ranges = self._between(first, stop, part)
        once = len(self._ranges) == 1 and (first, stop) == (0, len(self._frames))
        kept = None if once else self._kept
        if self._conversion.nothing:
            if self._layout.partial:
                tile[...] = self._conversion.fill_value
            read_into(tile, ranges, self._backend, kept)
        else:
            native = self._native(tile.shape)
            read_into(native, ranges, self._backend, kept)
            self._convert(native, tile, self._frames[first:stop], part)
            if self._layout.partial:
                tile[~_held(ranges, tile.shape)] = self._conversion.fill_value
        if self._absent is not None:
            tile[self._absent[first:stop]] = self._conversion.fill_value
        if self._kept and part == len(self._ranges) - 1:
            for key in [key for key in self._kept if self._ends[key] <= stop]:
                del self._kept[key]

    def _between(self, first: int, stop: int, part: int) -> list[Ranges]:
        ranges = self._ranges[part]
        if (first, stop) == (0, len(self._frames)):
            return ranges
        firsts, lasts = self._spans[part]
        met = np.flatnonzero((firsts < stop) & (lasts >= first))
        some = (ranges[i].between(first, stop) for i in met.tolist())
        return [piece for piece in some if len(piece.frames)]

    def _native(self, shape: tuple[int, ...]) -> Array:
        size = math.prod(shape)
        if self._scratch.size < size:
            self._scratch = np.zeros(size, self._conversion.native)
        return self._scratch[:size].reshape(shape)

    def _convert(self, native: Array, tile: Array, frames: Index, part: int) -> None:
        pixels = native
        if self._plans is not None:
            pixels = self._corrected(native, tile, frames, self._plans[part])
        if pixels is not tile:
            self._conversion.finish(pixels, tile)

    def _corrected(self, native: Array, tile: Array, frames: Index, plan: Plan) -> Array:
        """Correct pixels, in the tile itself where nothing else is to be done."""
        scaled = self._conversion.scaling is not None
        dtype = self._conversion.corrections.dtype(native.dtype)  # type: ignore[union-attr]
        if scaled:  # in double precision, and so is what is scaled
            dtype = np.result_type(dtype, np.float64)
        last = tile.dtype == dtype and not scaled
        corrected = tile if last else np.empty(tile.shape, dtype)
        plan.apply(native, corrected)
        for halo in plan.halos:
            block = np.zeros([len(frames), *(b - a for a, b in halo.box)], native.dtype)
            cuts = [Cut(a, 1, b - a) for a, b in halo.box]
            read_into(block, frame_ranges(self._layout, frames, cuts), self._backend)
            halo.repair(block, corrected)
        return corrected


def _held(ranges: Iterable[Ranges], shape: tuple[int, ...]) -> Array:
    """Tell which pixels of a tile any of the ranges gives."""
    held = np.zeros(shape, bool)
    for piece in ranges:
        inside = piece.place if isinstance(piece, CodedRange) else piece.units.place
        place: Any = (piece.frames, *inside)
        held[place] = True
    return held


def _spans(ranges: Sequence[Ranges]) -> tuple[Index, Index]:
    """Give the positions of the first and the last frame of each piece."""
    ends = np.array([(piece.frames[0], piece.frames[-1]) for piece in ranges], np.int64)
    firsts, lasts = ends.reshape(-1, 2).T
    return firsts, lasts
