"""Export to zarr: whole shards or chunks, from one task each, visible only when complete."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import tokenize

from dask_tiled.array.axes import Shown, shown_of
from dask_tiled.array.tasks import Block
from dask_tiled.array.tiled_array import TiledArray, read_once
from dask_tiled.blocks.alignment import aligned, description_of
from dask_tiled.blocks.running import run_on_blocks
from dask_tiled.errors import DatasetError, TilingError
from dask_tiled.export.zarr.following import (
    Rows,
    at_length,
    attempt_of,
    check_seconds,
    description_of_growing,
    export_growing,
    rows_as_they_come,
)
from dask_tiled.export.zarr.grids import grids_of
from dask_tiled.export.zarr.group import DATA, dimension_names
from dask_tiled.export.zarr.labels import own_attributes
from dask_tiled.export.zarr.pyramids import Pyramid, Stored, pyramid_of
from dask_tiled.export.zarr.relay import relayed
from dask_tiled.export.zarr.sources import may_read
from dask_tiled.export.zarr.stored_levels import in_blocks
from dask_tiled.export.zarr.targets import Target
from dask_tiled.export.zarr.templates import Template, template_of
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array
from dask_tiled.model.ome_zarr import image_of
from dask_tiled.opening import open_dataset, opened
from dask_tiled.reading.reader import Source
from dask_tiled.storing.beginning import begin
from dask_tiled.storing.folders import FolderPlace, local_path
from dask_tiled.storing.places import Place
from dask_tiled.tiling.bases import Grid, split

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
    follow: bool = False,
    rest: float = 10.0,
) -> zarr.Array[Any]:
    """Write an array to zarr, format 3.

    What zarr stores under one key, a shard or a chunk, is written by exactly one task, and ends
    with its CRC32C: whoever reads it is told of any damage. Zeros are stored, too, so that what is
    missing is never taken for zeros.

    Each worker holds, beside 16 MiB or less, what a shard is encoded to, and pixels: of an opened
    array those of a zarr chunk, where these are whole frames that follow one another; otherwise
    those of a task, which are a dask chunk, 16 MiB, or a shard, whichever is most. Levels of a
    pyramid add a third of the pixels that a task goes over.

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
    """
    given, arr = arr, opened(arr)
    _check(arr, attributes, layout)
    attributes = own_attributes(given, arr) | dict(attributes or {})
    if follow:
        if pyramid:
            hint = "Export it once more when it is complete."
            raise DatasetError("no pyramid is made of files that are followed", hint=hint)
        settings = _Settings(
            chunks, shards, compressors, layout, dimension_names, attributes, overwrite, resume
        )
        return _follow(arr, store, settings, check_seconds("rest", rest), show=progress)
    first = Stored(arr.shape, *grids_of(arr, chunks, shards))
    source = tokenize(_source_token(arr))
    shown, names = _labelled(arr, dimension_names, layout)
    image = image_of([DATA], names or (), shown.axes) if layout == "group" else {}
    levels = pyramid_of(arr, pyramid, image, first, like=chunks is not None)
    template = template_of(
        arr,
        source,
        first,
        levels,
        compressors,
        shown=shown,
        layout=layout,
        names=names,
        attributes=attributes,
    )
    member = template.prefix.removesuffix("/")

    def write(place: Place, before: Place | None) -> None:
        given, proven = arr, place.whole()
        if isinstance(before, FolderPlace):  # frames that are missing are still known to be
            given = open_dataset(before.store, "zarr", chunks=arr.chunks, missing="fill")
        for stack in template.stack.passes():
            target = Target(stack, place)
            if stack.stored:
                level = stack.base
                document = template.documents[f"{level.prefix}zarr.json"]
                read = partial(target.read, document=document)
                blocks = in_blocks(read, level.encoder.shape, level.encoder.dtype, stack.unit)
            else:
                blocks = read_once(aligned(given, stack.unit))
            _write(blocks, target, proven, show=progress)

    def write_parts(place: Place, _: None) -> None:
        blocks = read_once(aligned(arr, parts.stack.unit))
        _write(blocks, Target(parts.stack, place), place.whole(), show=progress)

    path = local_path(store)
    steps: list[tuple[Template, Any]] = [(template, write)]
    between = None if path is None else relayed(arr, template.stack.passes()[0].unit)
    if between is not None:
        options: Any = {"shown": shown, "layout": "array", "names": None, "attributes": None}
        parts = template_of(arr, source, between, Pyramid(), "auto", **options)
        steps.insert(0, (parts, write_parts))
    attempts, before = [made.attempt for made, _ in steps], None
    reads = partial(may_read, arr)
    with begin(store, attempts, reads, overwrite=overwrite, resume=resume) as places:
        for place, (made, fill) in zip(places, steps, strict=True):
            fill(place, before)
            place.commit(made.documents, made.keys())
            before = place
    return _opened(store, member)


def _opened(store: Any, member: str) -> zarr.Array[Any]:
    """Open what was written."""
    import zarr

    path = local_path(store)
    if path is not None:  # given a path, zarr would take a name with ``::`` for a URL
        place = zarr.storage.LocalStore(path, read_only=True)
        return zarr.open_array(place, mode="r", path=member)
    # Stores that cannot be made read-only, such as zip files, refuse mode "r".
    return zarr.open_array(store, mode="r+", path=member)


class _Settings(NamedTuple):
    """What :func:`to_zarr` is given, of what it passes on."""

    chunks: Any
    shards: Any
    compressors: Any
    layout: _LAYOUTS
    names: Any
    attributes: Mapping[str, Any] | None
    overwrite: bool
    resume: bool


def _follow(
    arr: Any, store: Any, settings: _Settings, rest: float, *, show: bool | None
) -> zarr.Array[Any]:
    """Export files that grow to a path."""
    path = local_path(store)
    if path is None:
        raise DatasetError("only to a path files are followed", path=str(store))
    description_of_growing(arr)
    arr = arr.refresh()
    long = at_length(arr)
    stored = grids_of(long, settings.chunks, settings.shards)
    sizes = [axis[0] for axis in aligned(long, stored[1] or stored[0]).chunks]

    def make(now: TiledArray) -> Template:
        shown, names = _labelled(now, settings.names, settings.layout)
        return template_of(
            now,
            "",
            Stored(now.shape, *stored),
            Pyramid(),
            settings.compressors,
            shown=shown,
            layout=settings.layout,
            names=names,
            attributes=settings.attributes,
        )

    def write(rows: Rows, target: Target, proven: set[str]) -> None:
        shape = rows.arr.shape
        now = rows.arr.with_chunks(tuple(map(split, shape, sizes)))
        some = range(rows.first // sizes[0], -(-rows.stop // sizes[0]))
        _write(now, target, proven, show=False, some=some)

    template = make(arr)
    export_growing(
        path,
        attempt_of(template, description_of_growing(arr), settings.attributes),
        rows_as_they_come(arr, sizes[0], rest),
        make,
        write,
        overwrite=settings.overwrite,
        resume=settings.resume,
        show=show,
    )
    return _opened(path, template.prefix.removesuffix("/"))


def _source_token(arr: da.Array) -> Any:
    """Return what the name of an array is made of; of an opened one, that of the files alone."""
    desc = description_of(arr)
    return arr.name if desc is None else (desc.layout, desc.conversion)


def _labelled(arr: da.Array, given: Any, layout: Any) -> tuple[Shown, list[Any] | None]:
    """Choose the axes, and the names of the dimensions: in a group all have one, as for xarray."""
    shown = shown_of(arr)
    if given is None:
        if layout == "group":
            return shown, dimension_names(shown.axes)
        known = [axis and axis.name for axis in shown.axes]
        return shown, known if any(known) else None
    told = [] if isinstance(given, str) else [*given]
    names = [one.name if isinstance(one, Axis) else one for one in told]
    if len(names) != arr.ndim or not all(isinstance(x, str) for x in names):
        problem = "no names of dimensions"
        raise DatasetError(problem, expected=f"{arr.ndim} of them, as text", found=repr(given))
    pairs = zip(told, shown.axes, strict=True)
    axes = tuple(one if isinstance(one, Axis) else axis for one, axis in pairs)
    return shown._replace(axes=axes), names


def check_blocks(arr: da.Array) -> None:
    """Refuse an array whose chunks cannot be written: of unknown size, masked, or of others.

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
            "such blocks cannot be written",
            expected="numpy arrays",
            found=blocks.__name__,
            hint=hint,
        )


def _check(arr: da.Array, attributes: Any, layout: Any) -> None:
    """Refuse what cannot be exported, before anything is made."""
    check_blocks(arr)
    if not isinstance(attributes, Mapping | None):
        raise DatasetError("no attributes", expected="a mapping", found=repr(attributes))
    if layout not in get_args(_LAYOUTS):
        raise DatasetError("no such layout", expected=get_args(_LAYOUTS), found=repr(layout))


def _write_block(
    held: Array | Source, target: Target, grid: Grid, block_id: Block
) -> npt.NDArray[np.bool_]:
    target.write(grid.box(block_id), held)
    return np.ones((1,) * len(block_id), dtype=bool)


def _write(
    arr: da.Array,
    target: Target,
    proven: set[str],
    *,
    show: bool | None,
    some: Container[int] | None = None,
) -> None:
    """Write dask chunks, or some along the first axis, but those of which all is proven.

    Their edges are edges of what is stored, so no two tasks share a key.
    """
    grid = Grid.of(arr.chunks)

    def wanted(block: tuple[int, ...]) -> bool:
        if some is not None and block[0] not in some:
            return False
        return any(key not in proven for key in target.stack.keys(grid.box(block)))

    run_on_blocks(
        _write_block,
        arr,
        target,
        name=f"to-zarr-{target.token}",  # never the same twice: no cache can know the result
        wanted=wanted,
        show=show,
        title="to_zarr",
    )
