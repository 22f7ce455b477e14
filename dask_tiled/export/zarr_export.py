"""Export to zarr: whole shards or chunks, from one task each, visible only when complete."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.array.utils import meta_from_array
from dask.base import tokenize

from dask_tiled.array.axes import Shown, shown_of
from dask_tiled.array.tasks import Grid
from dask_tiled.array.tiled_array import TiledArray, read_once
from dask_tiled.errors import DatasetError, TilingError
from dask_tiled.export.alignment import aligned, description_of, grown
from dask_tiled.export.encoding import Encoder
from dask_tiled.export.facts import MARK, attributes_of, plain
from dask_tiled.export.following import (
    Rows,
    at_length,
    attempt_of,
    check_seconds,
    description_of_growing,
    export_growing,
    rows_as_they_come,
)
from dask_tiled.export.group import DATA, consolidate, coordinates_of, write_coordinates
from dask_tiled.export.ome import image_of
from dask_tiled.export.parts import Array
from dask_tiled.export.running import run_on_blocks
from dask_tiled.export.sources import may_read
from dask_tiled.export.stores import WRITER, Template, export_to_path, export_to_store, local_path
from dask_tiled.export.targets import Target
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import largest_divisor, read_chunks, split

if TYPE_CHECKING:
    import zarr

CHUNK_BYTES = 1 << 20
"""Bytes of a zarr chunk before compression, unless one frame is larger: they stay in the cache from
the file to the compressor."""
SHARD_BYTES = 16 << 20
"""Bytes of a shard before compression: to make a file takes as long as to compress some 100 kB."""


_LAYOUTS = Literal["array", "group"]


def to_zarr(
    arr: da.Array,
    store: Any,
    *,
    chunks: Any = None,
    shards: Any = None,
    compressors: Any = "auto",
    layout: _LAYOUTS = "group",
    overwrite: bool = False,
    resume: bool = True,
    progress: bool | None = None,
    dimension_names: Sequence[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    follow: bool = False,
    rest: float = 10.0,
) -> zarr.Array[Any]:
    """Write an array to zarr, format 3.

    What zarr stores under one key, a shard or a chunk, is written by exactly one task, and ends
    with its CRC32C: whoever reads it is told of any damage. Zeros are stored, too, so that what is
    missing is never taken for zeros.

    Of an opened array each worker holds a zarr chunk at a time, and what a shard is encoded to; of
    any other array, a dask chunk, too.

    Parameters
    ----------
    arr : dask.array.Array
        An opened array, or any other with known chunks.
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
        Replace an array that this function wrote before, and nobody changed but for its pixels.
        Nothing else is ever replaced.
    resume : bool
        Go on where an export of the same array with the same settings to the same place was
        stopped: what the journal has, and is found whole, is not computed again. Without it, that
        is thrown away.
    progress : bool, optional
        Show a progress bar; by default in a terminal and in a notebook.
    dimension_names : sequence of str, optional
        By default those of the opened file, also of the axes that are left in what was computed of
        it; in a group, others are called as xarray does, ``dim_0`` and so on.
    attributes : mapping, optional
        More attributes of the array, beside axes and metadata of the opened file. What JSON has no
        form for is written as text.
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
        A file that is followed was replaced, cut off or written anew.
    TilingError
        The array has chunks of unknown size, or the zarr chunks or shards do not suit its shape.

    Notes
    -----
    At a path, the array is written beside its place, below ``store + ".part"``, together with a
    journal, and moved to its place when it is complete: an export that was stopped is never seen as
    an array, and the next call goes on with it. Files are flushed to the disk before they show. An
    array that is replaced stays until then, so it may be what ``arr`` reads.

    In any other store it is written in place, and what tells readers of it comes last. What it
    replaces is removed first, so an array that may read it is refused. Of two exports to one place,
    the one that has begun last goes on.

    Arrays are the same if dask gives them the same name. It does so for files that have not
    changed, and for what is computed of them in the same way.
    """
    import zarr

    _check(arr, store, attributes, layout)
    if follow:
        settings = _Settings(
            chunks, shards, compressors, layout, dimension_names, attributes, overwrite, resume
        )
        return _follow(arr, store, settings, check_seconds("rest", rest), show=progress)
    grid, shard = _grids(arr, chunks, shards)
    source = tokenize(_source_token(arr))
    shown = shown_of(arr)
    names = _names(shown, dimension_names, layout)
    template = _template(
        arr,
        source,
        grid,
        shard,
        compressors,
        shown=shown,
        layout=layout,
        names=names,
        attributes=attributes,
    )
    arr = read_once(aligned(arr, shard or grid))
    member = template.prefix.removesuffix("/")

    def write(target: Target, proven: set[str]) -> None:
        _write(arr, target, proven, show=progress)

    path = local_path(store)
    if path is not None:
        export_to_path(path, template, write, overwrite=overwrite, resume=resume)
        return zarr.open_array(path, mode="r", path=member)
    is_source = partial(may_read, arr)
    export_to_store(store, template, write, is_source, overwrite=overwrite, resume=resume)
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
    import zarr

    path = local_path(store)
    if path is None:
        raise DatasetError("only to a path files are followed", path=str(store))
    description_of_growing(arr)
    arr = arr.refresh()
    long = at_length(arr)
    grid, shard = _grids(long, settings.chunks, settings.shards)
    sizes = [axis[0] for axis in aligned(long, shard or grid).chunks]

    def make(now: TiledArray) -> Template:
        shown = shown_of(now)
        return _template(
            now,
            "",
            grid,
            shard,
            settings.compressors,
            shown=shown,
            layout=settings.layout,
            names=_names(shown, settings.names, settings.layout),
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
    return zarr.open_array(path, mode="r", path=template.prefix.removesuffix("/"))


def _source_token(arr: da.Array) -> Any:
    """Give what the name of an array is made of; of an opened one, that of the files alone."""
    desc = description_of(arr)
    return arr.name if desc is None else (desc.layout, desc.conversion)


def _template(
    arr: da.Array,
    source: str,
    grid: tuple[int, ...],
    shard: tuple[int, ...] | None,
    compressors: Any,
    *,
    shown: Shown,
    layout: _LAYOUTS,
    names: Any,
    attributes: Mapping[str, Any] | None,
) -> Template:
    """Have zarr make everything but the pixels, in memory."""
    import zarr

    contents: dict[str, Any] = {}
    parent: Any = zarr.storage.MemoryStore(contents)
    mark = attributes_of(*shown)[MARK] | {"written_by": WRITER}
    desc = description_of(arr)
    if desc is not None:
        mark["sig_dims"] = len(desc.sig_shape)
    group = None
    if layout == "group":
        image = image_of(DATA, names, shown.axes)
        group = zarr.create_group(parent, attributes=plain({MARK: _small(mark), **image}))
    array = zarr.create_array(
        parent if group is None else group.store_path,
        name=None if group is None else DATA,
        shape=arr.shape,
        dtype=arr.dtype,
        chunks=grid,
        shards=shard,
        compressors=_checked(compressors, arr.dtype),
        dimension_names=names,
        attributes=plain({**(attributes or {}), MARK: mark}),
        zarr_format=3,
        fill_value=np.zeros((), arr.dtype)[()],
    )
    if group is not None:
        coordinates = coordinates_of(names, shown.axes, arr.shape)
        write_coordinates(group, coordinates, {MARK: _small(mark)})
        consolidate(parent)
    documents = {key: buffer.to_bytes() for key, buffer in contents.items()}
    settings = tokenize(sorted(documents.items()))
    prefix = "" if group is None else f"{DATA}/"
    return Template(documents, Encoder(array), prefix, source, settings)


def _names(shown: Shown, given: Any, layout: _LAYOUTS) -> list[Any] | None:
    """Choose the names of the dimensions: in a group, all have one, as xarray gives it."""
    count = len(shown.axes)
    if given is None:
        known = [axis and axis.name for axis in shown.axes]
        if layout == "array":
            return known if any(known) else None
        return [name or f"dim_{k}" for k, name in enumerate(known)]
    names = None if isinstance(given, str) else list(given)
    if names is None or len(names) != count or not all(isinstance(x, str) for x in names):
        problem = "no names of dimensions"
        raise DatasetError(problem, expected=f"{count} of them, as text", found=repr(given))
    return names


def _small(mark: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what every part of an export says of itself."""
    return {key: mark[key] for key in ("version", "written_by")}


def _checked(compressors: Any, dtype: np.dtype) -> tuple[Any, ...]:
    """Give compressors as zarr takes them, with a checksum behind them."""
    from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

    if isinstance(compressors, str) and compressors == "auto":
        # Counts of a detector leave most bits of a pixel unused: bits of the same place, brought
        # together, are runs of zeros, which LZ4 finds as fast as it can read.
        compressors = ZstdCodec(level=1)
        if dtype.kind in "biufc":
            size = dtype.itemsize
            compressors = BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle", typesize=size)
    if compressors is None:
        compressors = ()
    one = isinstance(compressors, str | Mapping) or not isinstance(compressors, Iterable)
    given = (compressors,) if one else tuple(compressors)
    last = given[-1] if given else None
    name = last.get("name") if isinstance(last, Mapping) else None
    return given if isinstance(last, Crc32cCodec) or name == "crc32c" else (*given, Crc32cCodec())


def _check(arr: Any, store: Any, attributes: Any, layout: Any) -> None:
    """Refuse what cannot be exported, before anything is made."""
    if not isinstance(arr, da.Array):
        raise DatasetError("no dask array", expected="a dask array", found=type(arr).__name__)
    if np.isnan(arr.shape).any():
        raise TilingError("chunks of unknown size", hint="Call compute_chunk_sizes() first.")
    blocks = type(meta_from_array(arr))
    if blocks is not np.ndarray:
        hint = "Fill the gaps first." if issubclass(blocks, np.ma.MaskedArray) else None
        raise DatasetError(
            "zarr cannot hold such blocks",
            expected="numpy arrays",
            found=blocks.__name__,
            hint=hint,
        )
    if store is None or isinstance(store, bytes):
        raise DatasetError("no store", expected="a path or a zarr store", found=repr(store))
    if not isinstance(attributes, Mapping | None):
        raise DatasetError("no attributes", expected="a mapping", found=repr(attributes))
    if layout not in get_args(_LAYOUTS):
        raise DatasetError("no such layout", expected=get_args(_LAYOUTS), found=repr(layout))


def _write_block(
    held: Array | Source, target: Target, grid: Grid, block_id: tuple[int, ...]
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
        return any(key not in proven for key, _ in target.keys(grid.box(block)))

    run_on_blocks(
        _write_block,
        arr,
        target,
        name=f"to-zarr-{target.token}",  # never the same twice: no cache can know the result
        wanted=wanted,
        show=show,
        title="to_zarr",
    )


def _grids(
    arr: da.Array, chunks: Any, shards: Any
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Choose the zarr chunks and the shards: as asked for, or of whole frames."""
    shard = None if shards is None else _equal("shards", shards, arr.shape, arr.dtype)
    if chunks is not None:
        grid = _equal("zarr chunks", chunks, arr.shape, arr.dtype)
    else:
        desc = description_of(arr)
        whole = desc.nav_ndim if desc is not None else arr.ndim  # axes that may be cut
        if shard is None and desc is not None:  # its dask chunks need not be kept
            grid = _cut(arr, arr.shape, whole, CHUNK_BYTES)
            shard = tuple(grown(grid, arr.shape, SHARD_BYTES // arr.dtype.itemsize))
        else:
            shard = shard or _cut(arr, tuple(map(int, arr.chunksize)), whole, SHARD_BYTES)
            grid = _cut(arr, shard, whole, CHUNK_BYTES)
        if shards is None and grid == shard:
            shard = None
    if shard is None:
        return grid, None
    # A shard that holds a whole axis may be longer than that.
    axes = zip(shard, grid, arr.shape, strict=True)
    shard = tuple(-(-n // k) * k if n == size else n for n, k, size in axes)
    if any(n % k for n, k in zip(shard, grid, strict=True)):
        raise TilingError("shards must be multiples of zarr chunks", expected=grid, found=shard)
    return grid, shard


def _cut(arr: da.Array, sizes: tuple[int, ...], whole: int, nbytes: int) -> tuple[int, ...]:
    """Divide sizes along the first axes, so that at most so many bytes are left, if they can."""
    left = list(sizes)
    budget = nbytes // arr.dtype.itemsize
    for k in range(whole):
        limit = max(1, budget // max(1, math.prod(left[:k] + left[k + 1 :])))
        # What is beyond the end of the array need not be divided.
        even = left[k] > limit and left[k] == arr.shape[k]
        left[k] = -(-left[k] // -(-left[k] // limit)) if even else largest_divisor(left[k], limit)
    return tuple(left)


def _equal(what: str, chunks: Any, shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, ...]:
    """Read chunks that are equal along an axis."""
    axes = read_chunks(chunks, shape, dtype)
    sizes = tuple(max(axis[0], 1) for axis in axes)
    if tuple(map(split, shape, sizes)) != axes:
        raise TilingError(f"{what} must be equal along an axis", found=axes)
    return sizes
