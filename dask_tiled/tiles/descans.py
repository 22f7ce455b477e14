"""The path of the beam over the detector during a scan: descan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import TilingError, check_whole
from dask_tiled.measuring.descans import fit_positions, powers_of, terms
from dask_tiled.measuring.disks import positions_of, sampled_frames
from dask_tiled.model.indexing import Array
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.tile_functions import reducible

FRAMES = 1024
"""Number of frames to which the path of the beam is fitted."""


@dataclass(frozen=True)
class Descan:
    """The path of the beam over the detector, as a polynomial of the scan position.

    Attributes
    ----------
    shape : tuple of int
        Shape of the scan.
    order : int
        Degree of the polynomial: 1 is a plane.
    coefficients : tuple of (float, float)
        Of the terms, (y, x) in pixels; the corners of the scan are at -1 and 1.
    error : float
        Usual distance of the beam from the path, in pixels.
    outliers : float
        Share of the frames that were left out.
    frames, of : int
        Number of frames that were read, and of all frames.

    Examples
    --------
    >>> import dask_tiled
    >>> from dask_tiled import tiles
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> path = tiles.descan(arr)
    >>> path.shifts().shape
    (60, 64, 2)
    """

    shape: tuple[int, ...]
    order: int
    coefficients: tuple[tuple[float, float], ...]
    error: float
    outliers: float
    frames: int
    of: int

    def shifts(self, shape: tuple[int, ...] | None = None) -> npt.NDArray[np.float64]:
        """Return the distance (y, x) of the beam from its mean position, in pixels.

        Parameters
        ----------
        shape : tuple of int, optional
            Shape of the scan, which is compared with that of the measured one.

        Returns
        -------
        numpy.ndarray
            Of the shape of the scan, and 2.

        Raises
        ------
        TilingError
            The scan has another shape.
        """
        if shape is not None and shape != self.shape:
            hint = "Measure the descan of this part."
            problem = "the descan was measured on another scan"
            raise TilingError(problem, expected=f"{self.shape}", found=f"{shape}", hint=hint)
        places = np.indices(self.shape).reshape(len(self.shape), -1).T
        columns = terms(places, self.shape, powers_of(self.order, self.shape))
        path: Array = columns @ np.array(self.coefficients)
        return (path - path.mean(axis=0)).reshape(*self.shape, 2)

    def __str__(self) -> str:
        y, x = np.ptp(self.shifts().reshape(-1, 2), axis=0)
        told = f"the beam moves by {y:.2f} px (y) and {x:.2f} px (x)"
        sample = f", in {self.frames:,} of {self.of:,} frames" if self.frames < self.of else ""
        return f"{told}; {self.error:.2g} px from the path, {self.outliers:.0%} left out{sample}"


def descan(
    arr: Any,
    *,
    order: int = 1,
    mask: npt.ArrayLike | None = None,
    frames: int = FRAMES,
    sig_ndim: int | None = None,
) -> Descan:
    """Fit the path of the beam over the detector during a scan: a plane, or of second order.

    The centre of the bright pixels is measured in a sample of the frames, which this computes.
    Frames far from the path, as those of crystals that deflect the beam, or empty ones, do not
    count. What the sample does to the beam evenly over the whole scan is part of the path.

    Parameters
    ----------
    arr : dask.array.Array
        Frames, nav + sig with two signal axes; or maps of centres of mass in pixels, nav + (2,),
        as of :func:`center_of_mass`.
    order : {1, 2}
        Degree of the polynomial.
    mask : array-like, optional
        Weights of the pixels, of the shape of a frame: those of weight 0 are ignored.
    frames : int
        Size of the sample at most, at equal intervals.
    sig_ndim : int, optional
        As in :func:`dask_tiled.map_tiles`.

    Returns
    -------
    Descan
        For ``descan`` of :func:`center_of_mass` and ``shift`` of :func:`apply_masks`.

    Raises
    ------
    TilingError
        There are too few positions or frames with a beam, frames are not images, or an option is
        invalid.

    Examples
    --------
    >>> import dask_tiled
    >>> from dask_tiled import tiles
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> print(tiles.descan(arr))
    the beam moves by 0... px (y) and 0... px (x); 0.0... px from the path, ...
    """
    x = reducible(arr, sig_ndim)
    check_whole("order", order, least=1, most=2, error=TilingError)
    check_whole("frames, the size of the sample,", frames, least=1, error=TilingError)
    last = shown_of(x.arr).axes[-1] if x.arr.ndim else None
    if last is not None and last.name == "component" and x.arr.shape[-1] == 2:
        if shown_of(x.arr).units not in ("", "px"):
            found = f"centres in {shown_of(x.arr).units}"
            raise TilingError("centres are not in pixels", expected="px", found=found)
        shape = tuple(map(int, x.arr.shape[:-1]))
        positions = np.asarray(x.arr.compute(), float).reshape(-1, 2)
        places = np.indices(shape).reshape(len(shape), -1).T
    else:
        shape = tuple(map(int, x.arr.shape[: x.nav_ndim]))
        weights = None if mask is None else np.asarray(mask)
        if x.arr.ndim - x.nav_ndim != 2 or not x.arr.size:
            expected, found = "frames of two axes", f"shape {x.arr.shape}"
            raise TilingError("the beam is found in images only", expected=expected, found=found)
        if weights is not None and weights.shape != x.arr.shape[x.nav_ndim :]:
            sig = x.arr.shape[x.nav_ndim :]
            raise TilingError("the mask has another shape", expected=sig, found=weights.shape)
        pixels, places = sampled_frames(x, frames)
        positions = positions_of(pixels, weights)
    powers = powers_of(order, shape)
    columns = terms(places, shape, powers)
    seen = np.isfinite(positions).all(axis=1)
    if np.count_nonzero(seen) < 2 * len(powers) or max(shape, default=0) < 2:
        expected = f"{2 * len(powers)} frames with a beam, or more"
        found = f"{np.count_nonzero(seen)} of {len(seen)}"
        raise TilingError("too few frames for the path of the beam", expected=expected, found=found)
    coefficients, error, outliers = fit_positions(columns, positions)
    pairs = tuple((float(y), float(x)) for y, x in coefficients)
    count = int(np.prod(shape))
    return Descan(shape, order, pairs, error, outliers, len(positions), count)
