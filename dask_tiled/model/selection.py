"""Which frames are shown in which places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]


class Selection(NamedTuple):
    """The numbers of the frames in the places of a navigation shape, in C order.

    Numbers below 0 and beyond the last frame stand for missing ones.

    Attributes
    ----------
    nav_shape : tuple of int
    n_frames : int
        How many frames there are.
    first : int
        Number of the frame in the first place. The others follow it.
    numbers : int64 array, optional
        Numbers of the frames in all places, where they do not follow one another.
    """

    nav_shape: tuple[int, ...]
    n_frames: int
    first: int = 0
    numbers: Index | None = None

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
