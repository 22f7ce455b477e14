"""Where a scan lies in a TVIPS series, after what the frame headers say.

The two rules are those of LiberTEM, by scan positions, and of RosettaSciIO, by the rotator index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.model.indexing import Index

Headers = Mapping[str, npt.NDArray[Any]]


class Scan(NamedTuple):
    """A scan.

    Attributes
    ----------
    first : int
        Number of its first frame.
    shape : tuple of int, optional
        None where it is not known.
    numbers : int64 array, optional
        Numbers of the frames in all places, where they do not follow one another.
    told_by : str
        What says so.
    """

    first: int = 0
    shape: tuple[int, int] | None = None
    numbers: Index | None = None
    told_by: str = ""


def find_scan(headers: Headers, last: Headers, n_frames: int) -> Scan | None:
    """Find the scan in a series of frames.

    Parameters
    ----------
    headers : mapping
        Fields of the first frame headers.
    last : mapping
        Fields of the last frame header.
    n_frames : int
        How many frames there are.
    """
    if "Scan_y" in headers:
        found = by_position(headers["Scan_y"], headers["Scan_x"], n_frames)
        if found is not None:
            return found
    if "Index_of_rotator" in headers:
        rotator = headers["Index_of_rotator"].astype(np.int64)
        return by_rotator(rotator, int(last["Index_of_rotator"][0]), n_frames)
    return None


def by_position(y: npt.NDArray[Any], x: npt.NDArray[Any], n_frames: int) -> Scan | None:
    """Find a scan by its positions: it begins at (0, 0), goes on to (0, 1), and rows end alike."""
    y, x = (np.trunc(np.nan_to_num(v.astype("f8"), nan=-1.0)) for v in (y, x))
    origins = np.flatnonzero((y == 0) & (x == 0))
    seconds = np.flatnonzero((y == 0) & (x == 1))
    seconds = seconds[seconds > origins[0]] if len(origins) else seconds[:0]
    if not len(seconds):
        return None
    first = int(seconds[0]) - 1
    row = x[first + 1 :]
    ends = np.flatnonzero(row < np.maximum.accumulate(row))
    width = int(row[: ends[0]].max()) + 1 if len(ends) else 0
    height = (n_frames - first) // width if width else 0
    shape = (height, width) if height else None
    return Scan(first, shape, told_by="Scan_x and Scan_y of the frame headers")


def by_rotator(rotator: Index, last: int, n_frames: int) -> Scan | None:
    """Find a square scan by the rotator index, which counts its places from 1 on.

    Where the index jumps or stays, frames are missing or come twice. That can be told only if the
    headers of all frames are at hand; otherwise the index has to go up by one in those that are.
    """
    steps = np.flatnonzero(np.diff(rotator) > 0)
    if not len(steps):
        return None
    first = int(steps[0]) + int(rotator[steps[0]] == 0)
    told_by = "Index_of_rotator of the frame headers"
    if len(rotator) < n_frames:
        count, stop = last, len(rotator)
        if (np.diff(rotator[first:]) != 1).any() or rotator[first] != 1:
            return None
    else:
        stop = int(steps[-1]) + 2
        count = int(rotator[stop - 1])
    side = math.isqrt(count)
    used = (n_frames if len(rotator) < n_frames else stop) - first
    if side * side != count or side < 2 or not count / 2 <= used <= 2 * count:
        return None  # it counts something else
    if len(rotator) < n_frames:
        return Scan(first, (side, side), None, told_by) if count <= used else None
    indices = rotator[first:stop]
    if (np.diff(indices) < 0).any() or indices[0] < 1:
        return None
    # Frames with one index fill the places up to the next index, as many as there are.
    starts = np.flatnonzero(np.diff(indices, prepend=0))
    order = np.arange(len(indices)) - np.repeat(starts, np.diff(starts, append=len(indices)))
    room = np.diff(indices[starts], append=count + 1)
    fits = order < np.repeat(room, np.diff(starts, append=len(indices)))
    numbers = np.full(count, -1, dtype=np.int64)
    numbers[(indices - 1 + order)[fits]] = first + np.flatnonzero(fits)
    return Scan(first, (side, side), numbers, told_by)


def snake(shape: tuple[int, ...], first: int, numbers: Index | None, hysteresis: int) -> Index:
    """Turn every second row of a scan round, and shift it."""
    if numbers is None:
        numbers = first + np.arange(math.prod(shape), dtype=np.int64)
    rows = numbers.reshape(shape).copy()
    rows[..., 1::2, :] = np.roll(rows[..., 1::2, ::-1], hysteresis, axis=-1)
    return rows.ravel()
