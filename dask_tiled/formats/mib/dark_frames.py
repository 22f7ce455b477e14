"""Scan lines suggested by dark frames: the beam is blanked once in each line."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dask_tiled.formats.mib.fly_back import WINDOWS, Lines

RATIO = 10
"""A dark frame has less than this part of the median count."""
Sums = npt.NDArray[np.int64]


def find_dark_lines(read: Callable[[int, int, int], Sums], count: int) -> Lines | None:
    """Return the lines that begin after a dark frame, or with one.

    There must be three dark frames or more among the first ones, equally far apart; after them, the
    dark frame of each line and the frame after it are read.

    Parameters
    ----------
    read : callable
        ``read(first, distance, number)`` returns a measure of the counts of ``number`` frames from
        ``first`` on, ``distance`` apart.
    count : int
        Number of frames.
    """
    for window in WINDOWS:
        sums = read(0, 1, min(window, count))
        limit = float(np.median(sums)) / RATIO
        dark = np.flatnonzero(sums < limit)
        if len(dark) > 2 and np.ptp(np.diff(dark)) == 0:
            # Lines begin with a dark frame if the first frame is dark, else end with one.
            lines = Lines.at(dark + bool(dark[0]), count)
            return lines if lines and _holds(read, lines, int(dark[0]), count, limit) else None
        if window >= count:
            break
    return None


def _holds(
    read: Callable[[int, int, int], Sums], lines: Lines, first: int, count: int, limit: float
) -> bool:
    """Return whether a frame of each line is dark, and the next one is not."""
    number, after = (1 + (count - 1 - k) // lines.length for k in (first, first + 1))
    is_dark = (read(first, lines.length, number) < limit).all()
    return bool(is_dark and (read(first + 1, lines.length, after) >= limit).all())
