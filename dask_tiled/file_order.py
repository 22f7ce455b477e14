"""The order in which a file has the pixels of a frame, where it is not that of the frame."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.ranges import Units

Array = npt.NDArray[Any]

ROWS = 32
"""So many rows are copied at a time: more pages than these are not at hand."""


def are_neighbours(units: Units) -> bool:
    """Tell whether neighbouring units of the runs hold neighbouring pixels."""
    return units.runs.length == 1 or units.runs.out_step == units.decoder.width


class Places:
    """Where in a frame the pixels go that follow one another in a file.

    Results and weights are put into the order of the file for as long as it takes to go through it.
    """

    def __init__(self, units: Units, pixel: np.dtype) -> None:
        runs, self._pixels = units.runs, units.decoder.pixels
        self.units = units
        self._length = runs.length
        self._dests = runs.dests // pixel.itemsize
        self._step = runs.out_step // pixel.itemsize
        self.firsts = np.arange(len(self._dests)) * (self._length * self._pixels)

    def room(self, columns: Array, old: Array) -> Array:
        """Give room for the columns of the pixels: ``old`` if it fits."""
        shape = len(columns), len(self._dests) * self._length * self._pixels
        fits = old.shape == shape and old.dtype == columns.dtype
        return old if fits else np.empty(shape, columns.dtype)

    def take(self, columns: Array, old: Array) -> Array:
        """Give the columns of the pixels, in the order of the file."""
        taken = self.room(columns, old)
        for ours, theirs in self._parts(taken, columns):
            ours[...] = theirs
        return taken

    def put(self, taken: Array, columns: Array) -> None:
        """Put columns back to where they were taken from."""
        for ours, theirs in self._parts(taken, columns):
            theirs[...] = ours

    def _parts(self, taken: Array, columns: Array) -> Iterator[tuple[Array, Array]]:
        """Give the same units in both orders, part by part."""
        column = columns.itemsize
        unit = np.dtype(f"V{self._pixels * column}")  # copied as a whole, whatever is in it
        n, length = len(self._dests), self._length
        ours = taken.view(unit).reshape(len(taken), n, length)
        hops = np.diff(self._dests)
        even = bool((hops == hops[:1]).all())
        for k in range(1 if even else n):
            runs, hop = (n, int(hops[0]) if n > 1 else 0) if even else (1, 0)
            theirs: Array = np.ndarray(
                (len(columns), runs, length),
                unit,
                columns.data,
                int(self._dests[k]) * column,
                (columns.strides[0], hop * column, self._step * column),
            )
            for first in range(0, length, ROWS):
                rows = slice(first, first + ROWS)
                yield ours[:, k : k + runs, rows], theirs[:, :, rows]
