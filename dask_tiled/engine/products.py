"""Weighted sums of the pixels of each frame: a matrix product, tile by tile."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.engine.computations import Computation, Weighting
from dask_tiled.engine.evaluation import VectorSink
from dask_tiled.engine.folding import FrameSink, can_fold
from dask_tiled.engine.jobs import Chunk, TileInfo
from dask_tiled.model.indexing import Index

Array = npt.NDArray[Any]

DEPTH = 16
"""Frames of an expression that are made before they are weighted."""
MOST_PIXELS, LEAST_FRAMES = 1 << 18, 8
"""Weights of frames of so many pixels stay in the cache, and are made for no fewer frames."""


def weighted(job: Computation, chunk: Chunk) -> Computation | None:
    """Return the matrix product that a reduction is: sums of all pixels of frames times weights."""
    reduction, n, dtype = job.reduction, job.nav_ndim, job.program.dtype
    if reduction is None or not reduction.row.is_ufunc or reduction.row.ufunc is not np.add:
        return None
    step = job.program.only_step
    factors = step and step.factors
    if factors is None or reduction.axes != tuple(range(n, len(job.shape))):
        return None
    if dtype.kind in "iu" and job.dtype.kind in "fc":
        return None  # which do not overflow
    if math.prod(chunk.sig_shape) > MOST_PIXELS or math.prod(chunk.nav_shape) < LEAST_FRAMES:
        return None
    read, block = job.program.read, job.operands[factors[1].number]
    if math.prod(block.shape[:n]) > 1 or not _hold_products(dtype, read.dtype, block):
        return None
    weights = np.broadcast_to(block.reshape(block.shape[n:]), job.shape[n:])
    return replace(job, program=read, end=Weighting(weights.reshape(chunk.sig_shape), dtype))


def contracted(job: Computation, weights: Array, chunk: Chunk) -> Computation | None:
    """Return the matrix product of all frames and weights, which may have further axes in front."""
    n = job.nav_ndim
    further = weights.shape[: -len(job.shape)]
    dtype = np.result_type(job.dtype, weights.dtype)
    known = can_fold(job.dtype) and can_fold(np.empty(0, dtype).real.dtype)
    one_for_all = weights.shape == (*further, *(1,) * n, *job.shape[n:])
    if not known or not one_for_all or dtype.kind == "b" or len(job.program.sources) > 1:
        return None
    return replace(job, end=Weighting(weights.reshape(further + chunk.sig_shape), dtype))


def _hold_products(dtype: np.dtype, pixel: np.dtype, weights: Array) -> bool:
    """Tell whether numbers of a type are the products, and not only their last bytes."""
    if not can_fold(pixel) or not can_fold(dtype):
        return False
    if dtype.kind == "f" or dtype.itemsize == 8:
        return dtype.itemsize >= 4
    return weights.dtype.kind == "b" and pixel.kind in "iu"


class ProductSink(FrameSink):
    """The sums of the frames of one chunk.

    Some thousand pixels are added up in the type of the weights, these sums in 8 bytes. Whole
    numbers overflow as they do in NumPy: the last bytes of a sum depend on no others.
    """

    def __init__(self, job: Weighting, chunk: Chunk) -> None:
        sig_shape = chunk.sig_shape
        ones = (1,) * len(sig_shape)
        self._shape = chunk.nav_shape + ones + job.weights.shape[: -len(sig_shape)]
        self._kind = job.dtype.kind
        weights = job.weights.reshape(-1, math.prod(sig_shape))
        if self._kind == "c":
            weights = np.stack([weights.real, weights.imag], axis=1).reshape(-1, weights.shape[1])
        self.chunk = chunk
        self.weights = np.require(weights, _short(weights, chunk.dtype, job.dtype), ["C", "W"])
        sums = np.int64 if self._kind in "iu" else np.float64
        self.sums = np.zeros((math.prod(chunk.nav_shape), len(weights)), sums)
        super().__init__(*_as_fold(chunk, self.sums, self.weights))

    @property
    def alike(self) -> Hashable:
        """Key: sinks with equal keys share a pass."""
        return "dot_frames", self.weights.dtype

    @classmethod
    def joined(cls, sinks: Sequence[ProductSink]) -> FrameSink:
        """Give what works for several: with all their weights, and columns of sums for each."""
        weights = np.concatenate([one.weights for one in sinks])
        sums = np.zeros((len(sinks[0].sums), len(weights)), sinks[0].sums.dtype)
        ends = np.cumsum([len(one.weights) for one in sinks])
        for one, columns in zip(sinks, np.split(sums, ends[:-1], axis=1), strict=True):
            one.sums = columns
        return FrameSink(*_as_fold(sinks[0].chunk, sums, weights))

    def result(self) -> Array:
        """Give the sums: with the axes of the chunk, signal axes of length 1, then the others."""
        wanted = {"c": np.complex128, "u": np.uint64}.get(self._kind, self.sums.dtype)
        return self.sums.view(wanted).reshape(self._shape)


def _as_fold(chunk: Chunk, sums: Array, weights: Array) -> tuple[str, Chunk, Index, Array, Array]:
    return "dot_frames", chunk, np.arange(len(sums)), sums, weights


def _short(weights: Array, pixel: np.dtype, dtype: np.dtype) -> np.dtype:
    """Choose the type of weights for products of a type: 4 bytes where these are enough."""
    if dtype.kind not in "iu":
        return np.dtype(f"f{max(4, dtype.itemsize // (2 if dtype.kind == 'c' else 1))}")
    limits = np.iinfo(np.int32)
    few = pixel.kind in "iu" and pixel.itemsize <= 4 and weights.size
    fit = few and limits.min <= weights.min() and weights.max() <= limits.max
    return np.dtype(np.int32 if fit else np.int64)


class ValueSink:
    """The sums of the frames that a program makes of those of one chunk."""

    def __init__(self, job: Computation, end: Weighting, chunk: Chunk) -> None:
        self._values = VectorSink(job, chunk, DEPTH)
        self._sums = ProductSink(end, chunk._replace(dtype=job.program.dtype))
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
