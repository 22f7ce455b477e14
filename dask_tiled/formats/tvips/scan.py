"""Scan shape and first frame of a series, inferred from frame headers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dask_tiled.model.doubts import Doubt, inferred_scan, left_over
from dask_tiled.model.indexing import Array, Index

Headers = Mapping[str, Array]


class TvipsScan(NamedTuple):
    """A scan: its first frame, its shape if known, and the source of this.

    ``numbers`` has the frame at every position, if frames are not consecutive.
    """

    first: int = 0
    shape: tuple[int, int] | None = None
    numbers: Index | None = None
    told_by: str = ""
    doubts: tuple[Doubt, ...] = ()


def find_scan(headers: Headers, last: Headers, n_frames: int) -> TvipsScan | None:
    """Return the scan inferred from the first frame headers and the last one, or None."""
    scan = None
    if "Scan_y" in headers:
        scan = by_position(headers["Scan_y"], headers["Scan_x"], n_frames)
    if scan is None and "Index_of_rotator" in headers:
        rotator = headers["Index_of_rotator"].astype(np.int64)
        scan = by_rotator(rotator, int(last["Index_of_rotator"][0]), n_frames)
    return scan


def by_position(y: Array, x: Array, n_frames: int) -> TvipsScan | None:
    """Find a scan by position: it begins at (0, 0) and (0, 1), and has rows of equal length."""
    y, x = (np.trunc(np.nan_to_num(v.astype("f8"), nan=-1.0)) for v in (y, x))
    origins = np.flatnonzero((y == 0) & (x == 0))
    seconds = np.flatnonzero((y == 0) & (x == 1))
    seconds = seconds[seconds > origins[0]] if len(origins) else seconds[:0]
    if not len(seconds):
        return None
    first = int(seconds[0]) - 1
    row = x[first + 1 :]
    backs = np.flatnonzero(row < np.maximum.accumulate(row))
    width = int(row[: backs[0]].max()) + 1 if len(backs) else 0
    height = (n_frames - first) // width if width else 0
    shape, told_by = (height, width) if height else None, "Scan_x and Scan_y of the frame headers"
    last = first + height * width - 1
    is_complete = last < len(y) and (y[last], x[last]) == (height - 1, width - 1)
    doubts = () if is_complete or shape is None else left_over(shape, n_frames - first, told_by)
    return TvipsScan(first, shape, None, told_by, doubts)


def by_rotator(rotator: Index, last: int, n_frames: int) -> TvipsScan | None:
    """Find a square scan by rotator index, which counts positions from 1 on.

    Jumps and repeats of the index are missing and duplicate frames. They are detected only if the
    headers of all frames are given; otherwise the index must increase by one.
    """
    steps = np.flatnonzero(np.diff(rotator) > 0)
    if not len(steps):
        return None
    first = int(steps[0]) + int(rotator[steps[0]] == 0)
    complete = len(rotator) == n_frames
    stop = int(steps[-1]) + 2 if complete else n_frames
    count = int(rotator[stop - 1]) if complete else last
    indices, side, used = rotator[first:stop], math.isqrt(count), stop - first
    if side * side != count or side < 2 or not count / 2 <= used <= 2 * count:
        return None  # the index counts something else
    told_by = "Index_of_rotator of the frame headers"
    why = f"{told_by} counts {count} positions, which make a square"
    shape, doubts = (side, side), (inferred_scan((side, side), why),)
    advances = np.diff(indices)
    if not complete:
        regular = indices[0] == 1 and (advances == 1).all() and count <= used
        return TvipsScan(first, shape, None, told_by, doubts) if regular else None
    if (advances < 0).any():
        return None
    return TvipsScan(first, shape, _place(indices, count, first), told_by, doubts)


def _place(indices: Index, count: int, first: int) -> Index:
    """Place frames with equal index at the free positions before the next index."""
    starts = np.flatnonzero(np.diff(indices, prepend=0))
    lengths = np.diff(starts, append=len(indices))
    order = np.arange(len(indices)) - np.repeat(starts, lengths)
    room = np.diff(indices[starts], append=count + 1)
    fits = order < np.repeat(room, lengths)
    numbers = np.full(count, -1, dtype=np.int64)
    numbers[(indices - 1 + order)[fits]] = first + np.flatnonzero(fits)
    return numbers


def snake(shape: tuple[int, ...], first: int, numbers: Index | None, hysteresis: int) -> Index:
    """Reverse every second row of a scan, and shift it."""
    if numbers is None:
        numbers = first + np.arange(math.prod(shape), dtype=np.int64)
    rows = numbers.reshape(shape).copy()
    rows[..., 1::2, :] = np.roll(rows[..., 1::2, ::-1], hysteresis, axis=-1)
    return rows.ravel()
