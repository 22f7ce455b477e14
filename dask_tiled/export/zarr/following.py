"""Export of files that grow: what is complete is written as it comes, shown when all is there."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from dask.base import tokenize

from dask_tiled.array.given import Given
from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.blocks.alignment import aligned_chunks
from dask_tiled.blocks.bars import progress_bar
from dask_tiled.errors import DatasetError, StaleFileError, warn
from dask_tiled.export.zarr.grids import grids_of
from dask_tiled.export.zarr.layout import Settings
from dask_tiled.export.zarr.plan import Step, plan_of
from dask_tiled.export.zarr.pyramids import Stored
from dask_tiled.export.zarr.targets import Target, write_blocks
from dask_tiled.model.description import Description
from dask_tiled.model.growth import Sample
from dask_tiled.storing.beginning import begin
from dask_tiled.storing.folders import local_path
from dask_tiled.storing.places import Place
from dask_tiled.tiling.bases import split
from dask_tiled.tiling.scheme import negotiate

POLL = 0.1
"""Seconds from one look at the files to the next, at least."""
_SAMPLE, _PARTIAL = "#sample", "#partial"
"""What the journal notes beside keys; no key ends so."""
_SAMPLES = 64
"""So many samples of frames are compared before an export goes on."""


class _Rows(NamedTuple):
    """Rows of the first axis that can be written."""

    arr: TiledArray
    """The array as it is now."""
    first: int
    stop: int
    complete: bool
    """Whether nothing of them can change any more."""


def check_seconds(name: str, value: Any) -> float:
    """Take a length of time from a caller.

    Raises
    ------
    DatasetError
        It is no positive number.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not value > 0:
        problem = f"{name} must be a length of time"
        raise DatasetError(problem, expected="seconds, more than 0", found=repr(value))
    return float(value)


def _description_of_growing(arr: Any) -> Description:
    """Return what an array that can be followed shows.

    Raises
    ------
    DatasetError
        It cannot be followed.
    """
    desc = arr.description if isinstance(arr, TiledArray) else None
    if desc is None or not desc.nav_ndim or not arr.can_refresh:
        raise DatasetError(
            "the array cannot be followed",
            expected="an array of frames as it was opened",
            found=type(arr).__name__ if desc is None else "a part of one, or one frame",
        )
    return desc


def _rows_as_they_come(arr: TiledArray, step: int, rest: float) -> Iterator[_Rows]:
    """Yield rows of an array as soon as all their frames are there, and what is left in the end.

    Parameters
    ----------
    step : int
        _Rows are given so many at a time, or a multiple of that.
    rest : float
        Seconds without growth after which nothing more is expected.

    Yields
    ------
    _Rows
        In their order. The last ones may lack frames, and may be none.
    """
    seen, done, since, failed = _Seen(), 0, time.monotonic(), None
    seen.look(_description_of_growing(arr))
    while True:
        desc = _description_of_growing(arr)
        rows = _rows_there(desc)
        there = rows // step * step
        if there > done:
            yield _Rows(arr, done, there, complete=True)
            done = there
        told = rows == desc.shape[0] and (arr.is_settled or seen.foretold(desc))
        rests = time.monotonic() - since > rest
        if failed is not None and rests:
            raise failed
        if (told and failed is None) or rests:
            break
        started = time.monotonic()
        time.sleep(POLL)
        try:
            new, failed = _refreshed(arr), None
        except StaleFileError:
            raise
        except DatasetError as error:  # a header may be half written
            failed = error
            continue
        now = _description_of_growing(new)
        _check_same(desc, now, done)
        if _extent(now) != _extent(desc):
            since = started
        seen.look(now)
        arr = new
    absent, count = len(desc.missing), math.prod(desc.nav_shape)
    if absent:
        path = desc.files[-1].path
        message = f"{path}: no more frames have come; {absent} of {count} are missing"
        warn(message)
    yield _Rows(arr, done, desc.shape[0], complete=told)


def _refreshed(arr: TiledArray) -> TiledArray:
    found = arr.refresh()
    assert isinstance(found, TiledArray)  # noqa: S101 - for the type checker
    return found


class _Seen:
    """What headers have said of the number of frames before these were there."""

    def __init__(self) -> None:
        self.count = 0
        self.ahead = set[int]()

    def look(self, desc: Description) -> None:
        """Note how far the frames are."""
        count, there = math.prod(desc.nav_shape), desc.layout.n_frames
        if count != self.count:  # a header that counts along with the frames tells nothing
            self.count, self.ahead = count, set()
        if there < count:
            self.ahead.add(there)

    def foretold(self, desc: Description) -> bool:
        """Return whether the number stood there while frames came."""
        return math.prod(desc.nav_shape) == self.count and len(self.ahead) > 1


def _extent(desc: Description) -> tuple[Any, ...]:
    return desc.layout.n_frames, desc.shape, tuple((file.path, file.size) for file in desc.files)


def _rows_there(desc: Description) -> int:
    """Count the rows from the first on whose frames are all there."""
    selection, there = desc.layout.selection, desc.layout.n_frames
    length, inner = desc.shape[0], math.prod(desc.nav_shape[1:])
    if selection.numbers is None:
        return min(length, max(0, (there - selection.first) // inner))
    late = np.flatnonzero(selection.numbers >= there)
    return int(late[0]) // inner if len(late) else length


def _check_same(old: Description, new: Description, done: int) -> None:
    """Make sure that what has been written is still where it was; what axes are called may come."""
    places = np.arange(done * math.prod(old.nav_shape[1:]), dtype=np.int64)
    same = (old.shape[1:], old.dtype) == (new.shape[1:], new.dtype)
    if same and done <= new.shape[0]:
        one, other = (desc.layout.selection.at(places) for desc in (old, new))
        same = np.array_equal(one, other)
    if not same:
        raise DatasetError(
            "the scan has taken another shape while it was followed",
            path=old.files[0].path,
            expected=f"{old.dtype} of shape {old.shape}, or longer",
            found=f"{new.dtype} of shape {new.shape}",
            hint="Pass a nav_shape when you open it.",
        )


def _attempt_of(step: Step, desc: Description, settings: Settings) -> str:
    """Return what exports have in common that may continue one another, however long the files."""
    layout, selection = desc.layout, desc.layout.selection
    sample = Sample.of(layout, 0)
    numbers = None if selection.numbers is None else selection.numbers.tobytes()
    source = tokenize(
        layout.files[0].path,
        layout.files[0].inode,
        sample and sample.digest,
        repr((layout.decoders, layout.sig_shape)),
        desc.conversion,
        (selection.first, desc.nav_shape[1:], numbers),
    )
    prefix = step.stack.base.prefix
    document = json.loads(step.documents[f"{prefix}zarr.json"])
    for name in ("shape", "attributes"):  # they say how many frames there are
        del document[name]
    told = tokenize(json.dumps(document, sort_keys=True), prefix, settings.attributes)
    return f"{source}-{told}"


def follow_files(
    arr: Any,
    store: Any,
    settings: Settings,
    rest: float,
    *,
    overwrite: bool,
    resume: bool,
    show: bool | None,
) -> None:
    """Have rows written beside a path as they come, and all moved there in the end.

    Parameters
    ----------
    rest : float
        Seconds without growth after which nothing more is expected.
    show : bool, optional
        Show a progress bar; by default in a terminal and in a notebook. It is as long as what is
        known of the array.

    Raises
    ------
    DatasetError
        The array cannot be followed, or not so, or to another place than a path.
    """
    if settings.pyramid:
        hint = "Export it once more when it is complete."
        raise DatasetError("no pyramid is made of files that are followed", hint=hint)
    if local_path(store) is None:
        raise DatasetError("only to a path files are followed", path=str(store))
    _description_of_growing(arr)
    arr = arr.refresh()
    # Zarr chunks and tasks are chosen once, however long the array becomes.
    long = Given.of(_at_length(arr))
    chunk, shard = grids_of(long, settings.chunks, settings.shards)
    sizes = [axis[0] for axis in aligned_chunks(long, shard or chunk)]

    def step_of(now: TiledArray) -> Step:
        (step,) = plan_of(Given.of(now), settings, first=Stored(now.shape, chunk, shard)).steps
        return step

    attempt = _attempt_of(step_of(arr), _description_of_growing(arr), settings)
    hidden = None if show is None else not show
    with (
        begin(store, [attempt], lambda _: False, overwrite=overwrite, resume=resume) as (place,),
        progress_bar(desc="to_zarr", unit="B", unit_scale=True, disable=hidden) as bar,
    ):
        done = None
        for rows in _rows_as_they_come(arr, sizes[0], rest):
            if done is None:
                done = _still_right(place, rows.arr)
            step, nbytes = step_of(rows.arr), int(rows.arr.nbytes)
            if not rows.complete:
                keys = _keys(step, rows)
                place.note({key + _PARTIAL: [0] for key in keys})
                done -= set(keys)
            blocks = rows.arr.with_chunks(tuple(map(split, rows.arr.shape, sizes)))
            some = range(rows.first // sizes[0], -(-rows.stop // sizes[0]))
            write_blocks(blocks, Target(step.stack, place), done, show=False, rows=some)
            if rows.complete:
                _note_sample(place, rows)
            bar.total = nbytes
            bar.update((rows.stop - rows.first) * nbytes // rows.arr.shape[0])
        place.commit(step.documents, step.keys())


def _keys(step: Step, rows: _Rows) -> list[str]:
    """List the keys of rows."""
    others = ((0, n) for n in rows.arr.shape[1:])
    return [*step.stack.keys(((rows.first, rows.stop), *others))]


def _note_sample(place: Place, rows: _Rows) -> None:
    """Note a frame of what was written, by which the file is known again."""
    layout = _description_of_growing(rows.arr).layout
    frame = layout.n_frames - 1
    sample = Sample.of(layout, frame)
    if sample is not None:
        place.note({_SAMPLE: [frame, int(sample.digest, 16)]})


LOOKED_AT = 1 << 20
"""Chunks are chosen as for so many frames, where their number is not known."""


def _at_length(arr: TiledArray) -> TiledArray:
    """Show an array that becomes longer as one of many frames, which are missing yet."""
    desc = _description_of_growing(arr)
    selection = desc.layout.selection
    if arr.is_settled or desc.nav_ndim > 1 or selection.numbers is not None:
        return arr
    longer = desc.with_frames((LOOKED_AT,), selection.first)
    return TiledArray(longer, negotiate(longer, arr.scheme.requests), arr.io)


def _still_right(place: Place, arr: TiledArray) -> set[str]:
    """Find what an export that was stopped has left, if it was of the same frames."""
    noted = place.noted()
    layout = _description_of_growing(arr).layout
    samples = sorted(noted.pop(_SAMPLE, []))
    for frame, digest in samples[:: -(-len(samples) // _SAMPLES) or 1]:
        sample = Sample.of(layout, frame) if frame < layout.n_frames else None
        if sample is None or int(sample.digest, 16) != digest:
            path = layout.files[-1].path
            message = (
                f"{path}: it is no longer the file that was followed; the export starts afresh"
            )
            warn(message)
            return set()
    partial = {key.removesuffix(_PARTIAL) for key in noted if key.endswith(_PARTIAL)}
    return place.whole() - partial
