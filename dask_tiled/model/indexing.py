"""Indexing: boxes, and cuts of axes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Index = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Box = tuple[tuple[int, int], ...]
"""Start and stop along each axis."""


class Shaped(NamedTuple):
    """Shape and dtype of an array that is not there."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class Cut(NamedTuple):
    """A slice of an axis: ``length`` positions from ``start`` on, ``step`` apart.

    If not ``kept``, one position is selected and the axis is dropped.
    """

    start: int
    step: int
    length: int
    kept: bool = True

    @property
    def slice(self) -> slice:
        """The equivalent slice."""
        return slice(self.start, self.start + self.step * (self.length - 1) + 1, self.step)

    def of(self, other: Cut) -> Cut:
        """Compose cuts: apply ``other`` to the positions that this cut selects."""
        start = self.start + self.step * other.start
        return Cut(start, self.step * other.step, other.length, other.kept)


def cut_again(cuts: Iterable[Cut], others: Iterable[Cut]) -> tuple[Cut, ...]:
    """Compose cuts of axes; ``others`` has one for each axis that is kept."""
    further = iter(others)
    return tuple(cut.of(next(further)) if cut.kept else cut for cut in cuts)


def basic_cuts(index: Any, shape: tuple[int, ...]) -> list[Cut] | None:
    """Parse an index of integers, slices with a positive step and an ellipsis; else None."""
    items = _items(index, len(shape))
    if items is None:
        return None
    cuts = [_basic_cut(item, size) for item, size in zip(items, shape, strict=True)]
    return None if None in cuts else cuts  # type: ignore[return-value]


def _items(index: Any, ndim: int) -> list[Any] | None:
    """Return an item for each axis; None if there are too many."""
    items: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    ellipses = [k for k, item in enumerate(items) if item is Ellipsis]
    missing = ndim - (len(items) - len(ellipses))
    if len(ellipses) > 1 or missing < 0:
        return None
    at = ellipses[0] if ellipses else len(items)
    return [*items[:at], *[slice(None)] * missing, *items[at + 1 :]]


def _basic_cut(item: Any, size: int) -> Cut | None:
    if isinstance(item, slice):
        try:
            start, stop, step = item.indices(size)
        except TypeError:
            return None
        count = len(range(start, stop, step))
        if step < 0 or not count:
            return None
        return Cut(start, step if count > 1 else 1, count)
    if isinstance(item, (bool, np.bool_)) or not isinstance(item, (int, np.integer)):
        return None
    at = operator.index(item)
    at += size * (at < 0)
    return Cut(at, 1, 1, kept=False) if 0 <= at < size else None


def nav_index(index: Any, nav_ndim: int, ndim: int) -> tuple[Any, Any] | None:
    """Split an index into its navigation part and its signal part.

    None if it cannot be split, or is not a valid NumPy index.
    """
    items: list[Any] = list(index) if isinstance(index, tuple) else [index]
    items = [np.asarray(item) if isinstance(item, list) else item for item in items]
    known = slice, int, np.integer, np.ndarray, type(Ellipsis)
    arrays = [item for item in items if isinstance(item, np.ndarray)]
    if not all(isinstance(item, known) and not isinstance(item, bool) for item in items):
        return None
    if any(array.dtype.kind not in "biu" or not array.ndim for array in arrays):
        return None
    masks = [isinstance(item, np.ndarray) and item.dtype.kind == "b" for item in items]
    sizes = [item.ndim if mask else 1 for item, mask in zip(items, masks, strict=True)]
    dots = [k for k, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        return None
    missing = ndim - sum(sizes) + len(dots)
    at = dots[0] if dots else len(items)
    items[at : at + len(dots)] = [slice(None)] * missing
    sizes[at : at + len(dots)] = [1] * missing
    first = next((k for k in range(len(items) + 1) if sum(sizes[:k]) == nav_ndim), None)
    sig = items[first:]
    if missing < 0 or first is None or not all(isinstance(item, slice) for item in sig):
        return None
    return tuple(items[:first]), tuple(sig)


class Points(NamedTuple):
    """A pointwise index: the basic index applied first, then index arrays for some axes."""

    basic: tuple[Any, ...]
    axes: tuple[int, ...]
    points: tuple[Index, ...]


def point_index(key: Any, ndim: int) -> Points | None:
    """Parse an index of dask's ``vindex``; None if it has no index arrays."""
    items = _items(key, ndim) or []
    points = {k: np.asarray(x) for k, x in enumerate(items) if isinstance(x, list | np.ndarray)}
    if not points or any(x.dtype.kind not in "iu" or not x.ndim for x in points.values()):
        return None
    basic = tuple(slice(None) if k in points else item for k, item in enumerate(items))
    kept = [k for k, item in enumerate(basic) if isinstance(item, slice)]
    return Points(basic, tuple(map(kept.index, points)), tuple(points.values()))


def like_numpy(pixels: Array) -> Array:
    """Convert an array without axes to a scalar, as NumPy returns it."""
    return pixels if pixels.ndim else pixels[()]


def cut_chunks(chunks: tuple[int, ...], cut: Cut) -> tuple[int, ...]:
    """Return the chunks of a cut axis, with unchanged chunk edges."""
    start, step, count, _ = cut
    if count == 1:
        return (1,)
    edges = np.cumsum((0, *chunks))
    before = np.clip(-(-(edges - start) // step), 0, count)
    sizes = np.diff(before)
    return tuple(sizes[sizes > 0].tolist())


def c_order(axes: Sequence[Index], shape: Sequence[int]) -> Index:
    """Return the flat C-order positions of a grid's points in an array of ``shape``."""
    places = np.zeros(1, dtype=np.int64)
    for k, axis in enumerate(axes):
        places = np.add.outer(places, axis * math.prod(shape[k + 1 :])).ravel()
    return places
