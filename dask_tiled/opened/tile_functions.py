"""Functions of users on tiles: map_tiles and reduce_tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.engine.jobs import TileInfo
from dask_tiled.engine.tile_jobs import MapTiles, ReduceTiles, checked, with_info
from dask_tiled.errors import TilingError, check_whole
from dask_tiled.model.indexing import Array
from dask_tiled.opened.inputs import as_array
from dask_tiled.opened.job_arrays import Reducible, job_array
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.tiling.negotiation import TilingRequest, as_requests


def map_tiles(
    func: Callable[..., npt.ArrayLike],
    arr: Any,
    *,
    dtype: npt.DTypeLike | None = None,
    sig_shape: Sequence[int] | None = None,
    tiling: str | TilingRequest | None = None,
    sig_ndim: int | None = None,
) -> da.Array:
    """Apply a function to every tile of an array.

    Each chunk is one task, which decodes tile by tile into a buffer that stays in the cache; a
    decoded chunk never exists in memory.

    Parameters
    ----------
    func : callable
        ``func(tile, info)`` gets a read-only array of frames by signal axes, which is valid only
        until it returns, and a :class:`TileInfo`. It returns an array of the tile's shape, or an
        array of shape ``sig_shape`` for each frame of the tile; a number for each frame has the
        shape ``()``. A function of one argument, such as ``numpy.sqrt``, gets the tile alone.
        Functions compiled by numba are supported.
    arr : dask.array.Array, or DataArray of xarray that holds one
        An opened array, or a slice of one; any other array works, but more slowly.
    dtype : dtype, optional
        Dtype of the results.
    sig_shape : tuple of int, optional
        Shape of the result for a frame; if it differs from the frame's, ``func`` gets whole
        frames. Without it or ``dtype``, ``func`` is called once on a frame of zeros.
    tiling : str or TilingRequest, optional
        Tiles for ``func``. A function of whole frames that returns frames of the same shape needs
        ``TilingRequest("frame")``.
    sig_ndim : int, optional
        Number of trailing signal axes; by default that of an opened array, and 2 for any other.

    Returns
    -------
    dask.array.Array
        Of the shape of ``arr``, or ``nav_shape + sig_shape``.

    Raises
    ------
    TilingError
        ``func`` fails on a frame of zeros, or returns a wrong shape.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> def brightest(tile, info):
    ...     return tile.max(axis=(1, 2))
    >>> dask_tiled.map_tiles(brightest, arr).shape
    (60, 64)
    """
    operand = reducible(arr, sig_ndim)
    arr = operand.arr
    frame = arr.shape[operand.nav_ndim :]
    if sig_shape is not None:
        sizes = sig_shape if isinstance(sig_shape, Sequence) else (sig_shape,)
        sig_shape = tuple(check_whole("every size in sig_shape", n, least=0) for n in sizes)
    if dtype is None or sig_shape is None:
        trial = _try(func, arr.dtype, frame)
        dtype = trial.dtype if dtype is None else dtype
        sig_shape = trial.shape[1:] if sig_shape is None else sig_shape
    request = _request(tiling)
    reduced = sig_shape != frame
    if reduced and request.by not in {"frame", "chunk"}:
        request = replace(request, by="frame")
    if request.by in {"frame", "chunk"}:
        operand = whole_frames(operand)
    job = MapTiles(func, np.dtype(dtype), sig_shape if reduced else None, request)
    sig = tuple(range(operand.nav_ndim, arr.ndim))
    return job_array(operand, job, gone=sig, tail=sig_shape) if reduced else job_array(operand, job)


def reduce_tiles(
    arr: Any,
    *,
    init: npt.ArrayLike | Callable[[], npt.ArrayLike],
    step: Callable[..., npt.ArrayLike | None],
    combine: Callable[[Array, Array], npt.ArrayLike],
    tiling: str | TilingRequest | None = None,
    sig_ndim: int | None = None,
) -> da.Array:
    """Reduce an array tile by tile, in bounded memory.

    Parameters
    ----------
    arr : dask.array.Array, or DataArray of xarray that holds one
        An opened array, or a slice of one; any other array works, but more slowly.
    init : array-like, or callable that returns one
        Initial state of the reduction; every chunk begins with a copy.
    step : callable
        ``step(state, tile, info)`` returns the state after one more tile, or changes it in place
        and returns None. The tile is as in :func:`map_tiles`. A function of two arguments gets no
        ``info``.
    combine : callable
        ``combine(state, other)`` returns the state for the tiles of both; the order of
        combinations must not matter.
    tiling : str or TilingRequest, optional
        Tiles for ``step``.
    sig_ndim : int, optional
        As in :func:`map_tiles`.

    Returns
    -------
    dask.array.Array
        The state for all tiles, in one chunk of the shape and dtype of ``init``.

    Raises
    ------
    TilingError
        The number of signal axes or the request is invalid, or ``step`` or ``combine`` returns
        another shape than that of ``init``.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> import numpy as np
    >>> def add(state, tile, info):
    ...     state += tile.sum(axis=0)
    >>> total = dask_tiled.reduce_tiles(arr, init=np.zeros((128, 128)), step=add, combine=np.add)
    >>> total.compute().shape
    (128, 128)
    """
    operand = reducible(arr, sig_ndim)
    arr = operand.arr
    request = _request(tiling)
    if request.by in {"frame", "chunk"}:
        operand = whole_frames(operand)
    state = np.array(init() if callable(init) else init)
    job = ReduceTiles(state, step, request)
    axes = tuple(range(arr.ndim))
    return job_array(operand, job, gone=axes, tail=state.shape, combine=partial(_merge, combine))


def reducible(data: object, sig_ndim: int | None) -> Reducible:
    """Convert to a dask array, and determine the number of navigation axes."""
    arr = as_array(data, error=TilingError)
    if isinstance(getattr(arr, "_meta", None), np.ma.MaskedArray):
        raise TilingError(
            "tiles do not support masked arrays",
            expected="an array without a mask",
            found="a masked array",
            hint="Fill masked pixels first: dask.array.ma.filled.",
        )
    if sig_ndim is None and isinstance(arr, TiledArray) and arr.description is not None:
        return Reducible(arr, arr.description.nav_ndim)
    if any(np.isnan(n) for axis in arr.chunks for n in axis):
        raise TilingError(
            "the chunks of the array are unknown", hint="Call compute_chunk_sizes() first."
        )
    ndim = min(2, arr.ndim) if sig_ndim is None else sig_ndim
    check_whole(
        "sig_ndim, the number of signal axes,", ndim, least=0, most=arr.ndim, error=TilingError
    )
    return Reducible(arr, arr.ndim - ndim)


def _request(tiling: str | TilingRequest | None) -> TilingRequest:
    """Check the tiling request of a user; None means the usual tiles."""
    (request,) = as_requests(() if tiling is None else [tiling])
    return request


def whole_frames(operand: Reducible) -> Reducible:
    """Rechunk so that no chunk splits frames."""
    if all(n == 1 for n in operand.arr.numblocks[operand.nav_ndim :]):
        return operand
    chunks = operand.arr.chunks[: operand.nav_ndim] + tuple(
        (n,) for n in operand.arr.shape[operand.nav_ndim :]
    )
    if isinstance(operand.arr, TiledArray) and operand.arr.description is not None:
        return operand._replace(arr=operand.arr.with_chunks(chunks))
    return operand._replace(arr=operand.arr.rechunk(chunks))


def _try(func: Callable[..., npt.ArrayLike], dtype: np.dtype, frame: tuple[int, ...]) -> Array:
    """Call a function on a frame of zeros, to infer dtype and shape of its results."""
    tile = np.zeros((1, *frame), dtype)
    tile.flags.writeable = False
    info = TileInfo((0,) * tile.ndim, tile.shape, np.zeros(1, np.int64))
    hint = "With dtype= and sig_shape=, the function is not called in advance."
    try:
        result = np.asarray(with_info(func, 1)(tile, info))
    except Exception as error:
        raise TilingError(
            "the function fails on a frame of zeros", found=repr(error), hint=hint
        ) from error
    if result.shape[:1] != (1,):
        raise TilingError(
            "the function does not return one result for each frame",
            expected=f"an array of shape {tile.shape}, or (1, ...)",
            found=result.shape,
            hint=hint,
        )
    return result


def _merge(
    combine: Callable[[Array, Array], npt.ArrayLike], states: Sequence[Array], axes: tuple[int, ...]
) -> Array:
    """Combine states one by one; the function may change the first in place."""
    first, *others = (state.squeeze(axes) for state in states)
    return reduce(lambda a, b: checked(combine(a, b), a, "combine"), others, first.copy())
