"""Export to zarr: whole chunks, from one task each, visible only when complete."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.array.core import normalize_chunks
from dask.base import tokenize

from dask_tiled.division import largest_divisor, split
from dask_tiled.errors import DatasetError, TilingError
from dask_tiled.graph import TiledArray
from dask_tiled.loader import Edges
from dask_tiled.tiling import negotiate

if TYPE_CHECKING:
    import zarr

CHUNK_BYTES = 16 << 20
"""Bytes of a zarr chunk before compression, unless one frame is larger."""
MARK = "dask_tiled"
"""The attribute by which an array is known as written by :func:`to_zarr`."""


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
    is never seen as an array. Memory holds as many dask chunks as there are workers.

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
        More attributes, beside axes and metadata of the opened file.

    Returns
    -------
    zarr.Array
        The array as written, open for reading.

    Raises
    ------
    DatasetError
        Something else is there already.
    TilingError
        The array has chunks of unknown size.
    """
    if np.isnan(arr.shape).any():
        raise TilingError("chunks of unknown size", hint="Call compute_chunk_sizes() first.")
    grid = _grid(arr, chunks)
    arr = _aligned(arr, grid)
    if compressors == "auto":
        from zarr.codecs import ZstdCodec

        compressors = ZstdCodec(level=1, checksum=True)
    desc = arr.description if isinstance(arr, TiledArray) else None
    if dimension_names is None and desc is not None:
        dimension_names = desc.dims
    create: dict[str, Any] = {
        "shape": arr.shape,
        "dtype": arr.dtype,
        "chunks": grid,
        "compressors": compressors,
        "dimension_names": dimension_names,
        "attributes": {**_attributes(arr), **(attributes or {})},
        "zarr_format": 3,
        "fill_value": np.zeros((), arr.dtype)[()],
        # A chunk that is not there shall mean a fault, never a chunk of zeros.
        "config": {"write_empty_chunks": True},
    }
    show = sys.stderr.isatty() if progress is None else progress
    if isinstance(store, (str, os.PathLike)) and "://" not in os.fspath(store):
        return _export_to_path(arr, os.path.abspath(store), create, overwrite=overwrite, show=show)
    return _export_to_store(arr, store, create, overwrite=overwrite, show=show)


def _export_to_path(
    arr: da.Array, path: str, create: dict[str, Any], *, overwrite: bool, show: bool
) -> zarr.Array[Any]:
    import zarr

    part, old = f"{path}.part", f"{path}.old"
    _refuse_foreign(path, overwrite=overwrite)
    for leftover in (part, old):  # of an export that was stopped
        _refuse_foreign(leftover, overwrite=True)
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        target = zarr.create_array(part, **create)
        _write(arr, target, show=show)
        if os.path.lexists(path):
            os.rename(path, old)
        os.rename(part, path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return zarr.open_array(path, mode="r")


def _refuse_foreign(path: str, *, overwrite: bool) -> None:
    """Make sure that there is nothing at a path, or only an array of ours that may go."""
    import zarr

    if not os.path.lexists(path):
        return
    ours = False
    if os.path.isdir(path) and not os.path.islink(path):
        try:
            ours = MARK in zarr.open_array(path, mode="r").attrs
        except Exception:  # noqa: BLE001 - whatever zarr says of it, it is not ours
            ours = False
    if not ours:
        raise DatasetError("something else is there, and stays", path=path)
    if not overwrite:
        raise DatasetError("the array exists", path=path, hint="Pass overwrite=True to replace it.")


def _export_to_store(
    arr: da.Array, store: Any, create: dict[str, Any], *, overwrite: bool, show: bool
) -> zarr.Array[Any]:
    import zarr

    try:
        there = zarr.open(store, mode="r")
    except FileNotFoundError:
        there = None
    if there is not None and not (overwrite and MARK in there.attrs):
        hint = "Pass overwrite=True to replace it." if MARK in there.attrs else None
        raise DatasetError("the store holds something already", path=str(store), hint=hint)
    target = zarr.create_array(store, overwrite=overwrite, **create)
    _write(arr, target, show=show)
    return zarr.open_array(store, mode="r")


class _Target:
    """A zarr array and the edges of the dask chunks, kept from dask's eyes as one value."""

    def __init__(self, array: zarr.Array[Any], edges: tuple[Edges, ...]) -> None:
        self.array = array
        self.edges = edges


def _write_block(
    block: npt.NDArray[Any], target: _Target, block_id: tuple[int, ...]
) -> npt.NDArray[np.bool_]:
    region = tuple(slice(*edges[i]) for edges, i in zip(target.edges, block_id, strict=True))
    target.array[region] = block
    return np.ones((1,) * block.ndim, dtype=bool)


def _write(arr: da.Array, array: zarr.Array[Any], *, show: bool) -> None:
    """Write every dask chunk. Their edges are edges of zarr chunks, so no two tasks share one."""
    written = da.map_blocks(
        _write_block,
        arr,
        _Target(array, tuple(map(Edges, arr.chunks))),
        chunks=tuple((1,) * n for n in arr.numblocks),
        dtype=bool,
        meta=np.empty((0,) * arr.ndim, dtype=bool),
        name=f"to-zarr-{tokenize(arr.name, str(array.store))}",
    )
    done = written.all() if written.ndim else written
    _compute(done, show=show)


def _compute(done: da.Array, *, show: bool) -> None:
    if not show:
        done.compute()
        return
    client = _distributed_client()
    if client is None:
        from dask.diagnostics.progress import ProgressBar

        with ProgressBar(out=sys.stderr):
            done.compute()
    else:
        from distributed import progress

        future = client.compute(done)
        progress(future, notebook=False)
        future.result()


def _distributed_client() -> Any:
    """Give the client that dask would compute with, if there is one."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.get_client()
    except ValueError:
        return None


def _grid(arr: da.Array, chunks: Any) -> tuple[int, ...]:
    """Choose the zarr chunks: as asked for, or about 16 MiB of whole frames."""
    if chunks is not None:
        axes = normalize_chunks(chunks, shape=arr.shape, dtype=arr.dtype)
        sizes = tuple(max(axis[0], 1) for axis in axes)
        if tuple(map(split, arr.shape, sizes)) != axes:
            raise TilingError("zarr chunks must be equal along an axis", found=axes)
        return sizes
    desc = arr.description if isinstance(arr, TiledArray) else None
    whole = desc.nav_ndim if desc is not None else arr.ndim  # axes that may be cut
    grid = [int(n) for n in arr.chunksize]
    budget = max(1, CHUNK_BYTES // arr.dtype.itemsize)
    for k in range(whole):
        others = int(np.prod(grid[:k] + grid[k + 1 :]))
        limit = max(1, budget // others)
        grid[k] = largest_divisor(grid[k], limit)
    return tuple(grid)


def _aligned(arr: da.Array, grid: tuple[int, ...]) -> da.Array:
    """Give the array chunks whose edges are edges of the zarr chunks."""

    def fits(axis: tuple[Any, ...], size: int) -> bool:
        return all(n % size == 0 for n in axis[:-1])

    if all(fits(axis, size) for axis, size in zip(arr.chunks, grid, strict=True)):
        return arr
    wanted = arr.chunksize
    if isinstance(arr, TiledArray) and arr.description is not None:
        wanted = tuple(axis[0] for axis in negotiate(arr.description).chunks)
    sizes = [max(size, int(n) // size * size) for n, size in zip(wanted, grid, strict=True)]
    chunks = tuple(split(int(n), size) for n, size in zip(arr.shape, sizes, strict=True))
    if isinstance(arr, TiledArray) and arr.description is not None:
        return arr.with_chunks(chunks)
    return arr.rechunk(chunks)


def _attributes(arr: da.Array) -> dict[str, Any]:
    """Write down where the array comes from, in terms of JSON."""
    from dask_tiled import __version__

    mark: dict[str, Any] = {"version": __version__}
    desc = arr.description if isinstance(arr, TiledArray) else None
    if desc is not None:
        mark |= {
            "format": desc.format,
            "files": [file.path for file in desc.files],
            "axes": [
                {"name": a.name, "units": a.units, "scale": a.scale, "offset": a.offset}
                for a in desc.axes
            ],
            "metadata": _plain(desc.metadata),
        }
    return {MARK: mark}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return value.item() if isinstance(value, np.generic) else str(value)
