"""Sparse masks, as lists of their nonzero entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from dask.base import tokenize

from dask_tiled.errors import TilingError
from dask_tiled.model.indexing import Array, Index


def is_sparse(masks: Any) -> bool:
    """Return whether masks are an array of ``scipy.sparse`` or ``sparse``."""
    return hasattr(masks, "nnz") and hasattr(masks, "shape")


def are_sparse(masks: Any) -> bool:
    """Return whether masks are sparse, or a list with a sparse mask."""
    listed = isinstance(masks, (list, tuple)) and any(map(is_sparse, masks))
    return listed or is_sparse(masks)


@dataclass(frozen=True, eq=False)
class SparseMasks:
    """Sparse masks of a frame: entries in the order of the pixels.

    Attributes
    ----------
    count : int
        Number of masks.
    places : int32 array
        The pixel of each entry, counted in C order.
    numbers : int32 array
        The mask of each entry.
    weights : array
        The weight of each entry: float64 or complex128.
    dtype : numpy.dtype
        dtype of the given weights.
    """

    count: int
    places: Array
    numbers: Array
    weights: Array
    dtype: np.dtype

    @classmethod
    def of(cls, masks: Any, frame: tuple[int, ...]) -> Self:
        """Convert sparse masks.

        Parameters
        ----------
        masks : sparse array or matrix, or a sequence of masks
            n masks, then the signal axes; a mask alone; or n rows of all pixels of a frame in C
            order. In a sequence each is of the shape of a frame, and some may be dense.
        frame : tuple of int
            Shape of a frame.

        Raises
        ------
        TilingError
            The shape is wrong, values are not numbers, or the fill value is not 0.
        """
        if not is_sparse(masks):
            parts = [_entries_of_one(mask, frame) for mask in masks]
            numbers = np.repeat(np.arange(len(parts)), [len(places) for places, _ in parts])
            places, weights = map(np.concatenate, zip(*parts, strict=True))
            return cls.sorted(numbers, places, weights, len(parts))
        shape, size = tuple(masks.shape), math.prod(frame)
        flat = len(shape) == 2 and shape[1:] == (size,) and len(frame) != 1
        if shape != frame and shape[1:] != frame and not flat:
            raise misfit(shape, frame)
        if shape == frame:
            places, weights = _entries_of_one(masks, frame)
            return cls.sorted(np.zeros_like(places), places, weights, 1)
        if not shape[0]:
            raise misfit(shape, frame)
        (numbers, *rest), weights = _entries(masks)
        places = rest[0] if flat else np.ravel_multi_index(tuple(rest), frame)
        return cls.sorted(numbers, places, weights, shape[0])

    @classmethod
    def sorted(cls, numbers: Index, places: Index, weights: Array, count: int) -> Self:
        """Return masks from entries in any order."""
        order = np.argsort(places, kind="stable")
        first, second = (x[order].astype(np.int32) for x in (places, numbers))
        wide = np.complex128 if weights.dtype.kind == "c" else np.float64
        return cls(count, first, second, weights[order].astype(wide), weights.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self.places.nbytes + self.numbers.nbytes + self.weights.nbytes

    def sums(self, frames: Array) -> Array:
        """Return the weighted sums of frames for each mask: float64 or complex128."""
        from dask_tiled.kernels.sparse import sums_kernel

        if frames.dtype.kind == "c":
            return self.sums(frames.real) + 1j * self.sums(frames.imag)
        dtype = frames.dtype.newbyteorder("=")
        if dtype == np.float16:  # numba has no half precision
            dtype = np.dtype(np.float32)
        pixels = np.ascontiguousarray(frames, dtype).reshape(len(frames), -1)
        found = [np.empty((len(frames), self.count)) for _ in self._parts]
        for weights, out in zip(self._parts, found, strict=True):
            sums_kernel(pixels.dtype)(pixels, self.places, self.numbers, weights, out)
        return found[0] if len(found) == 1 else found[0] + 1j * found[1]

    @cached_property
    def _parts(self) -> list[Array]:
        """The real weights, or the real and imaginary parts of complex weights."""
        if self.weights.dtype.kind != "c":
            return [self.weights]
        return [np.ascontiguousarray(part) for part in (self.weights.real, self.weights.imag)]

    def __dask_tokenize__(self) -> tuple[object, ...]:
        arrays = self.places, self.numbers, self.weights
        return "dask_tiled.SparseMasks", self.count, str(self.dtype), *map(tokenize, arrays)


def _entries_of_one(mask: Any, frame: tuple[int, ...]) -> tuple[Index, Array]:
    """Return the C-order positions of a mask's nonzero pixels, and their weights."""
    if tuple(np.shape(mask)) != frame:
        raise misfit(tuple(np.shape(mask)), frame)
    if is_sparse(mask):
        coordinates, weights = _entries(mask)
        return np.ravel_multi_index(tuple(coordinates), frame), weights
    dense = np.asarray(mask).reshape(-1)
    places = np.flatnonzero(dense)
    return places, checked_numbers(dense[places])


def _entries(masks: Any) -> tuple[list[Index], Array]:
    """Return the coordinates of stored entries along each axis, and their values."""
    checked_numbers(masks)
    if getattr(masks, "fill_value", 0) != 0:
        problem, expected = "the fill value of sparse masks must be 0", "fill_value 0"
        raise TilingError(problem, expected=expected, found=f"fill_value {masks.fill_value}")
    listed = masks.tocoo() if hasattr(masks, "tocoo") else masks
    return [np.asarray(x, np.int64) for x in listed.coords], np.asarray(listed.data)


def checked_numbers(weights: Any, kinds: str = "biufc") -> Any:
    """Return masks or weights after checking that they are numbers, of some dtype kinds."""
    if weights.dtype.kind not in kinds:
        expected = "real or complex numbers" if "c" in kinds else "real numbers"
        raise TilingError("invalid dtype of masks", expected=expected, found=weights.dtype)
    return weights


def misfit(shape: tuple[int, ...], frame: tuple[int, ...]) -> TilingError:
    """Return the error for masks that do not have the shape of a frame."""
    return TilingError(
        "masks do not have the shape of a frame",
        expected=f"shape (n, {', '.join(map(str, frame))})",
        found=f"shape {shape}",
    )
