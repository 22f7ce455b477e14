"""How a tile is corrected: which of its pixels are repaired, and from which neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.corrections import Bools, Corrections, Floats, neighbours
from dask_tiled.model.indexing import Array, Box, Index
from dask_tiled.model.pieces import strides_of

Lattice = Sequence[tuple[int, int, int]]


class Halo(NamedTuple):
    """An excluded pixel in a tile with good neighbours that the tile does not show."""

    planes: Sequence[Floats | None]
    box: Box  # where they all lie
    neighbours: Index
    pixel: Index

    def repair(self, block: Array, out: Floats) -> None:
        """Write the pixel of every frame."""
        from dask_tiled.kernels.corrections import repair_kernel

        place = tuple(slice(*edges) for edges in self.box)
        planes = [None if plane is None else plane[place] for plane in self.planes]
        raw = _flat(block)
        corrected = np.empty(raw.shape, dtype=out.dtype)
        _correct(raw, _terms(planes, raw.shape[1], out.dtype), corrected)
        bounds = np.array([0, len(self.neighbours)], dtype=np.int64)
        repair_kernel(out.dtype)(corrected, self.pixel, bounds, self.neighbours, _flat(out))


class Plan:
    """How tiles are corrected that show a part of the frame: start, step, length of each axis."""

    __slots__ = ("_bounds", "_neighbours", "_pixels", "_planes", "_terms", "halos")

    def __init__(
        self, corrections: Corrections, sig: Lattice, sig_shape: tuple[int, ...] | None = None
    ) -> None:
        shape = corrections.sig_shape if sig_shape is None else sig_shape
        dark, gain = corrections.dark, corrections.gain
        if not corrections.sig_shape:  # a frame without axes is read as one pixel of one axis
            dark, gain = (None if p is None else p.reshape(1) for p in (dark, gain))
        excluded = corrections.excluded_pixels
        if excluded is None or not excluded.size:
            excluded, shape = np.zeros((0, len(sig)), dtype=np.int64), (0,) * len(sig)
        if shape is None:
            raise DatasetError(
                "coordinates of excluded pixels do not tell where the frame ends",
                expected="sig_shape",
                found=None,
            )
        self._planes = [None if plane is None else _shown(plane, sig) for plane in (dark, gain)]
        self._terms: dict[np.dtype, tuple[Floats, Floats] | None] = {}
        place, shown = _place(excluded, sig)
        pixels, place = excluded[shown], place[shown]
        near, good = neighbours(pixels, excluded, shape)
        near_place, near_shown = _place(near, sig)
        cut = (good & ~near_shown).any(axis=1)
        self._pixels = place[~cut]
        self._neighbours = near_place[~cut][good[~cut]]
        self._bounds = np.concatenate([[0], np.cumsum(good[~cut].sum(axis=1))])

        low = np.maximum(pixels[cut] - 1, 0)
        high = np.minimum(pixels[cut] + 2, np.array(shape, dtype=np.int64))
        sizes = np.pad(high - low, ((0, 0), (0, 1)), constant_values=1)[:, 1:]
        strides = np.cumprod(sizes[:, ::-1], axis=1)[:, ::-1]
        in_box = ((near[cut] - low[:, None]) * strides[:, None]).sum(axis=-1)
        boxes = np.stack([low, high], axis=-1).tolist()
        self.halos = tuple(
            Halo((dark, gain), tuple(map(tuple, box)), positions[kept], pixel)
            for box, positions, kept, pixel in zip(
                boxes, in_box, good[cut], place[cut, None], strict=True
            )
        )

    def apply(self, tile: Array, out: Floats) -> None:
        """Correct a tile, and repair its excluded pixels but for those that need a halo.

        Both are frames by the shape of the part, C-contiguous; raw pixels are in native byte order.
        """
        raw, corrected = _flat(tile), _flat(out)
        if out.dtype not in self._terms:
            self._terms[out.dtype] = _terms(self._planes, raw.shape[1], out.dtype)
        _correct(raw, self._terms[out.dtype], corrected)
        if self._pixels.size:
            from dask_tiled.kernels.corrections import repair_kernel

            repair = repair_kernel(out.dtype)
            repair(corrected, self._pixels, self._bounds, self._neighbours, corrected)


def _place(pixels: Index, sig: Lattice) -> tuple[Index, Bools]:
    """Return the position of pixels in a flat frame of a tile, and whether the tile shows them."""
    start, step, length = np.array(sig, dtype=np.int64).reshape(-1, 3).T
    step = np.where(length > 1, step, 1)
    index, rest = np.divmod(pixels - start, step)
    shown = ((rest == 0) & (index >= 0) & (index < length)).all(axis=-1)
    return index @ np.array(strides_of(length.tolist(), 1), np.int64), shown


def _shown(plane: Floats, sig: Lattice) -> Floats:
    """Return the part of a frame that a tile shows."""
    for axis, (start, step, length) in enumerate(sig):
        # The end of a slice that runs backwards to the first pixel cannot be written as a number.
        place = (slice(None),) * axis
        plane = plane[(*place, slice(start, None, step if length > 1 else 1))]
        plane = plane[(*place, slice(length))]
    return plane


def _flat(frames: Array) -> Array:
    return frames.reshape(len(frames), math.prod(frames.shape[1:]))


def _terms(
    planes: Sequence[Floats | None], size: int, dtype: np.dtype
) -> tuple[Floats, Floats] | None:
    """Return dark and gain as the kernel takes them, or None where there is neither."""
    dark, gain = planes
    if dark is None and gain is None:
        return None
    return (
        np.zeros(size, dtype) if dark is None else dark.astype(dtype, "C", copy=False).reshape(-1),
        np.ones(size, dtype) if gain is None else gain.astype(dtype, "C", copy=False).reshape(-1),
    )


def _correct(raw: Array, terms: tuple[Floats, Floats] | None, out: Array) -> None:
    """Apply dark and gain to (frames, pixels)."""
    if terms is None:
        np.copyto(out, raw)
        return
    from dask_tiled.kernels.corrections import correct_kernel

    if raw.dtype == np.float16:  # numba has no half precision
        raw = raw.astype(np.float32)
    correct_kernel(raw.dtype, out.dtype)(raw, *terms, out)
