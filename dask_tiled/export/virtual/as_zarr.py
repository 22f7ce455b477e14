"""Open files as zarr arrays, without a copy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dask_tiled.export.virtual.documents import documents_of, shown_where_it_lies
from dask_tiled.export.zarr.group import DATA
from dask_tiled.model.description import Description
from dask_tiled.opening import opened
from dask_tiled.tiling.bases import Chunks
from dask_tiled.tiling.scheme import negotiate
from dask_tiled.tiling.sizes import equal_chunks

if TYPE_CHECKING:
    import zarr

CHUNK_BYTES = 4 << 20
"""Bytes of a chunk, unless one frame is larger."""


def as_zarr(arr: Any, *, chunks: Any = None) -> zarr.Array[Any]:
    """Show an opened array as zarr, format 3: nothing is copied, nothing is read before it is used.

    Parameters
    ----------
    arr : TiledArray, DataArray of xarray that holds one, or path-like
        An opened array, or a part of one; or what :func:`open_dataset` opens.
    chunks : optional
        zarr chunks, as dask takes them; by default those of the array, or where these are larger
        than 4 MiB, such as a file is best read in.

    Returns
    -------
    zarr.Array
        Read-only, of the shape, the type and the fill value of ``arr``, with the names of its axes,
        and what is known of the file as attributes. Its ``store`` is a group with the array,
        ``data``, and coordinates of the axes that the file gives a scale: what
        ``xarray.open_zarr(..., consolidated=False)`` opens. It pickles.

    Raises
    ------
    DatasetError
        The array was computed, or zarr has no type for its pixels.
    TilingError
        Chunks are not equal along an axis.

    Notes
    -----
    A chunk is read and decoded anew whenever zarr asks for it, in a thread. While an array is read,
    memory holds the chunks that zarr asks for at once: ``async.concurrency`` of its configuration,
    10 by default. A file that is not what was opened any more raises :class:`StaleFileError`.
    """
    import zarr

    from dask_tiled.export.virtual.store import Contents, VirtualStore

    arr = opened(arr)
    desc = shown_where_it_lies(arr)
    if chunks is None:
        sizes = _default(desc, arr.chunks)
    else:
        sizes = equal_chunks("zarr chunks", chunks, desc.shape, desc.dtype, desc.dims)
    contents = Contents(documents_of(desc, sizes), arr._source, sizes)  # noqa: SLF001
    return zarr.open_array(VirtualStore(contents), path=DATA, mode="r")


def _default(desc: Description, chunks: Chunks) -> tuple[int, ...]:
    own = tuple(map(max, chunks))
    if math.prod(own) * desc.dtype.itemsize <= CHUNK_BYTES:
        return own
    return tuple(map(max, negotiate(desc, chunk_bytes=CHUNK_BYTES).chunks))
