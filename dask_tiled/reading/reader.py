"""Read the chunks of a source: whole, tile by tile, or window by window."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import Any, Self

import numpy as np

from dask_tiled.files.file import File
from dask_tiled.files.paths import is_url
from dask_tiled.model.blocks import BlockRange
from dask_tiled.model.decoders import Conversion
from dask_tiled.model.events import EventRun, EventTarget
from dask_tiled.model.indexing import Array, Box, Bytes, Cut, Index
from dask_tiled.model.layout import Layout
from dask_tiled.reading.backend import Backend
from dask_tiled.reading.backends import backend_for
from dask_tiled.reading.cluster import name_worker
from dask_tiled.reading.correction_plans import CorrectionPlan
from dask_tiled.reading.counting import counters, fetched
from dask_tiled.reading.decoding import read_into, view_of
from dask_tiled.reading.events import exact
from dask_tiled.reading.limits import CONVERTED_BYTES, LARGE_BYTES, MOST_READ_FRAMES
from dask_tiled.reading.planning import Ranges, cut_to, frame_ranges, region_of
from dask_tiled.reading.ranges import ReadRanges, Window
from dask_tiled.reading.remote import Remote

Make = Callable[[tuple[int, ...]], Array]
"""Allocates the output if it is needed: returns an array of a shape, of the source's dtype."""


class Source:
    """The pixels of a layout, after conversion.

    It is a plain class, as dask does not traverse these.
    """

    __slots__ = ("_token", "conversion", "io", "layout")

    def __init__(self, layout: Layout, conversion: Conversion, io: str) -> None:
        self.layout = layout
        self.conversion = conversion
        self.io = io
        self._token = ""

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the pixels."""
        return self.conversion.dtype

    @property
    def token(self) -> str:
        """Identity, equal in every process."""
        if not self._token:
            values = self.layout.__dask_tokenize__(), self.conversion.__dask_tokenize__(), self.io
            # repr is the same in every process, and exact for numbers.
            self._token = hashlib.blake2b(repr(values).encode(), digest_size=16).hexdigest()
        return self._token

    @property
    def is_large(self) -> bool:
        """Whether the source is too large to be part of every task."""
        return self.nbytes > LARGE_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that describe the source."""
        corrections = self.conversion.corrections
        arrays: list[Any] = [self.layout.pieces, self.layout.selection.numbers]
        if corrections is not None:
            arrays += [corrections.dark, corrections.gain, corrections.excluded_pixels]
        return sum(array.nbytes for array in arrays if array is not None)

    def cut(self, cuts: Sequence[Cut]) -> Source:
        """Return a part of the source."""
        return Source(self.layout.cut(cuts), self.conversion, self.io)

    def __dask_tokenize__(self) -> tuple[str, str]:
        # dask does not traverse the result: plain values only.
        return "dask_tiled.Source", self.token


class Workspace:
    """Backends and reusable memory, shared by the readers of a task.

    Exiting closes the backends, and adds the worker to an error; a workspace may be entered again.
    """

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}
        self._memory: dict[Hashable, Array] = {}

    def backend(self, source: Source) -> Backend:
        """Return the backend for a source."""
        kind = "url" if is_url(source.layout.files[0].path) else source.io
        if kind not in self._backends:
            self._backends[kind] = Remote() if kind == "url" else backend_for(kind)
        return self._backends[kind]

    def scratch(self, shape: tuple[int, ...], dtype: np.dtype, use: str = "native") -> Array:
        """Return uninitialised memory, valid until the next call for the same use."""
        size, key = math.prod(shape), (use, dtype)
        if key not in self._memory or self._memory[key].size < size:
            self._memory[key] = np.zeros(size, dtype)
        return self._memory[key][:size].reshape(shape)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            name_worker(error)
        try:
            with ExitStack() as stack:  # exit all, even if one raises
                for backend in self._backends.values():
                    stack.callback(backend.__exit__, kind, error, trace)
        except Exception as changed:  # the file has changed while it was read
            name_worker(changed)
            raise


class Reader:
    """Reads a chunk of a source; ``parts`` are boxes of its signal axes, one for each tile."""

    def __init__(
        self, source: Source, box: Box, workspace: Workspace, parts: Sequence[Box] | None = None
    ) -> None:
        self.source = source
        self.region = region = region_of(source.layout, box)
        self.shape = *region.nav_counts, *(b - a for a, b in box[len(region.nav_counts) :])
        self._workspace = workspace
        self._backend = workspace.backend(source)
        cuts = [region.sig] if parts is None else [cut_to(region.sig, part) for part in parts]
        self._shapes = [tuple(cut.length for cut in part) for part in cuts]
        layout = source.layout
        self._layout = layout = exact(layout, self._backend) if layout.is_sparse else layout
        frames, conversion = region.frames, source.conversion
        self._direct = conversion.nothing or (layout.is_sparse and conversion.widens)
        self._ranges = [list(frame_ranges(layout, frames, part)) for part in cuts]
        self._backend.expect(piece for ranges in self._ranges for piece in ranges)
        self._spans: dict[int, tuple[Index, Index]] = {}
        pieces = (x for ranges in self._ranges for x in ranges) if layout.has_blocks else ()
        self._ends: dict[Hashable, int] = {
            piece.key: int(piece.frames[-1]) + 1
            for piece in pieces
            if isinstance(piece, BlockRange)
        }
        self._kept: dict[Hashable, Array] = {}
        absent = layout.selection.are_absent(frames)
        self._absent = absent if absent.any() else None
        corrections = conversion.corrections
        self._plans: list[CorrectionPlan] = []
        if corrections is not None:
            lattices = ([cut[:3] for cut in part] for part in cuts)
            self._plans = [
                CorrectionPlan(corrections, lattice, layout.sig_shape) for lattice in lattices
            ]
        self._halos = any(plan.halos for plan in self._plans)

    def whole(self, out: Array | None = None) -> Array:
        """Read all pixels into ``out``, or into a new array of the shape of the chunk."""
        make: Make = partial(np.empty, dtype=self.source.dtype) if out is None else out.reshape
        if 0 in self.region.shape:
            return make(self.shape)
        pixels = self.tile(0, len(self.region.frames), 0, make, view=False)
        return pixels.reshape(self.shape) if out is None else out

    def tile(self, first: int, stop: int, part: int, make: Make, *, view: bool = True) -> Array:
        """Read a part of some frames, an array with all signal axes.

        With ``view``, mapped pixels that are contiguous and native are returned as a read-only
        view, valid until the chunk is done; then the file is checked once more. Otherwise an array
        from ``make`` is filled and returned.
        """
        shape = (stop - first, *self._shapes[part])
        ranges = self._between(first, stop, part)
        pixels = self._view(ranges, shape, self._backend.view) if view else None
        if pixels is not None:
            return pixels
        tile = make(shape)
        depth = len(tile)
        if not self._direct:
            depth = max(1, CONVERTED_BYTES * depth // tile.nbytes)
        for start in range(0, len(tile), depth):
            end = min(start + depth, len(tile))
            if end - start < len(tile):
                ranges = self._between(first + start, first + end, part)
            self._read(first + start, first + end, part, ranges, tile[start:end])
        return tile

    def private(self) -> Array | None:
        """Return all pixels as private pages of a mapped file that rests, writeable, or None.

        The array with the pages is the base of the result.
        """
        return self._view(self.ranges, self.shape, self._backend.private)

    def windows(self, limit: int | None, *, at_once: int | None) -> Iterator[Window]:
        """Fetch the bytes of the chunk in the order of the ranges; blocks are not supported.

        ``limit`` and ``at_once`` are those of ``Backend.windows``.

        Yields
        ------
        Window
            At most ``limit`` bytes; valid until the next window is requested.
        """
        for piece in self.ranges:
            if isinstance(piece, ReadRanges):
                for window in self._backend.windows(piece, limit, at_once=at_once):
                    if counters:
                        fetched(window.ranges.nbytes)
                    yield window

    @property
    def runs_of_events(self) -> list[EventRun] | None:
        """The sparse pieces of the chunk, if they can be added to other outputs than its frames.

        Each frame has to occur once, and pixels are not converted.
        """
        if not self._layout.is_sparse or not self._direct:
            return None
        runs = [piece for piece in self.ranges if isinstance(piece, EventRun)]
        return None if any(run.repeats for run in runs) else runs

    def add(self, run: EventRun, target: EventTarget) -> None:
        """Add the events of a run to an output."""
        if counters:
            fetched(run.nbytes)
        run.add(self._backend, target)

    @property
    def ranges(self) -> list[Ranges]:
        """Ranges of the files for the first part."""
        return self._ranges[0]

    @property
    def absent(self) -> Index:
        """Positions of the missing frames of the chunk."""
        return np.flatnonzero(self._absent) if self._absent is not None else np.empty(0, np.int64)

    def _view(
        self,
        ranges: Sequence[Ranges],
        shape: tuple[int, ...],
        fetch: Callable[[File, int, int], Bytes | None],
    ) -> Array | None:
        """Return pixels as a view of a mapped file, or None."""
        if not self.source.conversion.nothing or self._absent is not None:
            return None
        return view_of(ranges, shape, self.source.conversion.dtype, fetch)

    def _read(
        self, first: int, stop: int, part: int, ranges: Sequence[Ranges], tile: Array
    ) -> None:
        """Read frames ``first`` to ``stop`` into a C-contiguous tile."""
        layout, conversion = self.source.layout, self.source.conversion
        once = len(self._ranges) == 1 and (first, stop) == (0, len(self.region.frames))
        kept = None if once and not self._halos else self._kept
        if self._direct:
            if layout.partial or layout.is_sparse:
                tile[...] = conversion.fill_value if layout.partial else 0
            read_into(tile, ranges, self._backend, kept)
        else:
            native = self._workspace.scratch(tile.shape, conversion.native)
            if layout.is_sparse:
                native[...] = 0
            read_into(native, ranges, self._backend, kept)
            pixels = native
            if self._plans:
                pixels = self._corrected(native, tile, self.region.frames[first:stop], part)
            if pixels is not tile:
                conversion.finish(pixels, tile)
            if layout.partial:
                tile[~_held(ranges, tile.shape)] = conversion.fill_value
        if self._absent is not None:
            tile[self._absent[first:stop]] = conversion.fill_value
        if self._kept and part == len(self._ranges) - 1:
            end = len(self.region.frames)  # blocks that only corrections use
            for key in [key for key in self._kept if self._ends.get(key, end) <= stop]:
                del self._kept[key]

    def _between(self, first: int, stop: int, part: int) -> list[Ranges]:
        ranges = self._ranges[part]
        if (first, stop) == (0, len(self.region.frames)):
            return ranges
        if part not in self._spans:
            self._spans[part] = _spans(ranges)
        firsts, lasts = self._spans[part]
        met = np.flatnonzero((firsts < stop) & (lasts >= first))
        some = (ranges[i].between(first, stop) for i in met.tolist())
        return [piece for piece in some if len(piece.frames)]

    def _corrected(self, native: Array, tile: Array, frames: Index, part: int) -> Array:
        """Correct pixels, in the tile itself unless they are scaled or cast afterwards."""
        conversion, plan = self.source.conversion, self._plans[part]
        scaled = conversion.scaling is not None
        dtype = conversion.corrections.dtype(native.dtype)  # type: ignore[union-attr]
        if scaled:  # pixels that are scaled in float64 are corrected in float64
            dtype = np.result_type(dtype, np.float64)
        last = tile.dtype == dtype and not scaled
        corrected = tile if last else np.empty(tile.shape, dtype)
        plan.apply(native, corrected)
        for halo in plan.halos:
            block = np.zeros([len(frames), *(b - a for a, b in halo.box)], native.dtype)
            ranges = frame_ranges(self._layout, frames, halo.cuts)
            read_into(block, ranges, self._backend, self._kept)
            halo.repair(block, corrected)
        return corrected


def pixels_in(source: Source, box: Box, out: Array | None = None) -> Array:
    """Read the pixels of a box, in parts if it has very many frames."""
    with Workspace() as workspace:
        parts = _parts(source.layout, box)
        if parts is None:
            return Reader(source, box, workspace).whole(out)
        pixels = np.empty([b - a for a, b in box], source.dtype) if out is None else out
        for part in parts:
            place = tuple(
                slice(a - start, b - start) for (a, b), (start, _) in zip(part, box, strict=True)
            )
            Reader(source, part, workspace).whole(pixels[place])
        return pixels


def _parts(layout: Layout, box: Box) -> Iterator[Box] | None:
    """Split a box into parts of fewer frames, consecutive in C order.

    None if the frames are few, or if blocks can only be decoded whole: each is decoded once.
    """
    nav = box[: layout.nav_ndim]
    sizes = [b - a for a, b in nav]
    if math.prod(sizes) <= MOST_READ_FRAMES or layout.has_blocks:
        return None
    axis = next(k for k in range(len(sizes)) if math.prod(sizes[k + 1 :]) <= MOST_READ_FRAMES)
    steps = [1] * axis + [MOST_READ_FRAMES // math.prod(sizes[axis + 1 :])] + sizes[axis + 1 :]
    starts = (range(a, b, step) for (a, b), step in zip(nav, steps, strict=True))
    return (
        tuple((a, min(a + step, b)) for a, step, (_, b) in zip(corner, steps, nav, strict=True))
        + box[len(nav) :]
        for corner in product(*starts)
    )


def _held(ranges: Iterable[Ranges], shape: tuple[int, ...]) -> Array:
    """Return a mask of the pixels of a tile that any of the ranges covers."""
    held = np.zeros(shape, bool)
    for piece in ranges:
        inside = piece.units.place if isinstance(piece, ReadRanges) else piece.place
        place: Any = (piece.frames, *inside)
        held[place] = True
    return held


def _spans(ranges: Sequence[Ranges]) -> tuple[Index, Index]:
    """Return the positions of the first and the last frame of each range."""
    ends = np.array([(piece.frames[0], piece.frames[-1]) for piece in ranges], np.int64)
    firsts, lasts = ends.reshape(-1, 2).T
    return firsts, lasts
