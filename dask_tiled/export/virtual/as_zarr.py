"""Open files as zarr arrays, without a copy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dask_tiled.export.virtual.documents import documents_of, opened_for_zarr
from dask_tiled.export.zarr.group import DATA
from dask_tiled.model.description import Description
from dask_tiled.tiling.bases import Chunks
from dask_tiled.tiling.scheme import negotiate
from dask_tiled.tiling.sizes import equal_chunks

if TYPE_CHECKING:
    import zarr

CHUNK_BYTES = 4 << 20
"""Bytes of a chunk, unless one frame is larger."""


def as_zarr(arr: Any, *, chunks: Any = None) -> zarr.Array[Any]:
    """Present an opened array as a zarr 3 array: nothing is copied, and pixels are read on request.

    Parameters
    ----------
    arr : TiledArray, DataArray of xarray that holds one, or path-like
        An opened array, a part of one, or anything that :func:`open_dataset` opens.
    chunks : optional
        Chunks of zarr, in any form that dask accepts; by default those of the array, or if they
        exceed 4 MiB, chunks in which the file is read efficiently.

    Returns
    -------
    zarr.Array
        Read-only, with the shape, dtype and fill value of ``arr``, the names of its axes, and the
        metadata of the file as attributes. Its ``store`` is a group of the array, ``data``, and the
        coordinates of calibrated axes, which ``xarray.open_zarr(..., consolidated=False)`` opens.
        It can be pickled.

    Raises
    ------
    DatasetError
        The array was computed, or zarr does not support its dtype.
    TilingError
        Chunks are not equal along an axis.

    Notes
    -----
    Each request of zarr for a chunk reads and decodes it, in a thread. Meanwhile memory holds the
    chunks that zarr requests concurrently: ``async.concurrency`` of its configuration, 10 by
    default. If a file has changed since it was opened, :class:`StaleFileError` is raised.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> array = dask_tiled.as_zarr(arr)
    >>> array.shape, array[3, 4].shape
    ((60, 64, 128, 128), (128, 128))
    """
    import zarr

    from dask_tiled.export.virtual.store import GroupContents, VirtualStore

    arr, desc = opened_for_zarr(arr)
    if chunks is None:
        sizes = _default(desc, arr.chunks)
    else:
        sizes = equal_chunks("zarr chunks", chunks, desc.shape, desc.dtype, desc.dims)
    contents = GroupContents(documents_of(desc, sizes), arr._source, sizes)  # noqa: SLF001
    return zarr.open_array(VirtualStore(contents), path=DATA, mode="r")


def _default(desc: Description, chunks: Chunks) -> tuple[int, ...]:
    own = tuple(map(max, chunks))
    if math.prod(own) * desc.dtype.itemsize <= CHUNK_BYTES:
        return own
    return tuple(map(max, negotiate(desc, chunk_bytes=CHUNK_BYTES).chunks))
