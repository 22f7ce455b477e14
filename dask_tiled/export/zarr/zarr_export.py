"""Export to zarr: whole shards or chunks, from one task each, visible only when complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

import dask.array as da
import numpy as np

from dask_tiled.array.doors import attributes_in
from dask_tiled.array.given import Given
from dask_tiled.array.tiled_array import read_once
from dask_tiled.errors import DatasetError, TilingError
from dask_tiled.export.zarr.following import check_seconds, follow_files
from dask_tiled.export.zarr.group import own_attributes
from dask_tiled.export.zarr.layout import Settings
from dask_tiled.export.zarr.plan import Plan, plan_of
from dask_tiled.export.zarr.results import arrays_of, computed, encoded, results_of
from dask_tiled.export.zarr.sources import may_read
from dask_tiled.export.zarr.stored_chunks import level_array
from dask_tiled.export.zarr.targets import Target, write_blocks
from dask_tiled.export.zarr.tile_writer import write_and_compute
from dask_tiled.model.axes import Axis
from dask_tiled.opening import opened
from dask_tiled.storing.beginning import begin
from dask_tiled.storing.folders import local_path

if TYPE_CHECKING:
    import zarr

_LAYOUTS = Literal["array", "group"]


def to_zarr(
    arr: Any,
    store: Any,
    *,
    chunks: Any = None,
    shards: Any = None,
    compressors: Any = "auto",
    layout: _LAYOUTS = "group",
    overwrite: bool = False,
    resume: bool = True,
    progress: bool | None = None,
    dimension_names: Sequence[str | Axis] | None = None,
    attributes: Mapping[str, Any] | None = None,
    pyramid: bool | int = False,
    with_results: Mapping[str, Any] | None = None,
    follow: bool = False,
    rest: float = 10.0,
) -> zarr.Array[Any]:
    """Write an array to zarr, format 3.

    What zarr stores under one key, a shard or a chunk, is written by exactly one task, and ends
    with its CRC32C: whoever reads it is told of any damage. Zeros are stored, too, so that what is
    missing is never taken for zeros.

    Each worker holds, beside 16 MiB or less, what a shard is encoded to, and pixels: of an opened
    array those of a zarr chunk, where these are whole frames that follow one another; otherwise
    those of a task, which are a dask chunk, 16 MiB, or a shard, whichever is most. Beside results
    it is those of as many frames as shards are made of. Levels of a pyramid add a third of the
    pixels that a task goes over.

    Parameters
    ----------
    arr : dask.array.Array, numpy.ndarray, DataArray of xarray, or path-like
        An opened array, or any other with known chunks; or what :func:`open_dataset` opens.
    store : path-like or zarr store
        Where to; also an address that fsspec knows.
    chunks : optional
        zarr chunks, as dask takes them; by default whole frames, about 1 MiB.
    shards : optional
        Shards, as dask takes chunks; multiples of the zarr chunks. By default about 16 MiB, or none
        where ``chunks`` are given.
    compressors : optional
        What :func:`zarr.create_array` takes; by default LZ4 after a shuffle of bits, by Blosc, for
        numbers. A checksum follows.
    layout : {"group", "array"}
        Whether the array is the member ``data`` of a group, beside its coordinates: an array for
        every axis that has a scale, an offset or units; or is all that is written. The former is
        what ``xarray.open_zarr`` opens.
    overwrite : bool
        Replace an array or a group of zarr, whoever wrote it. At a path, it stays until the new one
        is complete. Nothing else is ever replaced: no other folder, and none with other files.
    resume : bool
        Go on where an export of the same array with the same settings to the same place was
        stopped: what the journal has, and is found whole, is not computed again. Without it, that
        is thrown away.
    progress : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.
    dimension_names : sequence of str or Axis, optional
        By default those of the opened file, also of the axes that are left in what was computed of
        it; in a group, others are called as xarray does, ``dim_0`` and so on. An :class:`Axis`
        tells units and scale, too.
    attributes : mapping, optional
        More attributes of the array, beside axes and metadata of the opened file, and attributes
        of an object of xarray. What JSON has no form for is written as text.
    pyramid : bool or int
        Write levels for viewers beside the array, too, this many or, if True, until none of the
        axes in question is longer than 256 pixels. Each is made of the one before, of means of two
        pixels along the axes of frames or of a volume: the signal axes of an opened array, the last
        two axes of any other, all three of a volume. Means have the type of the pixels: whole
        numbers are rounded to the nearest, halves to the even one. At the end of an axis of odd
        length, means are of the pixels that are there.
    with_results : mapping of str to array, optional
        What is computed of the array and stored beside it, by the names of these arrays in the
        group: virtual images, mean frames, statistics. Results of ``arr``, as it is given here, are
        computed of the tiles that are written, so that the files are read once; they are, bit for
        bit, what ``compute()`` returns. Results of a part of it or of another array, those that
        take several passes, and all of them where ``chunks`` or ``shards`` that were asked for do
        not divide the chunks of ``arr``, are computed before that. They are held in memory until
        the export is complete.
    follow : bool
        The files are still being written: write what is complete as it comes, to a path. The end
        is there with all frames of the ``nav_shape`` that the array was opened with, or of the
        header that told their number while they came; or when the files rest.
    rest : float
        Seconds without growth after which files that are followed count as finished. Frames that
        are missing then are filled, with a warning.

    Returns
    -------
    zarr.Array
        The array as written; of a group, that member.

    Warns
    -----
    UserWarning
        An export to the same path was stopped, of another array or with other settings: it is
        thrown away. Or files that were followed rest before all frames are there.

    Raises
    ------
    DatasetError
        Something else is there already, another export is writing there, it cannot be written
        (the disk is full, for example), or the arguments cannot be exported.
    StaleFileError
        A file was changed, replaced or removed; one that is followed did not only grow.
    TilingError
        The array has chunks of unknown size, or the zarr chunks or shards do not suit its shape.

    Notes
    -----
    At a path, the array is written beside its place, below ``store + ".part"``, together with a
    journal, and moved to its place when it is complete: an export that was killed, interrupted or
    cancelled is never seen as an array, and the next call goes on with it. An error leaves nothing.
    Files are flushed to the disk before they show. An array that is replaced stays until then, so
    it may be what ``arr`` reads.

    Where tasks would read the same bytes of an opened array four times or more, as for chunks of
    few pixels of all frames of a large file, a path is written in two steps: all frames are stored
    in parts first, which takes as much room once more until the export is complete.

    In any other store it is written in place, and what tells readers of it comes last. What it
    replaces is removed first, so an array that may read it is refused. Of two exports to one place,
    the one that has begun last goes on.

    Arrays are the same if dask gives them the same name. It does so for files that have not
    changed, and for what is computed of them in the same way.

    Examples
    --------
    >>> import dask_tiled
    >>> from dask_tiled.testing import write_mib
    >>> arr = dask_tiled.open_dataset(write_mib("scan.mib", np.ones((24, 32, 64, 64), "uint16")))
    >>> results = {"mean": arr.mean((0, 1)), "sums": arr.sum((2, 3))}
    >>> stored = dask_tiled.to_zarr(arr, "scan.zarr", with_results=results)
    >>> dask_tiled.open_dataset("scan.zarr", dataset="sums").shape
    (24, 32)
    """
    arr, of_xarray = opened(arr), attributes_in(arr)
    _check(arr, attributes, layout)
    results = arrays_of(with_results)
    _check_results(results, layout, follow=follow)
    given, names = Given.of(arr), dimension_names
    attributes = own_attributes(of_xarray, given) | dict(attributes or {})
    settings = Settings(chunks, shards, compressors, layout, names, attributes, pyramid)
    if not follow:
        beside, relay = results_of(results, arr), local_path(store) is not None
        plan = plan_of(given, settings, beside, relay=relay)
        _export(plan, arr, results, store, overwrite=overwrite, resume=resume, show=progress)
    else:
        rest = check_seconds("rest", rest)
        follow_files(arr, store, settings, rest, overwrite=overwrite, resume=resume, show=progress)
    return _opened(store, settings.member)


def _export(
    plan: Plan,
    arr: da.Array,
    results: Mapping[str, da.Array],
    store: Any,
    *,
    overwrite: bool,
    resume: bool,
    show: bool | None,
) -> None:
    """Execute a plan, except for what an earlier attempt has stored."""
    attempts = [step.attempt for step in plan.steps]
    reads = partial(may_read, [arr, *results.values()])
    told = {one.name: one for one in plan.results}
    with begin(store, attempts, reads, overwrite=overwrite, resume=resume) as places:
        # One by one: the values are those of compute(), bit for bit.
        apart = [one for one in plan.results if one.apart]
        made = {one.name: computed(one, results[one.name].compute()) for one in apart}
        for step, place in zip(plan.steps, places, strict=True):
            done = place.whole()
            for some in step.passes:
                target = Target(some.stack, place)
                if some.results:
                    blocks = arr if arr.chunks == some.chunks else arr.rechunk(some.chunks)
                    beside = [results[name] for name in some.results]
                    found = write_and_compute(blocks, target, done, beside, show=show)
                    pairs = zip(some.results, found, strict=True)
                    made |= {name: computed(told[name], pixels) for name, pixels in pairs}
                    continue
                if some.source is None:
                    blocks = read_once(arr, some.chunks)
                else:
                    blocks = level_array(places[some.step], some.source, some.chunks)
                write_blocks(blocks, target, done, show=show)
            # Results are stored with the documents that make them visible.
            stored = (encoded(level, made[level.name]) for level in step.results)
            place.commit(dict(chain(step.documents.items(), *stored)), step.keys())


def _opened(store: Any, member: str) -> zarr.Array[Any]:
    """Open the exported array."""
    import zarr

    path = local_path(store)
    if path is not None:  # given a path, zarr would take a name with ``::`` for a URL
        place = zarr.storage.LocalStore(path, read_only=True)
        return zarr.open_array(place, mode="r", path=member)
    # Stores that cannot be made read-only, such as zip files, refuse mode "r".
    return zarr.open_array(store, mode="r+", path=member)


def check_blocks(arr: da.Array) -> None:
    """Refuse an array with chunks of unknown size, or that are not NumPy arrays.

    Raises
    ------
    TilingError, DatasetError
    """
    if np.isnan(arr.shape).any():
        raise TilingError("chunks of unknown size", hint="Call compute_chunk_sizes() first.")
    blocks = type(getattr(arr, "_meta", np.empty(0)))
    if blocks is not np.ndarray:
        hint = "Fill the gaps first." if issubclass(blocks, np.ma.MaskedArray) else None
        raise DatasetError(
            "chunks of this type cannot be written",
            expected="NumPy arrays",
            found=blocks.__name__,
            hint=hint,
        )


def _check_results(results: Mapping[str, da.Array], layout: Any, *, follow: bool) -> None:
    """Refuse results that cannot be stored, before anything is made."""
    for one in results.values():
        check_blocks(one)
    if results and layout == "array":
        hint = "Leave out layout='array'."
        raise DatasetError("results are stored in a group", found="layout='array'", hint=hint)
    if results and follow:
        hint = "Export it once more when it is complete."
        raise DatasetError("growing files are exported without results", hint=hint)


def _check(arr: da.Array, attributes: Any, layout: Any) -> None:
    """Refuse what cannot be exported, before anything is made."""
    check_blocks(arr)
    if not isinstance(attributes, Mapping | None):
        raise DatasetError("invalid attributes", expected="a mapping", found=repr(attributes))
    if layout not in get_args(_LAYOUTS):
        raise DatasetError("unknown layout", expected=get_args(_LAYOUTS), found=repr(layout))
