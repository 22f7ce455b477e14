"""Lines of a scan, from the times of its frames: the beam takes longer to the next line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

WINDOWS = 64, 512, 4096
"""So many frames are looked at for the first two lines."""
MARGIN = 4
"""So many times as much as the others differ, steps to other lines are longer."""

Times = npt.NDArray[np.integer[Any]]


def find_line(read: Callable[[int, int, int], Times], count: int) -> int | None:
    """Find how many frames a line has, if that is beyond doubt.

    There have to be three lines or more. A fly-back has to be seen between any two, and nowhere
    else, and to stand out clearly from how much other steps differ, and how finely the times are
    counted. Of the lines behind the first ones, their first and last frames are read.

    Parameters
    ----------
    read : callable
        Gives the times of frames in ns, as int64: of so many, from a first one on, at a
        distance from each other: ``read(first, distance, number)``.
    count : int
        How many frames there are.

    Returns
    -------
    int or None
        None where nothing is sure.
    """
    for window in WINDOWS:
        times = read(0, 1, min(window, count))
        steps, found = np.diff(times), _longer(times)
        if found is not None:
            threshold, jump = found
            places = np.flatnonzero(steps > threshold) + 1
            line = int(places[0])
            if len(places) > 1 and np.array_equal(places, line * np.arange(1, len(places) + 1)):
                return line if _holds(read, count, line, threshold, jump) else None
        if window >= count:
            break
    return None


def _longer(times: Times) -> tuple[float, float] | None:
    """Return what the longer steps are longer than, and by how much; None if there are none."""
    ordered = np.sort(np.diff(times))
    middle = len(ordered) // 2
    jumps = np.diff(ordered[middle:])
    if not len(jumps) or ordered[0] <= 0:  # times do not go on
        return None
    at = int(np.argmax(jumps))
    shorter, jump = ordered[: middle + at + 1], float(jumps[at])
    spread, rounding = float(shorter[-1] - shorter[0]), _rounding(times)
    return (float(shorter[-1]) + jump / 2, jump) if jump > max(MARGIN * spread, rounding) else None


def _rounding(times: Times) -> int:
    """Return the power of ten that all times are multiples of; rounded steps differ by so much."""
    common = str(int(np.gcd.reduce(times)) or 1)
    return int(10 ** (len(common) - len(common.rstrip("0"))))


def _holds(
    read: Callable[[int, int, int], Times], count: int, line: int, threshold: float, jump: float
) -> bool:
    """Return whether all lines are as the first ones."""
    if line < 2 or count % line:
        return False
    first, last = (read(start, line, count // line) for start in (0, line - 1))
    lengths = last - first
    back = first[1:] - last[:-1]
    return bool((back > threshold).all() and np.ptp(lengths) < jump / 2)
