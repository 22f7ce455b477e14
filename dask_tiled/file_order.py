"""The order in which a file has the pixels of a frame, where it is not that of the frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.ranges import Units

Array = npt.NDArray[Any]


def are_neighbours(units: Units) -> bool:
    """Tell whether neighbouring units of the runs hold neighbouring pixels."""
    return units.runs.length == 1 or units.runs.out_step == units.decoder.width


class Places:
    """Where in a frame the pixels go that follow one another in a file.

    Results and weights are put into the order of the file for as long as it takes to go through it.
    """

    def __init__(self, units: Units, pixel: np.dtype) -> None:
        runs, self._pixels = units.runs, units.decoder.pixels
        self._length = runs.length
        self._dests = (runs.dests // pixel.itemsize).tolist()
        self._step = runs.out_step // pixel.itemsize
        self.firsts = np.arange(len(self._dests)) * (self._length * self._pixels)

    def take(self, columns: Array) -> Array:
        """Give the columns of the pixels, in the order of the file."""
        shape = len(columns), len(self._dests), self._length, self._pixels
        taken = np.empty(shape, columns.dtype)
        for k, dest in enumerate(self._dests):
            taken[:, k] = self._run(columns, dest)
        return taken.reshape(len(columns), -1)

    def put(self, taken: Array, columns: Array) -> None:
        """Put columns back to where they were taken from."""
        taken = taken.reshape(len(taken), len(self._dests), self._length, self._pixels)
        for k, dest in enumerate(self._dests):
            self._run(columns, dest)[...] = taken[:, k]

    def _run(self, columns: Array, dest: int) -> Array:
        row, column = columns.strides
        shape = len(columns), self._length, self._pixels
        strides = row, column * self._step, column
        return np.lib.stride_tricks.as_strided(columns[:, dest:], shape, strides)
