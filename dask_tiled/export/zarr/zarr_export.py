"""Export to zarr: one task writes each shard or chunk, and only complete exports are visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import dask.array as da

from dask_tiled.errors import DatasetError, check_seconds
from dask_tiled.export.zarr import steps
from dask_tiled.export.zarr.following import follow_files
from dask_tiled.export.zarr.layout import Settings
from dask_tiled.export.zarr.plan import plan_of
from dask_tiled.export.zarr.results import arrays_of, results_of
from dask_tiled.export.zarr.several import export_each
from dask_tiled.export.zarr.sources import may_read
from dask_tiled.export.zarr.steps import ExportSource, Layouts, check_blocks
from dask_tiled.model.axes import Axis
from dask_tiled.model.pyramids import Method
from dask_tiled.opened.inputs import arrays_by_name
from dask_tiled.storing.beginning import begin
from dask_tiled.storing.folders import local_path

if TYPE_CHECKING:
    import zarr


def to_zarr(
    arr: Any,
    store: Any,
    *,
    chunks: Any = None,
    shards: Any = None,
    compressors: Any = "auto",
    layout: Layouts = "group",
    overwrite: bool = False,
    resume: bool = True,
    progress: bool | None = None,
    dimension_names: Sequence[str | Axis] | None = None,
    attributes: Mapping[str, Any] | None = None,
    pyramid: bool | int = False,
    pyramid_method: Method | None = None,
    zarr_format: Literal[2, 3] = 3,
    with_results: Mapping[str, Any] | None = None,
    follow: bool = False,
    rest: float = 10.0,
) -> zarr.Array[Any] | zarr.Group:
    """Write an array, or several arrays, to zarr.

    Each zarr key, a shard or a chunk, is written by exactly one task, and in format 3 ends with its
    CRC32C, so that readers detect any damage. Chunks of zeros are stored, too: missing data are
    never read as zeros.

    Besides at most 16 MiB, each worker holds an encoded shard, and pixels: of an opened array those
    of a zarr chunk, if zarr chunks are consecutive whole frames; otherwise those of a task, which
    is a dask chunk, 16 MiB or a shard, whichever is largest. With results, it holds the frames of a
    row of shards. Levels of a pyramid add a third of the pixels of a task.

    Parameters
    ----------
    arr : dask.array.Array, numpy.ndarray, DataArray of xarray, path-like, or mapping
        An opened array, any other with known chunks, or anything that :func:`open_dataset` opens.
        Or several of them by name, such as :func:`open_datasets` returns, or a Dataset of xarray:
        each becomes a node of one group.
    store : path-like or zarr store
        The target; also a URL that fsspec supports.
    chunks : optional
        Chunks of zarr, in any form that dask accepts, or sizes by names of axes; by default whole
        frames, about 1 MiB, or parts of 512 to 1024 pixels a side if a frame has over 16 MiB.
    shards : optional
        Shards, as ``chunks``; multiples of the zarr chunks. By default about 16 MiB, or none if
        ``chunks`` are given.
    compressors : optional
        Any value that :func:`zarr.create_array` accepts; by default Blosc with bit shuffle and LZ4
        for numbers. A checksum follows.
    layout : {"group", "array"}
        With "group", the array is the member ``data`` of a group, with a coordinate array for every
        axis that has a scale, an offset or units, as ``xarray.open_zarr`` expects. With "array",
        only the array is written.
    overwrite : bool
        Replace a zarr array or group, whoever wrote it. At a path, it stays until the new one is
        complete. Nothing else is ever replaced: no other folder, and none with other files.
    resume : bool
        Continue a stopped export of the same array with the same settings to the same place: keys
        in its journal that are intact are not computed again. If False, they are discarded, and
        nothing is kept for later.
    progress : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.
    dimension_names : sequence of str or Axis, optional
        By default those of the opened file, also for the remaining axes of arrays computed from it;
        in a group, unnamed ones are named as in xarray, ``dim_0`` and so on. An :class:`Axis` also
        sets units and scale.
    attributes : mapping, optional
        Further attributes of the array, besides axes and metadata of the opened file, and
        attributes of an xarray object. Values without a form in JSON are written as text.
    pyramid : bool or int
        Also write levels for viewers: this many or, if True, until no halved axis is longer than
        256 pixels. Each level halves y and x of the one before, and z if its step is less than
        twice as long or short; never channels, colours or times. Without axes of these names, the
        signal axes of an opened array are halved, the last two axes of any other, all three of a
        volume.
    pyramid_method : {"mean", "mode", "nearest"}, optional
        Pixels of levels: means of pairs of pixels along each halved axis; of integers, the most
        frequent pixel of each square or cube, the first in C order of those that are as frequent;
        or the first pixel, which is the default for label images of OME-Zarr; means of those are
        refused. Each level is made of the one before. Means have the dtype of the pixels: those of
        integers are rounded to nearest, ties to even; those of booleans are True if at least half
        of the pixels are. At the end of an axis of odd length, means and modes are of the pixels
        that exist.
    zarr_format : {2, 3}
        Format of zarr: images are OME-Zarr 0.4 in format 2, and 0.5 in format 3. Format 2 has no
        shards and no checksums; its compressors are those of numcodecs.
    with_results : mapping of str to array, optional
        Arrays computed from ``arr``, such as virtual images, mean frames and statistics, which are
        stored in the group under these names. Results of ``arr`` itself are computed from the tiles
        that are written, so the files are read once; their values are bit for bit those of
        ``compute()``. Computed before are results of a part of it or of another array, those that
        need several passes, and all of them if the requested ``chunks`` or ``shards`` do not divide
        the chunks of ``arr``. They are held in memory until the export is complete.
    follow : bool
        Follow files that are still being written: write completed rows as they come, to a path. The
        export ends with all frames of the ``nav_shape`` that the array was opened with, or of the
        number in the header; or when the files no longer grow.
    rest : float
        Seconds without growth after which followed files count as finished. Missing frames are then
        filled, with a warning.

    Returns
    -------
    zarr.Array or zarr.Group
        The exported array; the member ``data`` of a group. Of several arrays, the group of their
        nodes.

    Raises
    ------
    DatasetError
        The target exists, another export is writing to it, it cannot be written (the disk is full,
        for example), or the arguments cannot be exported. Or some of several arrays cannot be
        read, which are named; at a path, a new group has the others, and an existing one stays.
    StaleFileError
        A file was changed, replaced or removed; a followed one was changed other than by growing.
    TilingError
        The array has chunks of unknown size, or the zarr chunks or shards do not suit its shape.

    Warns
    -----
    UserWarning
        A stopped export to the same path, of another array or with other settings, is discarded; or
        followed files stopped growing before all frames were there.

    Notes
    -----
    At a path, the array is written to ``store + ".part"``, with a journal, and moved to its place
    when it is complete: an export that was killed, interrupted or cancelled, or that an error has
    ended, is never visible as an array, and the next call resumes it. With ``resume=False``, an
    error or interruption removes what was written. Files are flushed to disk before the move. A
    replaced array stays until then, so ``arr`` may read it.

    On a cluster, a task that fails because of its machine, as of a disk, an absent file or lack of
    memory, is tried on up to three workers, if possible on other hosts. The error of the last one
    is raised, with notes that name the workers.

    If tasks would read the same bytes of an opened array four times or more, as for chunks of few
    pixels of all frames of a large file, an export to a path runs in two steps: all frames are
    first stored in parts, which needs disk space for a second copy until the export is complete.

    In any other store, the array is written in place, and its metadata last. An array that it
    replaces is removed first, so ``arr`` must not read it: if it may, the export is refused. Of two
    exports to one place, the one that began last continues.

    Several arrays are stored one after the other, with equal options, and the group appears at the
    end; after an error or interruption, complete ones are not written again. An error of one array
    does not affect the others: a new group is marked as incomplete, and the same call adds the
    array. Only equal arrays of equal names are added to such a group. Names of
    nodes are those of the arrays, with forbidden characters replaced by "_", and a number after
    equal ones. The group is a series of OME-Zarr images in the layout of bioformats2raw; if all
    names are those of fields, such as "A/1/0" for row, column and number, it is a plate, with
    fields as nodes of the wells; a field that is not an image of OME-Zarr is refused.
    ``xarray.open_datatree`` opens it; if there are pyramids, with ``engine="dask_tiled"``.
    ``dimension_names``, ``with_results`` and ``follow`` apply to one array.

    Arrays are the same if dask gives them the same name: it does so for unchanged files, and for
    equal computations from them.

    Examples
    --------
    >>> import dask_tiled
    >>> import numpy as np
    >>> from dask_tiled.testing import write_mib
    >>> arr = dask_tiled.open_dataset(write_mib("scan.mib", np.ones((24, 32, 64, 64), "uint16")))
    >>> results = {"mean": arr.mean((0, 1)), "sums": arr.sum((2, 3))}
    >>> stored = dask_tiled.to_zarr(arr, "scan.zarr", with_results=results)
    >>> dask_tiled.open_dataset("scan.zarr", dataset="sums").shape
    (24, 32)
    """
    stored_as = pyramid, pyramid_method, zarr_format
    asked = Settings(chunks, shards, compressors, layout, dimension_names, attributes, *stored_as)
    several = arrays_by_name(arr)
    if several is not None:
        own = {"dimension_names": dimension_names, "with_results": with_results, "follow": follow}
        _check_shared(own)
        export_each(several, store, asked, overwrite=overwrite, resume=resume, show=progress)
        return _stored(store)
    source = ExportSource.of(arr, asked)
    results = arrays_of(with_results)
    _check_results(results, layout, follow=follow)
    path = local_path(store)
    with source.on_workers(path, [*results.values()]):
        if not follow:
            beside, relay = results_of(results, source.arr), path is not None
            plan = plan_of(source.given, source.settings, beside, relay=relay)
            attempts = [step.attempt for step in plan.steps]
            reads = partial(may_read, [source.arr, *results.values()])
            with begin(store, attempts, reads, overwrite=overwrite, resume=resume) as places:
                steps.store(plan, source.arr, results, places, show=progress)
        else:
            rest = check_seconds("rest", rest)
            arr, settings, show = source.arr, source.settings, progress
            follow_files(arr, store, settings, rest, overwrite=overwrite, resume=resume, show=show)
    return _stored(store, source.settings.member)


def _stored(store: Any, member: str = "") -> zarr.Array[Any] | zarr.Group:
    """Open the exported array, or the group of several."""
    import zarr

    path = local_path(store)
    if path is not None:  # zarr would treat a name with ``::`` as a URL
        return zarr.open(zarr.storage.LocalStore(path, read_only=True), mode="r", path=member)
    # Stores that cannot be made read-only, such as zip files, refuse mode "r".
    return zarr.open(store, mode="r+", path=member)


def _check_results(results: Mapping[str, da.Array], layout: Any, *, follow: bool) -> None:
    """Check that results can be stored, before anything is written."""
    for one in results.values():
        check_blocks(one)
    if results and layout == "array":
        hint = "Leave out layout='array'."
        raise DatasetError(
            "results can only be stored in a group", found="layout='array'", hint=hint
        )
    if results and follow:
        hint = "Leave out with_results, and export again when the files are complete."
        raise DatasetError("results of growing files cannot be exported", hint=hint)


def _check_shared(options: Mapping[str, Any]) -> None:
    """Refuse options that do not apply to several arrays."""
    for name, value in options.items():
        if value:
            problem, hint = f"{name}= applies to one array", "Export the arrays one by one."
            raise DatasetError(problem, found="several arrays", hint=hint)
