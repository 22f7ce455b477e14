"""Weighted sums of the pixels of each frame as a job: a matrix product, tile by tile."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.evaluation import Programmed, VectorSink
from dask_tiled.engine.folding import FrameSink
from dask_tiled.engine.jobs import Chunk, TileInfo
from dask_tiled.engine.vectors import NoPrimitive
from dask_tiled.tiling.negotiation import TilingRequest

Array = npt.NDArray[Any]

DEPTH = 16
"""Frames of an expression that are made before they are weighted."""


@dataclass(frozen=True, eq=False)
class Products:
    """The job of weights: whole numbers, or real or complex ones of at least 4 bytes."""

    values: Programmed
    """What is weighted."""
    weights: Array
    """Any axes, which the results have at the end, then the signal axes of the chunk."""
    dtype: np.dtype
    """Of the results, as NumPy has it."""

    request = TilingRequest("frame")

    def begin(self, chunk: Chunk) -> ProductSink | ValueSink:
        """Begin to work on a chunk; NoPrimitive if that cannot be done in vectors."""
        program = self.values.program
        if len(program.sources) > 1:
            raise NoPrimitive
        return ProductSink(self, chunk) if program.is_read else ValueSink(self, chunk)


class ProductSink(FrameSink):
    """The sums of the frames of one chunk.

    Some thousand pixels are added up in the type of the weights, these sums in 8 bytes. Whole
    numbers overflow as they do in NumPy: the last bytes of a sum depend on no others.
    """

    def __init__(self, job: Products, chunk: Chunk) -> None:
        sig_shape = chunk.sig_shape
        ones = (1,) * len(sig_shape)
        self._shape = chunk.nav_shape + ones + job.weights.shape[: -len(sig_shape)]
        self._dtype = dtype = job.dtype
        weights = job.weights.reshape(-1, math.prod(sig_shape))
        if dtype.kind == "c":
            weights = np.stack([weights.real, weights.imag], axis=1).reshape(-1, weights.shape[1])
        exact = dtype.kind in "iu"
        size = max(4, dtype.itemsize // (2 if dtype.kind == "c" else 1))
        weights = np.ascontiguousarray(weights, f"{'i' if exact else 'f'}{size}")
        frames = np.arange(math.prod(chunk.nav_shape))
        results = np.zeros((len(frames), len(weights)), np.int64 if exact else np.float64)
        super().__init__("dot_frames", chunk, frames, results, weights)

    def result(self) -> Array:
        """Give the sums: with the axes of the chunk, signal axes of length 1, then the others."""
        found = self._results.view(np.complex128) if self._dtype.kind == "c" else self._results
        return found.astype(self._dtype, copy=False).reshape(self._shape)


class ValueSink:
    """The sums of the frames that a program makes of those of one chunk."""

    def __init__(self, job: Products, chunk: Chunk) -> None:
        self._values = VectorSink(replace(job.values, depth=DEPTH), chunk)
        self._sums = ProductSink(job, chunk._replace(dtype=job.values.dtype))
        self.tile_shape = self._values.tile_shape

    def take(self, tile: Array, first: int, info: TileInfo) -> None:
        """Make the frames of a tile, and weight them while they are in the cache."""
        while len(tile):
            part = tile[: DEPTH - first % DEPTH]  # the output begins anew after so many
            self._values.take(part, first, info)
            self._sums.take(self._values.frames(first, len(part)), first, info)
            tile, first = tile[len(part) :], first + len(part)

    def result(self) -> Array:
        """Give the sums."""
        return self._sums.result()
