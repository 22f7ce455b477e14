"""How pixels lie in a file: as they are shown, or in an order of their own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.model.indexing import Index
from dask_tiled.reading.ranges import Units, Window

Array = npt.NDArray[Any]


def are_aligned(window: Window, pixel: np.dtype) -> bool:
    """Tell whether all runs begin at multiples of a pixel in memory."""
    memory = window.data.ctypes.data
    places = np.add.outer(window.offsets + memory, window.ranges.units.runs.starts)
    return not (places % pixel.alignment).any()


def as_frames(window: Window, pixel: np.dtype) -> Array | None:
    """Look at pixels that lie in memory as numpy has them: frames by pixels, or None."""
    ranges, data = window.ranges, window.data
    first = int(window.offsets[0])
    if not ranges.lies_as(pixel) or (data.ctypes.data + first) % pixel.alignment:
        return None
    return data[first : first + ranges.nbytes].view(pixel).reshape(len(ranges.frames), -1)


def are_adjacent(units: Units) -> bool:
    """Tell whether neighbouring units of the runs hold neighbouring pixels."""
    return units.runs.length == 1 or units.runs.out_step == units.decoder.width


class Walk(NamedTuple):
    """A way to go through units: from each of some pixels on, ``length`` units ``step`` apart."""

    firsts: Index
    step: int
    length: int


class Places:
    """Where in a frame the pixels go that follow one another in a file.

    Results and weights are put into the order of the file for as long as it takes to go through it.
    """

    def __init__(self, units: Units, pixel: np.dtype) -> None:
        runs, self._pixels = units.runs, units.decoder.pixels
        self.units = units
        dests, step = runs.dests // pixel.itemsize, runs.out_step // pixel.itemsize
        run = runs.length * self._pixels
        self.firsts = np.arange(len(dests)) * run
        self._size = len(dests) * run
        self._here = Walk(self.firsts, self._pixels, runs.length)
        self._there = Walk(dests, step, runs.length)
        hops = np.diff(dests)
        if 0 < len(hops) < runs.length and (hops == hops[0]).all():
            # Along the rows of the frame: whole lines of the cache, and few pages at a time.
            rows = np.arange(runs.length)
            self._here = Walk(rows * self._pixels, run, len(dests))
            self._there = Walk(dests[0] + rows * step, int(hops[0]), len(dests))

    def room(self, columns: Array, old: Array) -> Array:
        """Give room for the columns of the pixels: ``old`` if it fits."""
        shape = len(columns), self._size
        fits = old.shape == shape and old.dtype == columns.dtype
        return old if fits else np.empty(shape, columns.dtype)

    def take(self, columns: Array, old: Array) -> Array:
        """Give the columns of the pixels, in the order of the file."""
        taken = self.room(columns, old)
        self._copy(columns, self._there, taken, self._here)
        return taken

    def put(self, taken: Array, columns: Array) -> None:
        """Put columns back to where they were taken from."""
        self._copy(taken, self._here, columns, self._there)

    def _copy(self, pixels: Array, starts: Walk, out: Array, dests: Walk) -> None:
        from dask_tiled.kernels.decoding import compiled

        unit = self._pixels * pixels.itemsize
        copy = compiled("copy")
        for row, target in zip(pixels, out, strict=True):
            copy(
                row.view(np.uint8),
                starts.firsts * pixels.itemsize,
                starts.step * pixels.itemsize,
                target.view(np.uint8),
                dests.firsts * pixels.itemsize,
                dests.step * pixels.itemsize,
                starts.length,
                unit,
                0,
            )
