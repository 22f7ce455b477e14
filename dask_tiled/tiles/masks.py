"""Virtual detectors and centres of mass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import tokenize

from dask_tiled.engine.jobs import TileInfo
from dask_tiled.errors import TilingError
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array
from dask_tiled.opened.at_once import weighted
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.opened.building import has_tiles
from dask_tiled.opened.job_arrays import Reducible
from dask_tiled.opened.tile_functions import map_tiles, reducible
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.tiles.sparse_masks import SparseMasks, are_sparse, checked_numbers, misfit


def apply_masks(arr: Any, masks: npt.ArrayLike, *, sig_ndim: int | None = None) -> da.Array:
    """Sum the pixels of every frame weighted by masks (virtual detectors), in one pass.

    Parameters
    ----------
    arr : dask.array.Array, or DataArray of xarray that holds one
        Real numbers: nav + sig.
    masks : array-like, or sparse array
        Weights, real or complex: n masks, then the signal axes; or a single mask. They may be
        sparse, of ``scipy.sparse`` or ``sparse``: also as n rows of all pixels of a frame, or as a
        list of masks. Then only nonzero weights take time.
    sig_ndim : int, optional
        As in :func:`dask_tiled.map_tiles`.

    Returns
    -------
    dask.array.Array
        Shape nav + (n,), the last axis named ``mask``; float32, or a wider dtype if the pixels or
        masks require it. A few thousand pixels at a time are summed in this dtype, and these sums
        in float64; with sparse masks all pixels are summed in it.

    Raises
    ------
    TilingError
        The masks are not numeric, or do not have the shape of a frame.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> from dask_tiled import tiles
    >>> masks = [tiles.disk(arr, "1 mrad"), tiles.ring(arr, "10 mrad", "11.5 mrad")]
    >>> tiles.apply_masks(arr, masks).shape
    (60, 64, 2)
    """
    x = reducible(arr, sig_ndim)
    if are_sparse(masks):
        return _masked(x, _under_sparse(x, masks))
    return _under_dense(x, masks, _masked)


def _under_sparse(x: Reducible, masks: Any) -> da.Array:
    arr, nav_ndim = x
    weights = SparseMasks.of(masks, arr.shape[nav_ndim:])
    dtype = np.result_type(arr.dtype, weights.dtype, np.float32)
    shape, func = (weights.count,), partial(_sums, masks=weights)
    return map_tiles(func, arr, dtype=dtype, sig_shape=shape, sig_ndim=arr.ndim - nav_ndim)


def _sums(tile: Array, _: TileInfo, masks: SparseMasks) -> Array:
    return masks.sums(tile)


def _masked(x: Reducible, sums: da.Array) -> da.Array:
    return labelled(sums, [*shown_of(x.arr).axes[: x.nav_ndim], Axis("mask")])


def _under_dense(
    x: Reducible,
    masks: npt.ArrayLike,
    shown: Callable[[Reducible, da.Array], da.Array],
    last: Callable[[Array], Array] = np.asarray,
) -> da.Array:
    """Return ``shown(x, sums)``, whose values are ``last(sums)``."""
    arr = x.arr
    frame = arr.shape[x.nav_ndim :]
    weights = _numbers(masks, "biufc")
    if weights.shape == frame:
        weights = weights[None]
    if weights.shape[1:] != frame or not len(weights):
        raise misfit(weights.shape, frame)
    weights = weights.astype(np.result_type(arr.dtype, weights.dtype, np.float32))

    def make(arr: da.Array) -> da.Array:
        return shown(x._replace(arr=arr), _contracted(arr, weights))

    return weighted(arr, weights, make, last) if isinstance(arr, TiledArray) else make(arr)


def _contracted(arr: da.Array, weights: Array) -> da.Array:
    """Return the sums of frames weighted by masks, as dask computes them."""
    nav_ndim, frame = arr.ndim - weights.ndim + 1, range(1, weights.ndim)
    sig = tuple(range(nav_ndim, arr.ndim))
    if has_tiles():
        return da.tensordot(arr, _held(weights), axes=(sig, tuple(frame)))
    whole = arr.rechunk(dict.fromkeys(sig, -1))  # array expressions have no tensordot on tiles
    chunks = (*whole.chunks[:nav_ndim], (len(weights),))
    product = partial(np.tensordot, b=weights, axes=(sig, frame))
    meta = np.empty((0,) * len(chunks), weights.dtype)
    of: Any = {"drop_axis": sig, "new_axis": nav_ndim, "chunks": chunks, "meta": meta}
    return da.map_blocks(product, whole, dtype=weights.dtype, **of)


def center_of_mass(
    arr: Any, mask: npt.ArrayLike | None = None, *, sig_ndim: int | None = None
) -> da.Array:
    """Return the centre of mass of every frame.

    Parameters
    ----------
    arr : dask.array.Array, or DataArray of xarray that holds one
        Real numbers: nav + sig.
    mask : array-like, optional
        Weights of the pixels, of the shape of a frame.
    sig_ndim : int, optional
        As in :func:`dask_tiled.map_tiles`.

    Returns
    -------
    dask.array.Array
        Shape nav + (2,), float64: (y, x) in pixels of ``arr``, one number for each signal axis; the
        last axis is named ``component``, with their names. It is NaN where the sum of the pixels
        is 0.

    Raises
    ------
    TilingError
        The mask does not hold real numbers, or does not have the shape of a frame.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> from dask_tiled import tiles
    >>> tiles.center_of_mass(arr).shape
    (60, 64, 2)
    """
    x = reducible(arr, sig_ndim)
    arr = x.arr
    frame = arr.shape[x.nav_ndim :]
    weights = np.ones(frame) if mask is None else weights_of(mask, frame)
    single = np.result_type(arr.dtype, np.float32) == np.float32
    planes = np.empty((1 + len(frame), *frame), np.float32 if single else np.float64)
    planes[0] = weights
    for plane, places in zip(planes[1:], np.indices(frame, sparse=True), strict=True):
        np.multiply(weights, places, out=plane, casting="same_kind")
    return _under_dense(x, planes, _centred, _centre)


def _centred(x: Reducible, sums: da.Array) -> da.Array:
    axes = shown_of(x.arr).axes
    names = [axis.name if axis else f"axis {k}" for k, axis in enumerate(axes[x.nav_ndim :])]
    chunks = (*sums.chunks[:-1], (len(names),))
    named = {"token": "center_of_mass", "dtype": np.float64}
    found = da.map_blocks(_centre, sums, chunks=chunks, **named)
    components = Axis("component", labels=tuple(names))
    return labelled(found, [*axes[: x.nav_ndim], components], "px")


def weights_of(mask: npt.ArrayLike, frame: tuple[int, ...]) -> Array:
    """Return real weights of the pixels of a frame, as float64."""
    weights = _numbers(mask, "biuf").astype(np.float64)
    if weights.shape != frame:
        raise TilingError("the mask has another shape", expected=frame, found=weights.shape)
    return weights


def _held(weights: Array) -> da.Array:
    """Wrap weights in a single chunk: dask would split large ones, and the frames too."""
    name = f"masks-{tokenize(weights)}"
    chunks = tuple((length,) for length in weights.shape)
    return da.Array({(name, *(0,) * weights.ndim): weights}, name, chunks, meta=weights[:0])


def _numbers(masks: npt.ArrayLike, kinds: str) -> Array:
    try:
        weights = np.asarray(masks)
    except ValueError as error:
        raise TilingError("masks are not an array", found=repr(error)) from error
    return checked_numbers(weights, kinds)


def _centre(sums: Array) -> Array:
    with np.errstate(all="ignore"):
        return sums[..., 1:].astype(np.float64) / sums[..., :1]
