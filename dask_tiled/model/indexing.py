"""Which part of an array is shown: cuts of axes, boxes, and the frames in places of a scan."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Box = tuple[tuple[int, int], ...]
"""Along each axis the first position and the one after the last."""


class Cut(NamedTuple):
    """What is shown of an axis: ``length`` positions from ``start`` on, ``step`` apart.

    An axis that is not ``kept`` is cut at one position, and gone.
    """

    start: int
    step: int
    length: int
    kept: bool = True

    def of(self, other: Cut) -> Cut:
        """Cut again, in the positions that this cut shows."""
        start = self.start + self.step * other.start
        return Cut(start, self.step * other.step, other.length, other.kept)


def cut_again(cuts: Iterable[Cut], others: Iterable[Cut]) -> tuple[Cut, ...]:
    """Cut axes again, some of which are gone: there is another cut for each that is kept."""
    further = iter(others)
    return tuple(cut.of(next(further)) if cut.kept else cut for cut in cuts)


def basic_cuts(index: Any, shape: tuple[int, ...]) -> list[Cut] | None:
    """Read an index of integers, slices with a positive step and an ellipsis; None for others."""
    items: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    ellipses = [k for k, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1 or len(items) - len(ellipses) > len(shape):
        return None
    at = ellipses[0] if ellipses else len(items)
    missing = len(shape) - (len(items) - len(ellipses))
    items = [*items[:at], *[slice(None)] * missing, *items[at + 1 :]]
    cuts = [_basic_cut(item, size) for item, size in zip(items, shape, strict=True)]
    return None if None in cuts else cuts  # type: ignore[return-value]


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


def cut_chunks(chunks: tuple[int, ...], cut: Cut) -> tuple[int, ...]:
    """Keep the edges of the chunks where they fall in a cut."""
    start, step, count, _ = cut
    if count == 1:
        return (1,)
    edges = np.cumsum((0, *chunks))
    before = np.clip(-(-(edges - start) // step), 0, count)
    sizes = np.diff(before)
    return tuple(sizes[sizes > 0].tolist())


Index = npt.NDArray[np.int64]


class Selection(NamedTuple):
    """The numbers of the frames in the places of a navigation shape, in C order.

    Numbers below 0 and beyond the last frame stand for missing ones.
    """

    nav_shape: tuple[int, ...]
    n_frames: int  # how many frames there are
    first: int = 0  # number of the frame in the first place. The others follow it
    numbers: Index | None = None
    """Numbers of the frames in all places, where they do not follow one another."""

    def at(self, places: Index) -> Index:
        """Give the numbers of the frames in some places."""
        return places + self.first if self.numbers is None else self.numbers[places]

    def are_absent(self, numbers: Index) -> npt.NDArray[np.bool_]:
        """Tell which numbers stand for missing frames."""
        return (numbers < 0) | (numbers >= self.n_frames)

    def absent(self) -> int:
        """Count the places that have no frame."""
        if self.numbers is not None:
            return int(self.are_absent(self.numbers).sum())
        places = math.prod(self.nav_shape)
        there = min(self.n_frames, self.first + places) - max(0, self.first)
        return places - max(0, there)

    def ignored(self) -> int:
        """Count the frames that have no place."""
        if self.numbers is not None:
            there = self.numbers[~self.are_absent(self.numbers)]
            return self.n_frames - len(np.unique(there))
        return self.n_frames - (math.prod(self.nav_shape) - self.absent())


def c_order(axes: Sequence[Index], shape: Sequence[int]) -> Index:
    """Give the positions that the points of a grid have in C order of a shape that contains it."""
    places = np.zeros(1, dtype=np.int64)
    for k, axis in enumerate(axes):
        places = np.add.outer(places, axis * math.prod(shape[k + 1 :])).ravel()
    return places
