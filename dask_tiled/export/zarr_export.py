"""Export to zarr: whole chunks, from one task each, visible only when complete."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.array.utils import meta_from_array

from dask_tiled.array.tasks import Grid
from dask_tiled.array.tiled_array import TiledArray, read_once
from dask_tiled.errors import DatasetError, TilingError
from dask_tiled.export.facts import attributes_of, plain
from dask_tiled.export.stores import Target, export_to_path, export_to_store, local_path
from dask_tiled.model.description import Description
from dask_tiled.tiling.bases import largest_divisor, read_chunks, split
from dask_tiled.tiling.negotiation import negotiate

if TYPE_CHECKING:
    import zarr

CHUNK_BYTES = 16 << 20
"""Bytes of a zarr chunk before compression, unless one frame is larger."""


def to_zarr(
    arr: da.Array,
    store: Any,
    *,
    chunks: Any = None,
    compressors: Any = "auto",
    overwrite: bool = False,
    progress: bool | None = None,
    dimension_names: Sequence[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> zarr.Array[Any]:
    """Write an array to zarr, format 3.

    Every zarr chunk is written by exactly one task. At a path, the array is written beside its
    place, as ``store + ".part"``, and moved there when it is complete: an export that was stopped
    is never seen as an array. In any other store it is written in place, and what it replaces is
    removed first, so it must not be what ``arr`` reads. Memory holds as many dask chunks as there
    are workers.

    Parameters
    ----------
    arr : dask.array.Array
        An opened array, or any other with known chunks.
    store : path-like or zarr store
        Where to.
    chunks : optional
        zarr chunks, as dask takes them; by default whole frames, about 16 MiB.
    compressors : optional
        What :func:`zarr.create_array` takes; by default zstd with checksums.
    overwrite : bool
        Replace an array that this function wrote before. Nothing else is ever replaced.
    progress : bool, optional
        Show a progress bar; by default on a terminal.
    dimension_names : sequence of str, optional
        By default those of the opened file.
    attributes : mapping, optional
        More attributes, beside axes and metadata of the opened file. What JSON has no form for is
        written as text.

    Returns
    -------
    zarr.Array
        The array as written.

    Raises
    ------
    DatasetError
        Something else is there already, another export is writing there, or the arguments cannot
        be exported.
    TilingError
        The array has chunks of unknown size, or the zarr chunks do not suit its shape.
    """
    _check(arr, store, attributes)
    grid = _grid(arr, chunks)
    arr = read_once(_aligned(arr, grid))
    if isinstance(compressors, str) and compressors == "auto":
        from zarr.codecs import ZstdCodec

        compressors = ZstdCodec(level=1, checksum=True)
    desc = _description(arr)
    if dimension_names is None and desc is not None:
        dimension_names = desc.dims
    create: dict[str, Any] = {
        "shape": arr.shape,
        "dtype": arr.dtype,
        "chunks": grid,
        "compressors": compressors,
        "dimension_names": dimension_names,
        "attributes": plain({**(attributes or {}), **attributes_of(desc)}),
        "zarr_format": 3,
        "fill_value": np.zeros((), arr.dtype)[()],
        # A chunk that is not there shall mean a fault, never a chunk of zeros.
        "config": {"write_empty_chunks": True},
    }
    show = sys.stderr.isatty() if progress is None else progress
    write = partial(_write, arr, show=show)
    path = local_path(store)
    if path is None:
        return export_to_store(store, create, write, overwrite=overwrite)
    return export_to_path(path, create, write, overwrite=overwrite)


def _check(arr: Any, store: Any, attributes: Any) -> None:
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


def _write_block(
    block: npt.NDArray[Any], target: Target, grid: Grid, block_id: tuple[int, ...]
) -> npt.NDArray[np.bool_]:
    target.write(tuple(slice(*bounds) for bounds in grid.box(block_id)), block)
    return np.ones((1,) * block.ndim, dtype=bool)


def _write(arr: da.Array, array: zarr.Array[Any], *, show: bool) -> None:
    """Write every dask chunk. Their edges are edges of zarr chunks, so no two tasks share one."""
    target = Target(array)
    written = da.map_blocks(
        _write_block,
        arr,
        target,
        Grid.of(arr.chunks),
        chunks=tuple((1,) * n for n in arr.numblocks),
        dtype=bool,
        meta=np.empty((0,) * arr.ndim, dtype=bool),
        name=f"to-zarr-{target.token}",  # never the same twice: no cache can know the result
    )
    done = written.all() if written.ndim else written
    _compute(done, show=show)


def _compute(done: da.Array, *, show: bool) -> None:
    if not show:
        done.compute()
        return
    client, distributed = None, sys.modules.get("distributed")
    if distributed is not None:
        with suppress(ValueError):  # there is none
            client = distributed.get_client()
    if client is None:
        from dask.diagnostics.progress import ProgressBar

        with ProgressBar(out=sys.stderr):
            done.compute()
    else:
        from distributed import progress

        future = client.compute(done)
        progress(future, notebook=False)
        future.result()


def _grid(arr: da.Array, chunks: Any) -> tuple[int, ...]:
    """Choose the zarr chunks: as asked for, or about 16 MiB of whole frames."""
    if chunks is not None:
        axes = read_chunks(chunks, arr.shape, arr.dtype)
        sizes = tuple(max(axis[0], 1) for axis in axes)
        if tuple(map(split, arr.shape, sizes)) != axes:
            raise TilingError("zarr chunks must be equal along an axis", found=axes)
        return sizes
    desc = _description(arr)
    whole = desc.nav_ndim if desc is not None else arr.ndim  # axes that may be cut
    grid = [int(n) for n in arr.chunksize]
    budget = max(1, CHUNK_BYTES // arr.dtype.itemsize)
    for k in range(whole):
        others = math.prod(grid[:k] + grid[k + 1 :])
        limit = max(1, budget // max(1, others))
        grid[k] = largest_divisor(grid[k], limit)
    return tuple(grid)


def _aligned(arr: da.Array, grid: tuple[int, ...]) -> da.Array:
    """Give the array chunks whose edges are edges of the zarr chunks."""
    if not any(n % size for axis, size in zip(arr.chunks, grid, strict=True) for n in axis[:-1]):
        return arr
    desc, wanted = _description(arr), arr.chunksize
    if desc is not None:
        wanted = tuple(axis[0] for axis in negotiate(desc).chunks)
    sizes = [max(size, int(n) // size * size) for n, size in zip(wanted, grid, strict=True)]
    chunks = tuple(split(int(n), size) for n, size in zip(arr.shape, sizes, strict=True))
    if isinstance(arr, TiledArray) and desc is not None:
        return arr.with_chunks(chunks)
    return arr.rechunk(chunks)


def _description(arr: da.Array) -> Description | None:
    return arr.description if isinstance(arr, TiledArray) else None
