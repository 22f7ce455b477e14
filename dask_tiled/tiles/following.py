"""Masks that follow the beam over the detector: a shift for each frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from dask.base import tokenize

from dask_tiled.engine.jobs import TileInfo
from dask_tiled.errors import TilingError
from dask_tiled.model.indexing import Array
from dask_tiled.tiles.descans import Descan


@dataclass(frozen=True, eq=False)
class FollowingMasks:
    """Masks, and their shift in each frame in whole pixels.

    Attributes
    ----------
    weights : ndarray, (n, y, x)
        float32 or float64.
    shifts : int64 ndarray, (frames, 2)
        Shift (y, x) of the masks, by the number of the frame.
    """

    weights: Array
    shifts: Array
    spans: Array
    """Columns from the first to behind the last weight that is not 0, (n, y, 2)."""
    token: str

    @classmethod
    def of(cls, weights: Array, shifts: Array) -> Self:
        """Return masks of any dtype and their shifts."""
        wide = np.result_type(weights.dtype, np.float32)
        factors = np.ascontiguousarray(weights, np.float32 if wide == np.float32 else np.float64)
        inside = factors != 0
        width, there = inside.shape[-1], inside.any(axis=-1)
        start = np.where(there, inside.argmax(axis=-1), 0)
        stop = np.where(there, width - inside[..., ::-1].argmax(axis=-1), 0)
        spans = np.stack([start, stop], -1).astype(np.int64)
        return cls(factors, shifts, spans, tokenize(factors, shifts))

    def sums(self, tile: Array, info: TileInfo) -> Array:
        """Return the weighted sums of the frames of a tile, (frames, n), float64."""
        from dask_tiled.kernels.shifted import shifted_kernel

        # numba has neither half precision nor sums of booleans.
        known: dict[str, np.dtype] = {"float16": np.dtype(np.float32), "bool": np.dtype(np.uint8)}
        dtype: np.dtype = known.get(tile.dtype.name) or tile.dtype.newbyteorder("=")
        pixels, weights = np.ascontiguousarray(tile.astype(dtype, copy=False)), self.weights
        sums = np.empty((len(tile), len(self.weights)))
        where = self.spans, self.shifts[info.frames], tile.shape[-1], weights.dtype.type(0)
        shifted_kernel(dtype, weights.dtype)(pixels.reshape(-1), weights.reshape(-1), *where, sums)
        return sums

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "dask_tiled.FollowingMasks", self.token


def shifts_of(shift: Any, nav_shape: tuple[int, ...]) -> Array:
    """Return the shift (y, x) of each frame in pixels, nav + (2,), if it is valid."""
    if isinstance(shift, Descan):
        return shift.shifts(nav_shape)
    try:
        values = np.asarray(shift, np.float64)
        found = np.broadcast_to(values, (*nav_shape, 2))
    except (TypeError, ValueError):
        found = None
    if found is None or values.shape[-1:] != (2,) or not np.isfinite(found).all():
        expected = f"a Descan, or finite pixels of shape {(*nav_shape, 2)}"
        told = getattr(shift, "shape", None) or repr(shift)[:60]
        raise TilingError("invalid shift", expected=expected, found=told)
    return found
