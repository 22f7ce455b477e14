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
from dask_tiled.opened.job_arrays import Reducible, job_array
from dask_tiled.opened.tile_functions import map_tiles, reducible, whole_frames
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.tiles.descans import Descan
from dask_tiled.tiles.following import FollowingMasks, shifts_of
from dask_tiled.tiles.lengths import PIXELS
from dask_tiled.tiles.sparse_masks import SparseMasks, are_sparse, checked_numbers, misfit
from dask_tiled.tiles.vectors import ScanRotation, turning


def apply_masks(
    arr: Any,
    masks: npt.ArrayLike,
    *,
    shift: Descan | npt.ArrayLike | None = None,
    sig_ndim: int | None = None,
) -> da.Array:
    """Sum the pixels of every frame weighted by masks (virtual detectors), in one pass.

    Parameters
    ----------
    arr : dask.array.Array, or DataArray of xarray that holds one
        Real numbers: nav + sig.
    masks : array-like, or sparse array
        Weights, real or complex: n masks, then the signal axes; or a single mask. They may be
        sparse, of ``scipy.sparse`` or ``sparse``: also as n rows of all pixels of a frame, or as a
        list of masks. Then only nonzero weights take time.
    shift : Descan or array-like, optional
        Shift (y, x) of the masks in each frame, nav + (2,), in pixels: a :class:`Descan` lets them
        follow the beam. Shifts are rounded to whole pixels; parts of masks that leave the frame do
        not count. For dense, real masks and frames.
    sig_ndim : int, optional
        As in :func:`dask_tiled.map_tiles`.

    Returns
    -------
    dask.array.Array
        Shape nav + (n,), the last axis named ``mask``; float32, or a wider dtype if the pixels or
        masks require it. Sums of integers of 1 or 2 bytes under masks of whole numbers up to 511,
        such as detectors, are exact before they are rounded to this dtype; where chunks cut frames,
        each part is rounded. Otherwise a few thousand pixels at a time are summed in it, and these
        sums in float64; with sparse masks all pixels are summed in it.

    Raises
    ------
    TilingError
        The masks are not numeric, or do not have the shape of a frame; a shift has another shape,
        is not finite, or moves a mask out of a frame.

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
    if shift is not None:
        return _masked(x, _following(x, masks, shift))
    if are_sparse(masks):
        return _masked(x, _under_sparse(x, masks))
    return dense_sums(x, masks)


def _following(x: Reducible, masks: Any, shift: Any) -> da.Array:
    """Return the sums under masks that move from frame to frame."""
    arr, nav_ndim = x
    frame = arr.shape[nav_ndim:]
    if len(frame) != 2 or are_sparse(masks) or arr.dtype.kind not in "biuf":
        expected = "dense masks on frames of two axes, of real numbers"
        raise TilingError("masks cannot follow a shift", expected=expected, found=f"{arr.dtype}")
    weights = _numbers(masks, "biuf")
    weights = weights[None] if weights.shape == frame else weights
    if weights.shape[1:] != frame or not len(weights):
        raise misfit(weights.shape, frame)
    shifts = np.rint(shifts_of(shift, arr.shape[:nav_ndim])).astype(np.int64)
    far = abs(shifts).reshape(-1, 2).max(axis=0, initial=0)
    if any(most >= size for most, size in zip(far, frame, strict=True)):
        expected = f"less than {' x '.join(map(str, frame))} pixels"
        found = f"up to {far[0]} x {far[1]}"
        raise TilingError(
            "a shift moves the masks out of the frame", expected=expected, found=found
        )
    job = FollowingMasks.of(weights, shifts, arr.dtype)
    sig = tuple(range(nav_ndim, arr.ndim))
    return job_array(whole_frames(x), job, gone=sig, tail=(len(weights),))


def dense_sums(x: Reducible, masks: npt.ArrayLike) -> da.Array:
    """Return the sums of the frames of an array under dense masks."""
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
    arr: Any,
    mask: npt.ArrayLike | None = None,
    *,
    descan: Descan | npt.ArrayLike | None = None,
    rotation: ScanRotation | float | None = None,
    sig_ndim: int | None = None,
) -> da.Array:
    """Return the centre of mass of every frame.

    Parameters
    ----------
    arr : dask.array.Array, or DataArray of xarray that holds one
        Real numbers: nav + sig.
    mask : array-like, optional
        Weights of the pixels, of the shape of a frame.
    descan : Descan or array-like, optional
        Path of the beam without the sample, which is subtracted: a :class:`Descan`, or nav + (2,)
        in pixels.
    rotation : ScanRotation or float, optional
        Rotation of the vectors into the axes of the scan, in degrees, around the origin of the
        axes, as of :func:`scan_rotation`.
    sig_ndim : int, optional
        As in :func:`dask_tiled.map_tiles`.

    Returns
    -------
    dask.array.Array
        Shape nav + (2,), float64: (y, x), one number for each signal axis; the last axis is named
        ``component``, with their names. In the units of the axes, from their origin, if they have
        the same one; otherwise in pixels, ``"px"``. It is NaN where the sum of the pixels is 0.

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
    centre, units = _centring(x)
    planes = moment_planes(x, None if mask is None else weights_of(mask, frame))
    found = _under_dense(x, planes, partial(_centred, centre=centre, units=units), centre)
    if descan is None and rotation is None:
        return found
    if len(frame) != 2:
        problem = "a descan and a rotation apply to frames of two axes"
        raise TilingError(problem, found=f"{len(frame)} axes")
    labels = shown_of(found)
    if descan is not None:
        path = shifts_of(descan, arr.shape[: x.nav_ndim]) * _calibration(x)[2]
        found = found - da.from_array(path, chunks=found.chunks)
    if rotation is not None:
        turned = {"dtype": np.dtype(float), "meta": np.empty((0,) * found.ndim)}
        found = da.map_blocks(np.matmul, found, turning(rotation).T, **turned)
    return labelled(found, labels.axes, labels.units)


def moment_planes(x: Reducible, weights: Array | None = None) -> Array:
    """Return the weights of the sums of all pixels, and of their places along each axis."""
    frame = x.arr.shape[x.nav_ndim :]
    single = np.result_type(x.arr.dtype, np.float32) == np.float32
    planes = np.empty((1 + len(frame), *frame), np.float32 if single else np.float64)
    planes[0] = 1 if weights is None else weights
    for plane, places in zip(planes[1:], np.indices(frame, sparse=True), strict=True):
        np.multiply(
            planes[0] if weights is None else weights, places, out=plane, casting="same_kind"
        )
    return planes


def centres_of(x: Reducible, sums: da.Array) -> da.Array:
    """Return centres of mass from sums under the planes of moments."""
    return _centred(x, sums, *_centring(x))


def _centring(x: Reducible) -> tuple[Callable[[Array], Array], str]:
    """Return the function from sums to centres, and their unit."""
    units, offsets, scales = _calibration(x)
    return partial(_centre, offsets=offsets, scales=scales), units


def _calibration(x: Reducible) -> tuple[str, tuple[float, ...], tuple[float, ...]]:
    """Return the unit of centres, and the offsets and scales of the signal axes in it."""
    axes = shown_of(x.arr).axes[x.nav_ndim :]
    known = [axis for axis in axes if axis is not None and axis.units and not axis.coordinates]
    units = {axis.units for axis in known}
    if len(known) < len(axes) or len(units) != 1:
        return PIXELS, (0.0,) * len(axes), (1.0,) * len(axes)
    return units.pop(), tuple(a.offset for a in known), tuple(a.scale for a in known)


def _centred(
    x: Reducible, sums: da.Array, centre: Callable[[Array], Array], units: str
) -> da.Array:
    axes = shown_of(x.arr).axes
    names = [axis.name if axis else f"axis {k}" for k, axis in enumerate(axes[x.nav_ndim :])]
    chunks = (*sums.chunks[:-1], (len(names),))
    named = {"token": "center_of_mass", "dtype": np.dtype(float)}
    found = da.map_blocks(centre, sums, chunks=chunks, **named)
    components = Axis("component", labels=tuple(names))
    return labelled(found, [*axes[: x.nav_ndim], components], units)


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


def _centre(sums: Array, offsets: tuple[float, ...], scales: tuple[float, ...]) -> Array:
    with np.errstate(all="ignore"):
        pixels: Array = sums[..., 1:].astype(np.float64) / sums[..., :1]
        return np.array(offsets) + np.array(scales) * pixels
