"""Arrays of growing files: rows of the first axis, as soon as all their frames exist."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError, StaleFileError, warn
from dask_tiled.model.description import Description
from dask_tiled.model.growth import late_frames, revision
from dask_tiled.model.indexing import Index
from dask_tiled.opened.limits import CHECK_SECONDS, EXPECTED_FRAMES
from dask_tiled.opened.spec import Given
from dask_tiled.opened.tiled_array import TiledArray, description_of
from dask_tiled.tiling.negotiation import TilingRequest
from dask_tiled.tiling.scheme import negotiate


class Rows(NamedTuple):
    """Rows of the first axis that can be written."""

    arr: TiledArray
    """The array in its current state."""
    description: Description
    first: int
    stop: int
    complete: bool
    """Whether the rows are final."""


def description_of_growing(arr: Any) -> Description:
    """Return the description of an array that can be followed.

    Raise a DatasetError if the array cannot be followed.
    """
    desc = description_of(arr)
    if desc is None or not desc.nav_ndim or not arr.can_refresh:
        raise DatasetError(
            "the array cannot be followed",
            expected="a whole opened array of frames",
            found=type(arr).__name__
            if desc is None
            else "a part of an opened array, or a single frame",
        )
    return desc


def with_many_frames(given: Given, requests: Sequence[TilingRequest]) -> Given:
    """Return the metadata of an array with many more frames, if their number is not fixed."""
    desc = given.description
    if desc is None or desc.nav_ndim > 1 or desc.layout.selection.numbers is not None:
        return given
    longer = desc.with_frames((EXPECTED_FRAMES,), desc.layout.selection.first)
    chunks = negotiate(longer, requests).chunks
    return given._replace(shape=longer.shape, chunks=chunks, description=longer)


def rows_as_they_come(arr: TiledArray, step: int, rest: float) -> Iterator[Rows]:
    """Yield rows of an array once all their frames exist, and the remaining rows at the end.

    Parameters
    ----------
    step : int
        Rows are yielded in multiples of this number.
    rest : float
        Seconds without growth after which the files count as complete.

    Yields
    ------
    Rows
        In order. The last may be empty, or lack frames.
    """
    seen, done, failed = _Seen(), 0, None
    grown = looked = time.monotonic()
    desc = description_of_growing(arr)
    seen.look(desc)
    while True:
        rows = rows_there(desc, desc.layout.n_frames)
        there = rows // step * step
        if there > done:
            yield Rows(arr, desc, done, there, complete=True)
            done = there
        told = rows == desc.shape[0] and (arr.is_settled or seen.was_announced(desc))
        rests = looked - grown > rest  # files may grow while rows are written
        if failed is not None and rests:
            raise failed
        if rests and desc.layout.is_by_time:  # the last frames are complete now
            new, now = refreshed(arr, complete=True)
            _check_rows(desc, now, done)
            arr, desc, told = new, now, not now.layout.count_missing()
        if (told and failed is None) or rests:
            break
        time.sleep(CHECK_SECONDS)
        looked = time.monotonic()
        try:
            new, now = refreshed(arr)
            failed = None
        except StaleFileError:
            raise
        except DatasetError as error:  # a header may be half-written
            failed = error
            continue
        _check_rows(desc, now, done)
        if _extent(now) != _extent(desc):
            grown = time.monotonic()
        seen.look(now)
        arr, desc = new, now
    absent, count = len(desc.missing), math.prod(desc.nav_shape)
    if absent:
        path = desc.files[-1].path
        message = f"{path}: the file has stopped growing; {absent} of {count} frames are missing"
        warn(message)
    yield Rows(arr, desc, done, desc.shape[0], complete=told)


def refreshed(arr: Any, *, complete: bool = False) -> tuple[TiledArray, Description]:
    """Refresh an array from its files; return it with its description.

    Raise a DatasetError if the array cannot be followed or refreshed.
    """
    description_of_growing(arr)
    found = arr.refresh(complete=complete)
    return found, description_of_growing(found)


def _check_rows(old: Description, new: Description, done: int) -> None:
    """Check that rows already written are unchanged."""
    check_same(old, new, done)
    late = revision(old.layout, new.layout) if done else ""
    if late and not new.layout.is_by_time:
        written = new.layout.selection.at(_places(new, done))
        late = late if np.isin(late_frames(old.layout, new.layout), written).any() else ""
    if late:
        raise StaleFileError(
            "rows that are already written have changed",
            path=old.files[-1].path,
            expected=f"{old.layout.n_frames} frames as they were",
            found=late,
            hint="Write them again when the file is complete.",
        )


class _Seen:
    """Frame counts that headers announced before the frames were written."""

    def __init__(self) -> None:
        self.count = 0
        self.ahead = set[int]()

    def look(self, desc: Description) -> None:
        """Record the announced and the actual number of frames."""
        count, there = math.prod(desc.nav_shape), desc.layout.n_frames
        if count != self.count:  # headers that are updated frame by frame announce nothing
            self.count, self.ahead = count, set()
        if there < count:
            self.ahead.add(there)

    def was_announced(self, desc: Description) -> bool:
        """Return whether the final number was announced before all frames were written."""
        return math.prod(desc.nav_shape) == self.count and len(self.ahead) > 1


def _extent(desc: Description) -> tuple[Any, ...]:
    return desc.layout.n_frames, desc.shape, tuple((file.path, file.size) for file in desc.files)


def rows_there(desc: Description, there: int) -> int:
    """Return the number of leading rows whose frames are all among the first ``there`` frames."""
    selection = desc.layout.selection
    length, inner = desc.shape[0], math.prod(desc.nav_shape[1:])
    if selection.numbers is None:
        return min(length, max(0, (there - selection.first) // inner))
    late = np.flatnonzero(selection.numbers >= there)
    return int(late[0]) // inner if len(late) else length


def warn_if_revised(old: Description, new: Description) -> bool:
    """Return whether frames have changed that counted as complete or lost; warn if they have."""
    late = revision(old.layout, new.layout)
    if late:
        warn(f"{old.files[-1].path}: {late}")
    return bool(late)


def check_same(old: Description, new: Description, done: int) -> None:
    """Check that rows already written are unchanged; names of axes may change."""
    same = (old.shape[1:], old.dtype) == (new.shape[1:], new.dtype)
    if same and done <= new.shape[0]:
        places = _places(old, done)
        before, after = (desc.layout.selection.at(places) for desc in (old, new))
        same = np.array_equal(before, after)
    if not same:
        raise DatasetError(
            "the shape or dtype of the scan changed while it was followed",
            path=old.files[0].path,
            expected=f"{old.dtype} of shape {old.shape}, or longer",
            found=f"{new.dtype} of shape {new.shape}",
            hint="Pass nav_shape, or sig_shape, to open_dataset.",
        )


def _places(desc: Description, done: int) -> Index:
    """Return the scan positions of the first ``done`` rows."""
    return np.arange(done * math.prod(desc.nav_shape[1:]), dtype=np.int64)
