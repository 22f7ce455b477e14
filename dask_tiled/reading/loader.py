"""The two functions that a graph holds: load a raw chunk, decode it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.model.conversion import Conversion
from dask_tiled.model.layout import Layout
from dask_tiled.reading import buffers
from dask_tiled.reading.backends import Backend, backend_for
from dask_tiled.reading.boxes import Box, Region, region_of
from dask_tiled.reading.tile_reader import TileReader

LARGE_BYTES = 4096
"""More than this is no part of every task."""


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
        self.step = chunks[0] if chunks else 0
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
    """What every task of an array needs: layout, conversion, edges of its chunks, backend.

    It is a plain class, so that dask passes it on as one value and does not look inside.
    """

    __slots__ = ("conversion", "edges", "io", "layout")

    def __init__(
        self, layout: Layout, conversion: Conversion, edges: tuple[Edges, ...], io: str
    ) -> None:
        self.layout = layout
        self.conversion = conversion
        self.edges = edges
        self.io = io

    @property
    def is_large(self) -> bool:
        """Whether it is too large to be a part of every task."""
        return value_bytes(self.layout, self.conversion) > LARGE_BYTES

    def box(self, block_id: tuple[int, ...]) -> Box:
        """Give the box of a chunk."""
        return tuple(edges[i] for edges, i in zip(self.edges, block_id, strict=True))

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        # dask does not look inside what this returns: values only.
        edges = tuple(edges.__dask_tokenize__() for edges in self.edges)
        values = self.layout.__dask_tokenize__(), self.conversion.__dask_tokenize__()
        return "dask_tiled.Source", *values, edges, self.io


def value_bytes(layout: Layout, conversion: Conversion) -> int:
    """Tell how many bytes of numbers a task needs to know what it reads."""
    corrections = conversion.corrections
    arrays: list[Any] = [layout.pieces, layout.selection.numbers]
    if corrections is not None:
        arrays += [corrections.dark, corrections.gain, corrections.excluded_pixels]
    return sum(array.nbytes for array in arrays if array is not None)


class RawChunk(NamedTuple):
    """A chunk of which nothing is read yet: the few numbers that say where its bytes lie."""

    layout: Layout
    conversion: Conversion
    box: Box
    io: str

    def region(self) -> Region:
        """Find what the chunk holds."""
        return region_of(self.layout, self.box)

    def backend(self) -> Backend:
        """Make the backend that fetches its bytes."""
        return backend_for(self.io, self.layout.files[0].path)


def load(source: Source, block_id: tuple[int, ...]) -> RawChunk:
    """Give one chunk. Nothing is read yet."""
    return RawChunk(source.layout, source.conversion, source.box(block_id), source.io)


def decode(raw: RawChunk) -> npt.NDArray[Any]:
    """Make the pixels of a chunk: an array of its own, writeable and C-contiguous, or a scalar.

    Where the files hold the pixels just as they are wanted, it is a read-only view of mapped memory
    instead; on a cluster, where results are kept and sent, it never is.

    Raises
    ------
    StaleFileError
        A file has changed since it was opened.
    """
    pixels = read_pixels(
        raw, lambda shape: buffers.empty(shape, raw.conversion.dtype), view=not _on_a_cluster()
    )
    return like_numpy(pixels)


def pixels_of(source: Source, block_id: tuple[int, ...]) -> npt.NDArray[Any]:
    """Load one chunk and decode it."""
    return decode(load(source, block_id))


def like_numpy(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make a scalar of an array without axes, as numpy does with its results."""
    scalar: npt.NDArray[Any] = pixels[()]
    return pixels if pixels.ndim else scalar


def read_pixels(
    raw: RawChunk, make: Callable[[tuple[int, ...]], npt.NDArray[Any]], *, view: bool = True
) -> npt.NDArray[Any]:
    """Read the pixels of a chunk into memory, or look at them where they lie mapped.

    Parameters
    ----------
    raw : RawChunk
    make : callable
        ``make(shape)`` gives the memory, if it is wanted: an array of the type of the pixels.
    view : bool
        Whether the pixels may be a read-only view of mapped memory.

    Raises
    ------
    StaleFileError
        A file has changed since it was opened.
    """
    region = raw.region()
    shape = *region.nav_counts, *(stop - start for start, stop in raw.box[len(region.nav_counts) :])
    if 0 in region.shape:
        return make(shape)
    with raw.backend() as backend:
        reader = TileReader(raw.layout, raw.conversion, region, backend, [region.sig])
        return reader.pixels(0, len(region.frames), 0, make, view=view).reshape(shape)


def _on_a_cluster() -> bool:
    """Tell whether this is a task of a distributed worker."""
    worker = sys.modules.get("distributed.worker")
    if worker is None:
        return False
    try:
        worker.get_worker()
    except ValueError:
        return False
    return True
