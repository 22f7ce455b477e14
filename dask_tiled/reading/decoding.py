"""Fetch read ranges, and run their kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np

from dask_tiled.errors import DatasetError, Guard
from dask_tiled.files.file import File
from dask_tiled.model.blocks import BlockRange, BlockRun
from dask_tiled.model.events import EventRun
from dask_tiled.model.indexing import Array, Bytes
from dask_tiled.model.requests import DONE, FD
from dask_tiled.reading.backend import Backend
from dask_tiled.reading.counting import counters, fetched
from dask_tiled.reading.limits import BUFFERED_BYTES, MOST_SPAN_BYTES
from dask_tiled.reading.planning import Ranges
from dask_tiled.reading.ranges import ReadRanges, Window


def read_into(
    out: Array,
    ranges: Iterable[Ranges],
    backend: Backend,
    kept: dict[Hashable, Array] | None = None,
) -> None:
    """Fetch and decode ranges into an array."""
    for piece in together(ranges):
        if isinstance(piece, BlockRange):
            piece.copy(_decoded(piece, backend, kept), out)
        elif isinstance(piece, BlockRun | EventRun):
            if counters:
                fetched(piece.nbytes)
            piece.decode(backend, out)
        elif len(piece) == 1:
            (single,) = piece
            filled = _lies_as(single, out.size, out.dtype) and backend.fill(
                single.file, single.span[0], out.reshape(-1).view(np.uint8)
            )
            if filled and counters:
                fetched(single.nbytes)
            elif not filled:
                limit = None if single.units.pick is None else BUFFERED_BYTES
                for window in backend.windows(single.in_file_order(), limit):
                    run_kernel(window, out)
        else:
            for window in _windows_in_one(piece, backend):
                run_kernel(window, out)


def _windows_in_one(ranges: list[ReadRanges], backend: Backend) -> Iterator[Window]:
    """Fetch ranges together, and yield them as windows."""
    starts, stops = zip(*(one.span for one in ranges), strict=True)
    file, start, stop = ranges[0].file, min(starts), max(stops)
    data = backend.view(file, start, stop)
    if data is None:
        data = backend(file, start, stop)
    for one in ranges:
        yield Window(one, data, start)


def _decoded(piece: BlockRange, backend: Backend, kept: dict[Hashable, Array] | None) -> Array:
    """Decode a block, or return it from the cache of the chunk."""
    key = piece.key
    if kept and key in kept:
        return kept[key]
    if counters:
        fetched(piece.block.nbytes)
    pixels = piece.decode(backend)
    if kept is not None:
        kept[key] = pixels
    return pixels


def run_kernel(window: Window, out: Array) -> None:
    """Decode the read ranges of a window into an array; read them first if it requests that."""
    # numba is slow to import: do it only to decode pixels
    from dask_tiled.kernels.decoding import compiled

    ranges = window.ranges
    if counters:
        fetched(ranges.nbytes)
    decoder, pick = ranges.units.decoder, ranges.units.pick
    target = out
    if pick is not None:
        target = np.empty((len(ranges.frames), *pick.shape), decoder.dtype)
    pixels, first = target.reshape(-1).view(np.uint8), int(window.request[DONE])
    with Guard(ranges.file.path, "the kernel of the decoder fails", kind=DatasetError):
        if window.request[FD] < 0:
            runs = ranges.runs()
            read: Any = window.data, runs.starts - window.origin, runs.step, pixels
            decode = compiled(decoder.kernel)
        else:
            from dask_tiled.kernels.frame_reads import frame_decoder

            runs = ranges.units.runs
            frames = window.request, window.data, ranges.offsets, ranges.dests
            read = *frames, runs.starts, runs.step, pixels
            decode = frame_decoder(decoder.kernel)
        decode(*read, runs.dests, runs.out_step, runs.length, decoder.nbytes, decoder.lag)
    if pick is not None:  # a read that failed is repeated from there on
        done = slice(first, int(window.request[DONE]) or None)
        place: Any = (ranges.frames[done], *ranges.units.place)
        out[place] = target[done, ..., pick.pixels]


def view_of(
    ranges: Sequence[Ranges],
    shape: tuple[int, ...],
    dtype: np.dtype,
    fetch: Callable[[File, int, int], Bytes | None],
) -> Array | None:
    """Return a view of mapped pixels; None unless they are contiguous and native.

    ``fetch`` maps bytes of a file.
    """
    if len(ranges) != 1 or not _lies_as(ranges[0], math.prod(shape), dtype):
        return None
    first, stop = ranges[0].span
    data = None if first % dtype.alignment else fetch(ranges[0].file, first, stop)
    if data is None:
        return None
    if counters:
        fetched(len(data))
    return data.view(dtype).reshape(shape)


def _lies_as(piece: Ranges, pixels: int, dtype: np.dtype) -> TypeGuard[ReadRanges]:
    """Return whether a piece is all of the pixels, contiguous and of a native dtype."""
    if not isinstance(piece, ReadRanges) or not piece.lies_as(dtype):
        return False
    return piece.nbytes == pixels * dtype.itemsize


def together(
    ranges: Iterable[Ranges],
) -> Iterator[BlockRange | BlockRun | EventRun | list[ReadRanges]]:
    """Group adjacent ranges of a file in order: where pieces overlap, later ones win."""
    group: list[ReadRanges] = []
    low, high = 0, 0
    for piece in ranges:
        start, stop = piece.span if isinstance(piece, ReadRanges) else (0, 0)
        first, last = min(low, start), max(high, stop)
        # Groups have no gaps: backends decide whether to read across gaps.
        dense = isinstance(piece, ReadRanges) and stop - start <= piece.nbytes
        near = dense and start <= high and stop >= low and last - first <= MOST_SPAN_BYTES
        if group and not (near and isinstance(piece, ReadRanges) and piece.file == group[0].file):
            yield group
            group = []
        if not isinstance(piece, ReadRanges):
            yield piece
        elif dense:
            low, high = (first, last) if group else (start, stop)
            group.append(piece)
        else:
            yield [piece]
    if group:
        yield group
