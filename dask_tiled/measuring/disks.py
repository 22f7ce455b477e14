"""The bright disk, where the direct beam meets the detector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import TilingError, check_whole
from dask_tiled.measuring.descans import fit_positions, powers_of, terms
from dask_tiled.measuring.disk_fits import Circle, DiskFit, fit_disk
from dask_tiled.measuring.sampling import sampled_places
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.job_arrays import Reducible
from dask_tiled.opened.tile_functions import reducible

FRAMES = 256
"""Number of frames in which the disk of a scan is searched."""
MOST_BYTES = 1 << 26
"""Size of the sample as float32, above which fewer frames are taken."""
MOVING = 0.3
"""Range of the positions of the beam, in pixels, above which frames are aligned."""
FULL, MOST_FULL = 200, 0.02
"""Counts from which a detector may be saturated, and the share of such pixels in the disk."""
DOUBTFUL = 0.87
"""Seen share of the circumference below which the disk is in doubt."""
OVAL = 0.01
"""Ellipticity that is told."""
BLURRED = 0.3
"""Blur of the edge, relative to the radius, that is told."""


@dataclass(frozen=True)
class Disk:
    """The bright disk of a frame, or of the frames of a scan.

    Attributes
    ----------
    center : (float, float)
        Its centre, (y, x), in pixels of the frame; of a scan, at its mean position.
    radius : float
        Its radius, in pixels.
    quality : float
        Share of its circumference where the step from inside to outside is seen, up to 1.
    ellipticity : float
        Ratio of the axes of the ellipse that fits best, less 1; NaN if it is not measured, as of a
        disk that is hidden in part.
    direction : float
        Direction of the major axis in degrees, from x to y.
    blur : float
        Standard deviation of the edge, in pixels.
    frames, of : int
        Number of frames that were read, and of all frames.
    axes : (Axis, Axis)
        Axes of the frame.
    doubts : tuple of str
        What impairs the measurement: a hidden part, saturated pixels, a moving beam.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> disk = dask_tiled.tiles.find_disk(arr)
    >>> round(disk.radius), disk.units, round(disk.radius_in_units, 1)
    (2, 'mrad', 0.8)
    """

    center: tuple[float, float]
    radius: float
    quality: float
    ellipticity: float
    direction: float
    blur: float
    frames: int
    of: int
    axes: tuple[Axis, Axis]
    doubts: tuple[str, ...] = ()

    @property
    def units(self) -> str:
        """Unit of both axes; ``"px"`` if they have none, or different ones."""
        y, x = self.axes
        return x.units if x.units and x.units == y.units else "px"

    @property
    def center_in_units(self) -> tuple[float, float]:
        """The centre, (y, x), in ``units``, with the offsets of the axes."""
        if self.units == "px":
            return self.center
        y, x = (
            axis.offset + axis.scale * at for axis, at in zip(self.axes, self.center, strict=True)
        )
        return y, x

    @property
    def radius_in_units(self) -> float:
        """The radius in ``units``; for pixels that are not square, the mean of both directions."""
        y, x = self.axes
        is_known = self.units != "px"
        return self.radius * (math.sqrt(abs(y.scale * x.scale)) if is_known else 1.0)

    @property
    def circle(self) -> Circle:
        """Its edge, in pixels."""
        return Circle(*self.center, self.radius)

    def mask(self, shape: tuple[int, int]) -> npt.NDArray[np.bool_]:
        """Return a mask of the pixels inside, of a frame of a shape."""
        return self.circle.mask(shape)

    def __str__(self) -> str:
        places = zip(self.axes, self.center_in_units, strict=True)
        at = ", ".join(f"{axis.name} = {place:.4g} {self.units}" for axis, place in places)
        told = f"bright disk at {at}, radius {self.radius_in_units:.4g} {self.units}"
        if self.units != "px":
            told += f" ({self.radius:.4g} px)"
        if self.frames < self.of:
            told += f", in {self.frames:,} of {self.of:,} frames"
        return "; ".join([told, *self.doubts])


def find_disk(
    arr: Any,
    *,
    mask: npt.ArrayLike | None = None,
    frames: int = FRAMES,
    sig_ndim: int | None = None,
) -> Disk:
    """Find the bright disk of the direct beam in a frame, or in a sample of the frames of a scan.

    A circle is laid through the points at half height, by random triples of them, so that a beam
    stop, an edge of the frame or other disks do not move it. Then the profile across the edge is
    fitted to the pixels, where the edge is seen. The frames of a scan in which the beam moves are
    aligned first, by a plane through their centres of mass. This computes the sample.

    Parameters
    ----------
    arr : dask.array.Array, NumPy array, or DataArray of xarray
        A frame, or nav + sig with two signal axes.
    mask : array-like, optional
        Weights of the pixels, of the shape of a frame: those of weight 0 are ignored.
    frames : int
        Size of the sample at most, at equal intervals; of large frames, fewer are taken.
    sig_ndim : int, optional
        As in :func:`dask_tiled.map_tiles`.

    Returns
    -------
    Disk
        Centre, radius, and what impairs them. The radius is that of the disk before its edge was
        blurred.

    Raises
    ------
    TilingError
        There is no disk, or there are two that are equally bright; or frames are not images.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> print(dask_tiled.tiles.find_disk(arr))
    bright disk at y = ..., x = ..., radius 0.8... mrad (2... px), in 240 of 3,840 frames...
    """
    x = reducible(arr, sig_ndim)
    check_whole("frames, the size of the sample,", frames, least=1, error=TilingError)
    weights = None if mask is None else np.asarray(mask)
    hint = "Pass mask= to leave out other bright areas, or crop the frames."
    return disk_of(x, hint, weights, frames)


def disk_of(x: Reducible, hint: str, weights: Array | None = None, frames: int = FRAMES) -> Disk:
    """Find the disk of :func:`find_disk`; errors have a hint."""
    nav_ndim, shape = x.nav_ndim, x.arr.shape
    sig = shape[nav_ndim:]
    if len(sig) != 2:
        expected, found = "two signal axes", f"{len(sig)}"
        problem = "a disk, and its centre, can be found in images only"
        raise TilingError(problem, expected=expected, found=found, hint=hint)
    if x.arr.dtype.kind not in "biufc":
        raise TilingError("a disk can be found in numbers only", found=x.arr.dtype)
    if not x.arr.size:
        raise TilingError("there are no pixels", found=f"shape {shape}")
    if weights is not None and weights.shape != sig:
        raise TilingError("the mask has another shape", expected=sig, found=weights.shape)
    pixels, places = sampled_frames(x, frames)
    fit, doubts = _fitted(pixels, places, shape[:nav_ndim], weights)
    if fit is None:
        problem = "no bright disk is found in the mean of the frames"
        raise TilingError(problem, found=_looks(pixels), hint=hint)
    if fit.rival is not None:
        circles = (fit.circle, fit.rival)
        listed = " and ".join(f"(y, x) = ({c.y:.0f}, {c.x:.0f}) px" for c in circles)
        problem = "there are two disks or more, each of which may be the direct beam"
        raise TilingError(problem, expected="one bright disk", found=listed, hint=hint)
    doubts = [*doubts, *_impaired(fit, pixels)]
    known = shown_of(x.arr).axes[nav_ndim:]
    y_axis, x_axis = (a or Axis(n) for a, n in zip(known, ("y", "x"), strict=True))
    circle = fit.circle
    of = math.prod(shape[:nav_ndim])
    told = fit.seen, fit.ellipticity, fit.direction, fit.blur, len(pixels), of, (y_axis, x_axis)
    return Disk((circle.y, circle.x), circle.radius, *told, tuple(doubts))


def sampled_frames(x: Reducible, frames: int) -> tuple[Array, Array]:
    """Compute up to so many frames at equal intervals, (n, y, x), and their places in the scan."""
    sig = x.arr.shape[x.nav_ndim :]
    limit = max(1, min(frames, MOST_BYTES // max(1, 4 * math.prod(sig))))
    lazy, places = sampled_places(x.arr, x.nav_ndim, limit)
    raw = np.asarray(lazy.compute())
    return np.abs(raw) if raw.dtype.kind == "c" else raw, places


def _fitted(
    pixels: Array, places: Array, nav_shape: tuple[int, ...], weights: Array | None
) -> tuple[DiskFit | None, list[str]]:
    """Return the disk of the mean of frames, aligned if the beam moves, and doubts."""
    mean = mean_frame(pixels)
    fit = fit_disk(mean, weights)
    if len(pixels) < 9 or max(nav_shape) < 3:
        return fit, []
    powers = powers_of(1, nav_shape)
    columns = terms(places, nav_shape, powers)
    positions = positions_of(pixels, weights)
    coefficients, error, _ = fit_positions(columns, positions)
    shifts = columns[:, 1:] @ coefficients[1:]
    ranges = 2 * abs(coefficients[1:]).sum(axis=0)
    noise = error / math.sqrt(len(pixels))
    if not np.isfinite(ranges).all() or ranges.max() < max(MOVING, 6 * noise):
        return fit, []
    steps = np.rint(shifts).astype(int)
    aligned = fit_disk(mean_frame(pixels, steps), weights)
    if aligned is None or aligned.seen < 0.8 * (fit.seen if fit else 0):
        return fit, []
    rest = (shifts - steps).mean(axis=0)
    circle = aligned.circle
    moved = circle._replace(y=circle.y - rest[0], x=circle.x - rest[1])
    text = f"the beam moves by {ranges[0]:.1f} px (y) and {ranges[1]:.1f} px (x) over the scan"
    return aligned._replace(circle=moved), [text] if ranges.max() > 1 else []


def mean_frame(pixels: Array, steps: Array | None = None) -> Array:
    """Return the mean of frames, without pixels that are not finite, after moving them back.

    Parameters
    ----------
    pixels : ndarray, (n, y, x)
    steps : int ndarray, (n, 2), optional
        Position of the beam in each frame; what lies outside of a moved frame is left out.
    """
    is_float = pixels.dtype.kind == "f"
    if steps is None and not is_float:
        found: Array = pixels.mean(axis=0, dtype=np.float64)
        return found
    shape = pixels.shape[1:]
    total, count = np.zeros(shape), np.zeros(shape)
    groups = np.zeros((len(pixels), 2), int) if steps is None else steps
    distinct, numbers = np.unique(groups, axis=0, return_inverse=True)
    for k, step in enumerate(distinct):
        some = pixels[numbers.reshape(-1) == k]
        there = np.isfinite(some) if is_float else np.ones(1, bool)
        sums = np.where(there, some, 0).sum(axis=0, dtype=np.float64)
        counts = np.broadcast_to(there.sum(axis=0) * (1 if is_float else len(some)), shape)
        to, of = zip(*(_overlap(n, int(d)) for n, d in zip(shape, step, strict=True)), strict=True)
        total[to] += sums[of]
        count[to] += counts[of]
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / count


def _overlap(size: int, step: int) -> tuple[slice, slice]:
    """Return where a row lies after moving it back by a step, and the part that stays in it."""
    return slice(max(0, -step), min(size, size - step)), slice(max(0, step), min(size, size + step))


def positions_of(pixels: Array, weights: Array | None) -> Array:
    """Return the centre of the bright pixels of each frame, (n, 2); NaN without any."""
    every = -(-max(pixels.shape[1:]) // 64)
    height, width = (n // every for n in pixels.shape[1:])
    parts = pixels if weights is None else np.where(weights != 0, pixels, 0)
    if pixels.dtype.kind == "f":
        parts = np.nan_to_num(parts, posinf=0, neginf=0)
    parts = parts[:, : height * every, : width * every]
    binned = parts.reshape(len(parts), height, every, width, every).sum((2, 4), dtype=np.float64)
    low = np.percentile(binned, 25, axis=(1, 2), keepdims=True)
    above = np.maximum(binned - low, 0)
    # Half of the height of the mean of the brightest pixels: those of counts are noisy.
    high = np.sort(above.reshape(len(above), -1), axis=1)[:, -max(4, above[0].size // 200) :]
    bright = np.where(above > high.mean(axis=1)[:, None, None] / 4, above, 0)
    mass = bright.sum((1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        y = (bright.sum(2) @ np.arange(height)) / mass
        x = (bright.sum(1) @ np.arange(width)) / mass
    return np.stack([y, x], axis=1) * every + (every - 1) / 2


def _impaired(fit: DiskFit, pixels: Array) -> list[str]:
    """Return what impairs the measurement of a disk."""
    doubts = []
    hidden = 1 - fit.seen - fit.cut
    if fit.cut > 0.02:
        doubts.append(f"{100 * fit.cut:.0f} % of its edge lie outside of the frame")
    if hidden > 1 - DOUBTFUL:
        doubts.append(f"{100 * hidden:.0f} % of its edge are not seen, as behind a beam stop")
    if fit.ellipticity > OVAL and fit.seen > DOUBTFUL:
        shape = (
            f"{100 * fit.ellipticity:.1f} % longer along {fit.direction:.0f} degrees from x to y"
        )
        doubts.append(f"it is an ellipse, {shape}")
    if fit.blur > BLURRED * fit.circle.radius:
        doubts.append(f"its edge is blurred over {fit.blur:.1f} px: it is hardly a disk")
    if pixels.dtype.kind in "iu":
        top = pixels.max(initial=0)
        inside = fit.circle.mask(pixels.shape[1:])
        full = float((pixels[:, inside] == top).mean()) if top >= FULL and inside.any() else 0.0
        if full > MOST_FULL:
            doubts.append(f"{100 * full:.0f} % of its pixels have {top} counts: saturated")
    return doubts


def _looks(pixels: Array) -> str:
    """Return the range of pixels, for an error."""
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).any():
        return "no finite pixel"
    low, high = (float(f(pixels)) for f in (np.nanmin, np.nanmax))
    return f"pixels of {low:g}" if low == high else f"pixels from {low:g} to {high:g}"
