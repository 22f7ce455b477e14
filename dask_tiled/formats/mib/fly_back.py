"""Scan lines inferred from frame times: the beam needs longer to fly back to the next line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.formats import tools
from dask_tiled.formats.tools.files import is_url
from dask_tiled.formats.tools.header import read_table
from dask_tiled.model.doubts import inferred_scan, unknown_scan

TIME = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{9}")
WINDOWS = 64, 512, 4096
"""Numbers of frames to search for the first two lines."""
MARGIN = 4
"""A fly-back exceeds other steps by this multiple of their spread."""

Times = npt.NDArray[np.integer[Any]]


def with_lines(desc: tools.Description, header_bytes: int, step: int) -> tools.Description:
    """Show frames in scan lines, if their times show the beam's fly-back.

    Only for a single local file: reading headers that lie ``step`` bytes apart takes too long
    otherwise. The description has a doubt, whether lines were found or not.
    """
    file, count = desc.files[0], desc.layout.n_frames
    in_a_row = desc.with_doubts(*unknown_scan(count))
    if len(desc.files) > 1 or file.grows or is_url(file.path):
        return in_a_row
    found = TIME.search(tools.read_head(file.path, header_bytes))
    if found is None:
        return in_a_row
    fields = {"time": (found.start(), f"S{len(found[0])}")}

    def read(first: int, distance: int, number: int) -> Times:
        texts = read_table(file.path, fields, first * step, distance * step, number)["time"]
        if not all(map(TIME.fullmatch, texts.tolist())):
            raise ValueError("no times")  # numbers with more digits shift the times
        return texts.astype("M8[ns]").astype(np.int64)

    try:
        line = find_line(read, count)
    except ValueError:
        return in_a_row
    if line is None:
        return in_a_row
    shape = count // line, line
    why = f"by the frame times, the beam flies back after every {line} frames"
    return desc.with_scan(shape, f"inferred: {why}").with_doubts(inferred_scan(shape, why))


def find_line(read: Callable[[int, int, int], Times], count: int) -> int | None:
    """Return the number of frames in a line, if it is certain.

    There must be three lines or more, with a fly-back between any two and nowhere else, clearly
    longer than the spread of other steps and the resolution of the times. After the first lines,
    only the first and last frame of each line are read.

    Parameters
    ----------
    read : callable
        ``read(first, distance, number)`` returns the times in ns, as int64, of ``number`` frames
        from ``first`` on, ``distance`` apart.
    count : int
        Number of frames.

    Returns
    -------
    int or None
        Frames per line; None if the times are not conclusive.
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
    read: Callable[[int, int, int], Times], count: int, line: int, threshold: float, jump: float
) -> bool:
    """Return whether all lines are like the first ones."""
    if line < 2 or count % line:
        return False
    first, last = (read(start, line, count // line) for start in (0, line - 1))
    lengths = last - first
    back = first[1:] - last[:-1]
    return bool((back > threshold).all() and np.ptp(lengths) < jump / 2)
