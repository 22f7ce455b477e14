"""Scan lines suggested by frame times: the beam needs longer to fly back to the next line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

WINDOWS = 64, 512, 4096
"""Numbers of frames to search for the first lines."""
MARGIN = 4
"""A fly-back exceeds other steps by this multiple of their spread."""

Times = npt.NDArray[np.integer[Any]]


class Lines(NamedTuple):
    """Lines of equal length in a row of frames."""

    first: int
    """Number of the first frame of the first line."""
    length: int
    rows: int

    @classmethod
    def at(cls, places: npt.NDArray[np.intp], frames: int) -> Lines | None:
        """Return the lines that begin at some places, and cover the frames around them.

        None unless the places are equally far apart, and the first frames are no longer line. Two
        places are enough if the first line begins with the first frame, else three are needed.
        """
        if len(places) < 2 or np.ptp(np.diff(places)):
            return None
        length = int(places[1] - places[0])
        first = int(places[0]) % length
        if length < 2 or places[0] > length or len(places) < 2 + bool(first):
            return None
        return cls(first, length, (frames - first) // length)

    def takes(self, frames: int) -> bool:
        """Return whether the lines take all frames."""
        return not self.first and self.rows * self.length == frames


def find_lines(read: Callable[[int, int, int], Times], count: int) -> Lines | None:
    """Return the lines of a scan, if they are certain.

    There must be three lines or more, with a fly-back between any two and nowhere else, clearly
    longer than the spread of other steps and the resolution of the times. After the first lines,
    only the first and last frame of each line are read. Frames before the first fly-back and after
    the last line may be left over.

    Parameters
    ----------
    read : callable
        ``read(first, distance, number)`` returns the times in ns, as int64, of ``number`` frames
        from ``first`` on, ``distance`` apart.
    count : int
        Number of frames.

    Returns
    -------
    Lines or None
        None if the times are not conclusive.
    """
    for window in WINDOWS:
        times = read(0, 1, min(window, count))
        steps, found = np.diff(times), _longer(times)
        if found is not None:
            threshold, jump = found
            lines = Lines.at(np.flatnonzero(steps > threshold) + 1, count)
            if lines is not None:
                return lines if _holds(read, lines, threshold, jump) else None
        if window >= count:
            break
    return None


def _longer(times: Times) -> tuple[float, float] | None:
    """Return a threshold for long steps, and their distance from the others; None if unclear."""
    ordered = np.sort(np.diff(times))
    middle = len(ordered) // 2
    jumps = np.diff(ordered[middle:])
    if not len(jumps) or ordered[0] <= 0:  # times must increase
        return None
    at = int(np.argmax(jumps))
    shorter, jump = ordered[: middle + at + 1], float(jumps[at])
    spread, rounding = float(shorter[-1] - shorter[0]), _rounding(times)
    return (float(shorter[-1]) + jump / 2, jump) if jump > max(MARGIN * spread, rounding) else None


def _rounding(times: Times) -> int:
    """Return the resolution of the times, a power of ten."""
    common = str(int(np.gcd.reduce(times)) or 1)
    return int(10 ** (len(common) - len(common.rstrip("0"))))


def _holds(
    read: Callable[[int, int, int], Times], lines: Lines, threshold: float, jump: float
) -> bool:
    """Return whether all lines are like the first ones."""
    start, length, rows = lines
    first, last = (read(k, length, rows) for k in (start, start + length - 1))
    lengths = last - first
    back = first[1:] - last[:-1]
    return bool((back > threshold).all() and np.ptp(lengths) < jump / 2)
