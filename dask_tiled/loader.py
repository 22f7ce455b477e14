"""The two functions that a graph holds: load a raw chunk, decode it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled import buffers
from dask_tiled.backends import BACKENDS, Bytes
from dask_tiled.layout import Layout
from dask_tiled.ranges import Box, ReadRanges, output_shape, read_ranges


class Edges:
    """Where the chunks of one axis begin and end, in a few bytes however many there are.

    Parameters
    ----------
    chunks : tuple of int
        Sizes along the axis.
    """

    __slots__ = ("bounds", "size", "step")

    def __init__(self, chunks: tuple[int, ...]) -> None:
        self.size = sum(chunks)
        self.step = chunks[0]
        even = chunks[:-1].count(self.step) == len(chunks) - 1 and chunks[-1] <= self.step
        self.bounds = None if even else np.cumsum((0, *chunks), dtype=np.int64)

    def __getitem__(self, i: int) -> tuple[int, int]:
        if self.bounds is None:
            return i * self.step, min((i + 1) * self.step, self.size)
        return int(self.bounds[i]), int(self.bounds[i + 1])

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        bounds = None if self.bounds is None else self.bounds.tobytes()
        return "dask_tiled.Edges", self.size, self.step, bounds


class Source:
    """What every task of an array needs: the layout, the edges of its chunks, the backend.

    It is a plain class, so that dask passes it on as one value and does not look inside.
    """

    __slots__ = ("edges", "io", "layout")

    def __init__(self, layout: Layout, edges: tuple[Edges, ...], io: str) -> None:
        self.layout = layout
        self.edges = edges
        self.io = io

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        # dask does not look inside what this returns: values only.
        edges = tuple(edges.__dask_tokenize__() for edges in self.edges)
        return "dask_tiled.Source", self.layout.__dask_tokenize__(), edges, self.io


class RawChunk(NamedTuple):
    """The read ranges of a chunk. Where it travels, it travels as the few numbers it comes from."""

    layout: Layout
    box: Box
    io: str
    ranges: tuple[ReadRanges, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _raw_chunk, (self.layout, self.box, self.io)


def _raw_chunk(layout: Layout, box: Box, io: str) -> RawChunk:
    empty = any(start == stop for start, stop in box)
    return RawChunk(layout, box, io, () if empty else tuple(read_ranges(layout, box)))


def load(source: Source, block_id: tuple[int, ...]) -> RawChunk:
    """Find the bytes of one chunk. Nothing is read yet.

    Raises
    ------
    StaleFileError
        A file has changed since it was opened.
    """
    box = tuple(edges[i] for edges, i in zip(source.edges, block_id, strict=True))
    raw = _raw_chunk(source.layout, box, source.io)
    for file in {ranges.file for ranges in raw.ranges}:
        file.check()
    return raw


def decode(raw: RawChunk) -> npt.NDArray[Any]:
    """Make the pixels of a chunk: an array of its own, writeable and C-contiguous.

    Raises
    ------
    StaleFileError
        A file has changed since it was opened.
    """
    out = buffers.empty(output_shape(raw.layout, raw.box), raw.layout.dtype)
    for ranges in raw.ranges:
        with BACKENDS[raw.io](ranges) as (data, base):
            run_kernel(ranges, data, base, out)
    return out.reshape([stop - start for start, stop in raw.box])


def run_kernel(ranges: ReadRanges, data: Bytes, base: int, out: npt.NDArray[Any]) -> None:
    """Decode read ranges of ``data``, whose first byte is byte ``base`` of the file."""
    from dask_tiled.kernels import (
        compiled,
    )  # numba takes long to import: only where pixels are made

    decoder, pick = ranges.decoder, ranges.pick
    target = out if pick is None else np.empty(pick.shape, dtype=out.dtype)
    compiled(decoder.kernel)(
        data,
        ranges.starts - base,
        ranges.step,
        target.reshape(-1).view(np.uint8),
        ranges.dests,
        ranges.out_step,
        ranges.count,
        decoder.nbytes,
        decoder.lag,
    )
    if pick is not None:
        place: Any = (pick.frames, *pick.place)
        out[place] = target[..., pick.pixels]
