"""Masks that follow the beam over the detector: a shift for each frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from dask.base import tokenize

from dask_tiled.engine.evaluation import shift_of, type_of_weights
from dask_tiled.engine.folding import FrameSink, Kernel, can_fold
from dask_tiled.engine.jobs import Chunk, TileInfo
from dask_tiled.errors import TilingError
from dask_tiled.model.indexing import Array
from dask_tiled.tiles.descans import Descan
from dask_tiled.tiling.negotiation import TilingRequest

SPAN = 2
"""Columns of a table of weights that hold the span of those that are not 0."""
MOST_SHORT = 1 << 15
"""Frames of fewer columns have spans of 2 bytes."""


@dataclass(frozen=True, eq=False)
class FollowingMasks:
    """A job: the sums of each frame under masks that are moved by a shift in whole pixels."""

    table: Array
    """Weights, (n * y, x), as the kernel takes them."""
    shifts: Array
    """Shift (y, x) of the masks in each frame, nav + (2,), int64."""
    areas: Array
    """Sums of the weights in all rows and columns before, (n, y + 1, x + 1)."""
    pixel: np.dtype
    """Dtype of the pixels in the kernel."""
    dtype: np.dtype
    token: str
    request = TilingRequest("frame")

    @classmethod
    def of(cls, weights: Array, shifts: Array, pixel: np.dtype) -> Self:
        """Return real masks of any dtype, (n, y, x), for pixels of a dtype, and their shifts."""
        dtype = np.result_type(pixel, weights.dtype, np.float32)
        known = pixel if pixel.isnative else pixel.newbyteorder("=")
        known = known if can_fold(known) else np.dtype(np.float32)  # half precision
        n, height, width = weights.shape
        kind = type_of_weights(weights, known, dtype) if width < MOST_SHORT else dtype
        table = np.zeros((n, height, SPAN + width), kind)
        table[..., SPAN:] = weights
        inside = table[..., SPAN:] != 0
        there = inside.any(axis=-1)
        table[..., 0] = np.where(there, inside.argmax(axis=-1), 0)
        table[..., 1] = np.where(there, width - inside[..., ::-1].argmax(axis=-1), 0)
        areas = np.zeros((n, height + 1, width + 1), np.int64)
        if shift_of(table, known):
            areas[:, 1:, 1:] = table[..., SPAN:].cumsum(1, np.int64).cumsum(2)
        table = table.reshape(n * height, -1)
        return cls(table, shifts, areas, known, dtype, tokenize(table, shifts, dtype))

    def begin(self, chunk: Chunk) -> FollowingSink:
        """Return the sink of a chunk."""
        return FollowingSink(self, chunk)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "dask_tiled.FollowingMasks", self.token


class FollowingSink(FrameSink):
    """Sink of the sums under masks that follow the beam."""

    needs_order = True

    def __init__(self, job: FollowingMasks, chunk: Chunk) -> None:
        nav = tuple(slice(*ends) for ends in chunk.box[: chunk.nav_ndim])
        self._job, self._shown = job, chunk
        shifts, areas = job.shifts[nav].reshape(-1, 2), job.areas
        _, height, width = areas.shape
        sums = np.float64 if job.table.dtype.kind == "f" else np.int64
        results = np.empty((len(shifts), len(areas) + SPAN), sums)
        results[:, -2:] = shifts
        # The weights that stay in the frame, whose pixels the kernel reads as less by a number.
        low, high = (
            np.maximum(-shifts, 0),
            np.minimum((height - 1, width - 1) - shifts, (height - 1, width - 1)),
        )
        (top, left), (bottom, right) = low.T, high.T
        kept = (
            areas[:, bottom, right]
            - areas[:, top, right]
            - areas[:, bottom, left]
            + areas[:, top, left]
        )
        results[:, :-2] = shift_of(job.table, job.pixel) * kept.T
        super().__init__(
            Kernel("shifted_frames", np.arange(len(shifts)), results, job.table),
            chunk._replace(dtype=job.pixel),
        )
        self.needs_whole_frames = job.pixel != chunk.dtype  # and tiles, which are converted

    def can_cut(self, pixels: int) -> bool:
        """Return whether results are the same if frames are cut after each ``pixels`` pixels."""
        return not pixels % self._shown.sig_shape[-1]

    def take(self, tile: Array, first: int, info: TileInfo) -> None:
        """Sum the frames of a tile."""
        super().take(np.ascontiguousarray(tile, self._job.pixel), first, info)

    def result(self) -> Array:
        """Return the sums: axes of the chunk, signal axes of length 1, and masks."""
        shape = (*self._shown.nav_shape, 1, 1, len(self._job.areas))
        return self._kernel.results[:, :-2].astype(self._job.dtype).reshape(shape)


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
