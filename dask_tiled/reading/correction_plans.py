"""Plan the correction of a tile: the pixels to repair, and the neighbours to use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.corrections import Corrections, Floats
from dask_tiled.model.indexing import Array, Box, Cut, Index
from dask_tiled.model.pieces import strides_of
from dask_tiled.reading.repairs import Bools, Repairs, Steps, repairs_of

Lattice = Sequence[tuple[int, int, int]]


class Halo(NamedTuple):
    """Excluded pixels of a tile that are repaired from pixels outside it."""

    planes: Sequence[Floats | None]
    box: Box  # bounding box of the pixels needed
    steps: Steps  # positions in the box
    repaired: Index  # positions in the box of the pixels to copy
    pixels: Index  # positions in the tile

    @property
    def cuts(self) -> list[Cut]:
        """The box as a cut of each signal axis."""
        return [Cut(a, 1, b - a) for a, b in self.box]

    def repair(self, block: Array, out: Floats) -> None:
        """Correct and repair the box, and copy the repaired pixels of every frame to ``out``."""
        place = tuple(slice(*edges) for edges in self.box)
        planes = [None if plane is None else plane[place] for plane in self.planes]
        raw = _flat(block)
        corrected = np.empty(raw.shape, dtype=out.dtype)
        _correct(raw, _terms(planes, raw.shape[1], out.dtype), corrected)
        self.steps.repair(corrected)
        _flat(out)[:, self.pixels] = corrected[:, self.repaired]


class CorrectionPlan:
    """The correction of tiles of one part of the frame: start, step and length along each axis."""

    __slots__ = ("_fill", "_filled", "_planes", "_steps", "_terms", "halos")

    def __init__(
        self, corrections: Corrections, sig: Lattice, sig_shape: tuple[int, ...] | None = None
    ) -> None:
        shape = corrections.sig_shape if sig_shape is None else sig_shape
        planes: Sequence[Floats | None] = (corrections.dark, corrections.gain)
        excluded = corrections.excluded_pixels
        if not corrections.sig_shape:  # a frame without axes is treated as one pixel of one axis
            planes = [None if p is None else p.reshape(1) for p in planes]
            if excluded is not None and not excluded.size:
                excluded = np.zeros((len(excluded), 1), np.int64)
        self._planes = [None if plane is None else _shown(plane, sig) for plane in planes]
        self._terms: dict[np.dtype, tuple[Floats, Floats] | None] = {}
        self._fill, self._filled = corrections.fill, np.zeros(0, np.int64)
        self._steps, self.halos = Steps.none(), tuple[Halo, ...]()
        if excluded is None or not len(excluded):
            return
        if self._fill is not None:
            place, shown = _place(excluded, sig)
            self._filled = place[shown]
            return
        if shape is None:
            raise DatasetError(
                "the frame shape is needed to repair excluded pixels",
                expected="sig_shape",
                found=None,
            )
        repairs = repairs_of(corrections, shape)
        place, shown = _place(np.stack(np.unravel_index(repairs.pixels, shape), axis=-1), sig)
        near_place, near_shown = _place(np.stack(np.unravel_index(repairs.near, shape), -1), sig)
        whole = repairs.with_all(shown, near_shown)
        self._steps = Steps.of(place[whole], near_place[whole], repairs.used[whole])
        cut = np.flatnonzero(shown & ~whole)
        self.halos = tuple(
            _halo(planes, repairs, shape, group, place[group])
            for group in repairs.grouped(cut, shape)
        )

    def apply(self, tile: Array, out: Floats) -> None:
        """Correct a tile, and repair its excluded pixels except those that need a halo.

        Both arrays have the shape ``(frames, *part)`` and are C-contiguous; raw pixels are in
        native byte order.
        """
        raw, corrected = _flat(tile), _flat(out)
        if out.dtype not in self._terms:
            self._terms[out.dtype] = _terms(self._planes, raw.shape[1], out.dtype)
        _correct(raw, self._terms[out.dtype], corrected)
        self._steps.repair(corrected)
        if self._filled.size:
            corrected[:, self._filled] = self._fill


def _halo(
    planes: Sequence[Floats | None],
    repairs: Repairs,
    shape: tuple[int, ...],
    some: Index,
    place: Index,
) -> Halo:
    """Build the halo of some excluded pixels from all pixels that they depend on."""
    chain = repairs.needed_for(some)
    near, used = repairs.near[chain], repairs.used[chain]
    points = [repairs.pixels[some], near[used]]
    low, high = _ends(np.concatenate(points), shape)
    lattice = [(a, 1, b - a) for a, b in zip(low, high, strict=True)]

    def inside(numbers: Index) -> Index:
        return _place(np.stack(np.unravel_index(numbers, shape), axis=-1), lattice)[0]

    steps = Steps.of(inside(repairs.pixels[chain]), inside(near), used)
    box = tuple(zip(low, high, strict=True))
    return Halo(planes, box, steps, inside(repairs.pixels[some]), place)


def _ends(numbers: Index, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the corners of the bounding box of pixels."""
    points = np.unravel_index(numbers, shape)
    return [int(x.min()) for x in points], [int(x.max()) + 1 for x in points]


def _place(pixels: Index, sig: Lattice) -> tuple[Index, Bools]:
    """Return the positions of pixels in a flattened tile, and a mask of the pixels inside it."""
    start, step, length = np.array(sig, dtype=np.int64).reshape(-1, 3).T
    step = np.where(length > 1, step, 1)
    index, rest = np.divmod(pixels - start, step)
    shown = ((rest == 0) & (index >= 0) & (index < length)).all(axis=-1)
    return index @ np.array(strides_of(length.tolist(), 1), np.int64), shown


def _shown(plane: Floats, sig: Lattice) -> Floats:
    """Slice a frame in the same way as the tile."""
    for axis, (start, step, length) in enumerate(sig):
        # A slice that runs backwards to the first pixel cannot state its stop as an integer.
        place = (slice(None),) * axis
        plane = plane[(*place, slice(start, None, step if length > 1 else 1))]
        plane = plane[(*place, slice(length))]
    return plane


def _flat(frames: Array) -> Array:
    return frames.reshape(len(frames), math.prod(frames.shape[1:]))


def _terms(
    planes: Sequence[Floats | None], size: int, dtype: np.dtype
) -> tuple[Floats, Floats] | None:
    """Return dark and gain in the form that the kernel accepts, or None without either."""
    dark, gain = planes
    if dark is None and gain is None:
        return None
    return (
        np.zeros(size, dtype) if dark is None else dark.astype(dtype, "C", copy=False).reshape(-1),
        np.ones(size, dtype) if gain is None else gain.astype(dtype, "C", copy=False).reshape(-1),
    )


def _correct(raw: Array, terms: tuple[Floats, Floats] | None, out: Array) -> None:
    """Apply dark and gain to an array of (frames, pixels)."""
    if terms is None:
        np.copyto(out, raw)
        return
    from dask_tiled.kernels.corrections import correct_kernel

    if raw.dtype == np.float16:  # numba has no half precision
        raw = raw.astype(np.float32)
    correct_kernel(raw.dtype, out.dtype)(raw, *terms, out)
