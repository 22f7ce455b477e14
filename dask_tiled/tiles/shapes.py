"""Masks of simple shapes, of the size of a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import TilingError
from dask_tiled.opened.tile_functions import reducible
from dask_tiled.tiles.lengths import Length, Place, SignalAxes, center_of, distances

Mask = npt.NDArray[np.bool_]

ROUNDING = 1e-9
"""Distances within this relative difference of a radius are equal to it."""


def disk(
    arr: Any, radius: Length, center: Sequence[Length] | None = None, *, sig_ndim: int | None = None
) -> Mask:
    """Return a mask of the pixels of a frame that lie within a radius of a centre.

    Parameters
    ----------
    arr : dask.array.Array
        An opened array, or any other: nav + sig.
    radius : float or str
        A number in the units of the signal axes, or in pixels of ``arr`` if they have no units. A
        text with a unit, such as ``"20 mrad"`` or ``"2.5 1/nm"``, is converted to the units of the
        axes, by pint if necessary; ``"10 px"`` always means pixels.
    center : sequence of float or str, optional
        A position on each signal axis, (y, x), in the units of the radius and including the offsets
        of the axes. By default the centre is the mean position of the pixels of the bright disk in
        the mean of a sample of the frames, which is computed by this call.
    sig_ndim : int, optional
        As in :func:`dask_tiled.map_tiles`.

    Returns
    -------
    numpy.ndarray
        Booleans, of the shape of a frame. A pixel belongs to the disk if its centre does, so that
        sums of counts are exact. For pixels that are not square, the disk is an ellipse in pixels.

    Raises
    ------
    TilingError
        The radius or the centre is invalid, or has an incompatible unit; or no
        bright disk is found.

    Examples
    --------
    >>> import dask.array as da
    >>> from dask_tiled import tiles
    >>> tiles.disk(da.zeros((4, 5, 5)), radius=1.5, center=(2, 2)).astype(int)
    array([[0, 0, 0, 0, 0],
           [0, 1, 1, 1, 0],
           [0, 1, 1, 1, 0],
           [0, 1, 1, 1, 0],
           [0, 0, 0, 0, 0]])
    """
    x = reducible(arr, sig_ndim)
    frame = SignalAxes.of(x)
    number, unit = frame.length("radius", radius)
    return _nearer(frame, center_of(x, frame, center), number, unit)


def ring(
    arr: Any,
    inner: Length,
    outer: Length,
    center: Sequence[Length] | None = None,
    *,
    sig_ndim: int | None = None,
) -> Mask:
    """Return a mask of the pixels of a frame between two distances from a centre.

    Parameters
    ----------
    arr : dask.array.Array
        An opened array, or any other: nav + sig.
    inner, outer : float or str
        Distances, given as the radius of :func:`disk`. The pixels at ``inner`` belong to the ring,
        those at ``outer`` do not: the ring and ``disk(arr, inner)`` together are ``disk(arr,
        outer)``.
    center, sig_ndim : optional
        As in :func:`disk`.

    Returns
    -------
    numpy.ndarray
        Booleans, of the shape of a frame.

    Raises
    ------
    TilingError
        As in :func:`disk`, or ``outer`` is less than ``inner``.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> from dask_tiled import tiles
    >>> annulus = tiles.ring(arr, "10 mrad", "11.5 mrad")
    >>> dark_field = (arr * annulus).sum(axis=(2, 3))
    >>> dark_field.shape
    (60, 64)
    """
    x = reducible(arr, sig_ndim)
    frame = SignalAxes.of(x)
    lengths = frame.length("inner", inner), frame.length("outer", outer)
    (least, unit), (most, other) = lengths
    if unit == other and most < least:
        raise TilingError("outer is less than inner", expected=f"at least {inner}", found=outer)
    at = center_of(x, frame, center)
    inside, within = (_nearer(frame, at, *length) for length in lengths)
    return within & ~inside


def _nearer(frame: SignalAxes, at: Place, length: float, unit: str) -> Mask:
    found: Mask = distances(frame.shape, at, frame.steps(unit)) < length * (1 - ROUNDING)
    return found
