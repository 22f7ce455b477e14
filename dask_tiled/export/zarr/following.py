"""Export growing files: write rows when they are complete, and publish the finished array."""

from __future__ import annotations

import json
from typing import Any

from dask.base import tokenize

from dask_tiled.blocks.alignment import aligned_chunks
from dask_tiled.blocks.bars import progress_bar
from dask_tiled.errors import DatasetError, warn
from dask_tiled.export.zarr.grids import ChunkGrid, grids_of
from dask_tiled.export.zarr.layout import Settings
from dask_tiled.export.zarr.plan import StoreStep, plan_of
from dask_tiled.export.zarr.targets import ZarrTarget, write_blocks
from dask_tiled.export.zarr.windows import with_windows
from dask_tiled.model.description import Description
from dask_tiled.model.growth import Sample
from dask_tiled.model.layout import Layout
from dask_tiled.opened.growing import refreshed, rows_as_they_come, rows_there, with_many_frames
from dask_tiled.opened.spec import Given
from dask_tiled.storing.beginning import begin
from dask_tiled.storing.folders import local_path
from dask_tiled.storing.places import Place
from dask_tiled.tiling.bases import split

_SAMPLE = "#sample"
"""Journal entry of the last complete frame; no key has this name."""
_SAMPLES = 64
"""Maximum number of frames compared before an export is resumed."""


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
    """Write rows to a temporary folder as they arrive; move it to the path at the end.

    Parameters
    ----------
    rest : float
        Seconds without growth after which the files count as finished.
    show : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.

    Raises
    ------
    DatasetError
        The array cannot be followed, a pyramid is requested, or the store is not a path.
    """
    if settings.pyramid:
        hint = "Leave out pyramid, and export again with it when the files are complete."
        raise DatasetError("a pyramid of growing files cannot be written", hint=hint)
    if settings.zarr_format != 3:
        raise DatasetError("growing files can only be exported to format 3", found="zarr_format=2")
    if local_path(store) is None:
        raise DatasetError("growing files can only be exported to a local path", path=str(store))
    arr, desc = refreshed(arr)
    given = Given.of(arr)
    # Zarr chunks and tasks are chosen once, whatever the final length.
    long = given if arr.is_settled else with_many_frames(given, arr.scheme.requests)
    chunk, shard = grids_of(long, settings.chunks, settings.shards)
    sizes = [axis[0] for axis in aligned_chunks(long, shard or chunk)]

    def step_of(now: Given) -> StoreStep:
        (step,) = plan_of(now, settings, first=ChunkGrid(now.shape, chunk, shard)).steps
        return step

    attempt = _attempt_of(step_of(given), desc, settings)
    with (
        begin(store, [attempt], lambda _: False, overwrite=overwrite, resume=resume) as (place,),
        progress_bar(desc="to_zarr", show=show) as bar,
    ):
        done = None
        for rows in rows_as_they_come(arr, sizes[0], rest):
            step, nbytes = step_of(Given.of(rows.arr)), int(rows.arr.nbytes)
            if done is None:
                done = _still_right(place, step, rows.description, sizes[0])
            if rows.complete:
                _note_sample(place, rows.description.layout)
            chunks, target = tuple(map(split, rows.arr.shape, sizes)), ZarrTarget(step.stack, place)
            some = range(rows.first // sizes[0], -(-rows.stop // sizes[0]))
            write_blocks(rows.arr, chunks, target, done, show=False, rows=some)
            bar.total = nbytes
            bar.update((rows.stop - rows.first) * nbytes // rows.arr.shape[0])
        place.commit(with_windows(step.documents, step.stack, place), step.keys())


def _attempt_of(step: StoreStep, desc: Description, settings: Settings) -> str:
    """Return a key: exports with equal keys may resume each other, even if file lengths differ."""
    layout, selection = desc.layout, desc.layout.selection
    sample = Sample.of(layout, 0)
    numbers = None if selection.numbers is None else selection.numbers.tobytes()
    source = tokenize(
        layout.files[0].path,
        layout.files[0].inode,
        sample and sample.digest,
        repr((layout.decoders_until(1), layout.sig_shape)),
        desc.conversion,
        (selection.first, desc.nav_shape[1:], numbers),
    )
    prefix = step.stack.base.prefix
    document = json.loads(step.documents[f"{prefix}zarr.json"])
    for name in ("shape", "attributes"):  # they depend on the number of frames
        del document[name]
    told = tokenize(json.dumps(document, sort_keys=True), prefix, settings.attributes)
    return f"{source}-{told}"


def _note_sample(place: Place, layout: Layout) -> None:
    """Note a digest of the last frame, to check in a later attempt that the file is the same."""
    frame = layout.n_frames - 1
    sample = Sample.of(layout, frame)
    if sample is not None:
        place.note({_SAMPLE: [frame, int(sample.digest, 16)]})


def _still_right(place: Place, step: StoreStep, desc: Description, size: int) -> set[str]:
    """Return the keys of complete rows of a stopped export, if the file still has these frames."""
    layout, samples = desc.layout, sorted(place.noted().get(_SAMPLE, []))
    for frame, digest in samples[:: -(-len(samples) // _SAMPLES) or 1]:
        sample = Sample.of(layout, frame) if frame < layout.n_frames else None
        if sample is None or int(sample.digest, 16) != digest:
            path = layout.files[-1].path
            warn(f"{path}: the file differs from the one of the stopped export, which starts again")
            return set()
    rows = rows_there(desc, samples[-1][0] + 1) if samples else 0
    box = ((0, rows // size * size), *((0, n) for n in desc.shape[1:]))
    return place.whole() & {*step.stack.keys(box)}
