"""Calibration by what is measured: the bright disk, diffraction rings, a scale bar."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DoubtWarning, TilingError, warn
from dask_tiled.measuring.disks import OVAL, disk_of, mean_frame, sampled_frames
from dask_tiled.measuring.rings import Profile, fit_oval, fit_rings
from dask_tiled.model.axes import Axis
from dask_tiled.model.beam import is_angle, is_frequency, on_detector, read_quantity
from dask_tiled.model.units import PIXELS, conversion
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.opened.job_arrays import Reducible
from dask_tiled.opened.tile_functions import reducible
from dask_tiled.opened.tiled_array import TiledArray

RIVAL = 0.4
"""Height of a ring, relative to the highest one, that may be the meant one."""
RING_FRAMES = 1024


class Scale(NamedTuple):
    """A measured scale of the pixels of a detector."""

    size: float
    """Size of a pixel, in ``unit``."""
    unit: str
    center: tuple[float, float]
    """Position of the beam, (y, x), in pixels."""
    source: str
    doubts: Sequence[str] = ()


def calibrate(
    arr: Any,
    *,
    disk: str | None = None,
    rings: Mapping[str, str] | None = None,
    scale_bar: tuple[str, str] | None = None,
    axes: Sequence[str] | None = None,
    units: str | None = None,
    beam_energy: float | str | None = None,
    center: tuple[float, float] | None = None,
    radius: float | None = None,
    mask: npt.ArrayLike | None = None,
) -> da.Array:
    """Calibrate an array by what it shows: pass one of ``disk``, ``rings`` and ``scale_bar``.

    The axes of the detector then count from the beam, which is at 0. A sample of the frames is
    computed, unless ``center`` and ``radius`` are passed.

    Parameters
    ----------
    arr : TiledArray, or any other array
        Pixels: nav + sig, with two signal axes for ``disk`` and ``rings``.
    disk : str, optional
        Radius of the bright disk, the semi-angle of convergence, such as ``"20 mrad"``;
        :func:`tiles.find_disk` measures it in pixels.
    rings : mapping of str, optional
        Names of diffraction rings, and their lattice spacings: ``{"Au 111": "2.355 Å"}``; or their
        radii, in 1/nm or mrad. They are found in the radial profile. Of a single one, the highest
        peak is taken; several are recognised by the ratios of their radii.
    scale_bar : (str, str), optional
        A length in pixels, and the length that it shows: ``("212 px", "50 nm")``.
    axes : sequence of str, optional
        Names of the axes that ``scale_bar`` calibrates; by default the signal axes.
    units : str, optional
        Unit of the new axes, such as ``"mrad"`` or ``"1/nm"``; by default that of the given sizes,
        or ``"1/nm"`` for lattice spacings. Without a measurement, axes in one of these units are
        converted to the other.
    beam_energy : float or str, optional
        Energy of the electrons, such as ``"200 kV"``, to convert 1/nm to mrad by their relativistic
        wavelength; numbers are in V. By default that of the files.
    center : (float, float), optional
        Position of the beam, (y, x), in pixels; by default the centre of the bright disk.
    radius : float, optional
        Radius of ``disk`` in pixels; by default measured.
    mask : array-like, optional
        Weights of the pixels, of the shape of a frame: those of weight 0 are ignored.

    Returns
    -------
    dask.array.Array
        The same pixels with other axes, as of :meth:`TiledArray.with_axes`. Pixels are taken as
        squares: an ellipse is told, and not corrected.

    Raises
    ------
    TilingError
        Nothing is passed, or too much; a size has another unit than angles or spatial frequencies;
        no disk or ring is found; or the energy of the beam is needed and not known.

    Warns
    -----
    DoubtWarning
        The disk or the rings are elliptic, hidden, saturated, or may be others.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> print(*dask_tiled.calibrate(arr, disk="0.8 mrad").axes[2:])
    y (steps of 0.3... mrad from -2... mrad) x (steps of 0.3... mrad from -2... mrad)
    """
    x = reducible(arr, None)
    options = {"disk": disk, "rings": rings, "scale_bar": scale_bar}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1 or (not given and units is None):
        expected = "one of disk, rings and scale_bar; or units="
        raise TilingError(
            "invalid calibration", expected=expected, found=", ".join(given) or "none"
        )
    if axes is not None and scale_bar is None:
        raise TilingError("axes only apply to a scale bar", found=f"axes={axes!r}")
    if radius is not None and disk is None:
        raise TilingError("radius only applies to a disk", found=f"radius={radius!r}")
    if scale_bar is not None:
        return _by_scale_bar(x, scale_bar, axes)
    if not given:
        return _converted(x, str(units), beam_energy)
    if x.arr.ndim - x.nav_ndim != 2:
        found = f"{x.arr.ndim - x.nav_ndim}"
        raise TilingError("frames are not images", expected="two signal axes", found=found)
    weights = None if mask is None else np.asarray(mask)
    if disk is not None:
        scale = _by_disk(x, disk, center, radius, weights)
    else:
        scale = _by_rings(x, rings, center, weights)
    factor = 1.0 if units is None else _factor(x, scale.unit, units, beam_energy)
    scale = scale._replace(size=scale.size * factor, unit=units or scale.unit)
    if scale.doubts:
        warn(f"calibrated by {scale.source}: {'; '.join(scale.doubts)}", DoubtWarning)
    known = _axes(x)
    new = [
        replace(_plain(axis), units=scale.unit, scale=scale.size, offset=-at * scale.size)
        for axis, at in zip(known[x.nav_ndim :], scale.center, strict=True)
    ]
    return _applied(x.arr, [*known[: x.nav_ndim], *new], scale.source)


def _by_disk(
    x: Reducible,
    disk: str,
    center: tuple[float, float] | None,
    radius: Any,
    weights: Any,
) -> Scale:
    size, unit = _on_detector("disk", disk)
    if radius is not None:
        is_number = isinstance(radius, Real) and not isinstance(radius, bool)
        if not (is_number and 0 < float(radius) < math.inf):
            expected = "a positive number of pixels"
            raise TilingError("invalid radius", expected=expected, found=repr(radius))
        if center is not None:
            source = f"a disk of {disk}, {radius:.4g} px"
            return Scale(size / float(radius), unit, _place(center), source)
    hint = 'Pass the size of a pixel: arr.with_axes(y="0.4 mrad", x="0.4 mrad").'
    found = disk_of(x, hint, weights)
    sample = f" in {found.frames:,} of {found.of:,} frames" if found.frames < found.of else ""
    source = f"the bright disk of {disk}, {radius or found.radius:.4g} px{sample}"
    at = found.center if center is None else _place(center)
    return Scale(size / (radius or found.radius), unit, at, source, found.doubts)


def _by_rings(x: Reducible, rings: Any, center: tuple[float, float] | None, weights: Any) -> Scale:
    if not isinstance(rings, Mapping) or not rings:
        expected = 'names and lattice spacings, as {"Au 111": "2.355 Å"}'
        raise TilingError("invalid rings", expected=expected, found=repr(rings))
    sizes = [_ring_size(str(name), text) for name, text in rings.items()]
    unit = sizes[0][1]
    if any(is_angle(unit) != is_angle(other) for _, other in sizes):
        raise TilingError("rings have different units", found=", ".join(map(str, rings.values())))
    radii = [size * (conversion(other, unit) or 1.0) for size, other in sizes]
    inner = 2.0
    if center is None:
        bright = disk_of(x, "Pass center=(y, x).", weights)
        center, inner = bright.center, 1.15 * bright.radius + 2 * bright.blur
    at = _place(center)
    pixels, _ = sampled_frames(x, RING_FRAMES)
    mean = mean_frame(pixels)
    good = np.isfinite(mean) if weights is None else np.isfinite(mean) & (weights != 0)
    mean = np.where(good, mean, 0.0)
    known = np.array(radii)
    y, x_ = np.ogrid[: mean.shape[0], : mean.shape[1]]
    profile = Profile.of(mean[good], np.hypot(y - at[0], x_ - at[1])[good])
    peaks = profile.peaks(inner)
    fit = fit_rings(profile, peaks, known)
    oval = fit_oval(mean, good, at, known, fit)
    doubts = []
    others = [ring for ring in peaks[1:] if ring.height > RIVAL * peaks[0].height]
    if len(radii) == 1 and others:
        listed = ", ".join(f"{ring.radius:.1f}" for ring in sorted(others))
        told = f"the ring at {oval.size * known[0]:.1f} px is the highest, but there are others at"
        doubts.append(f"{told} {listed} px: pass two rings or more")
    if oval.ellipticity > OVAL:
        way = f"{100 * oval.ellipticity:.1f} % longer along {oval.direction:.0f} degrees"
        doubts.append(f"the rings are ellipses, {way} from x to y")
    places = (f"{name} at {oval.size * one:.4g} px" for name, one in zip(rings, known, strict=True))
    source = f"the ring{'s' * (len(radii) > 1)} {', '.join(places)}"
    return Scale(1 / oval.size, unit, at, source, doubts)


def _ring_size(name: str, text: Any) -> tuple[float, str]:
    """Return the radius of a ring; the inverse of a lattice spacing in 1/nm."""
    size, unit = read_quantity(f"spacing of {name}", text, "2.355 Å")
    length = {"Å": 0.1, "angstrom": 0.1}.get(unit) or conversion(unit, "nm")
    if size > 0 and length is not None:
        return 1 / (size * length), "1/nm"
    return _on_detector(name, text)


def _on_detector(name: str, text: Any) -> tuple[float, str]:
    """Parse a size on a detector: an angle or a spatial frequency."""
    size, unit = read_quantity(name, text, "20 mrad")
    if size < 0 or not (is_angle(unit) or is_frequency(unit)):
        expected = 'an angle or a spatial frequency, such as "20 mrad" or "8 1/nm"'
        raise TilingError(f"invalid {name}", expected=expected, found=repr(text))
    return size, unit


def _place(center: Any) -> tuple[float, float]:
    place = np.asarray(center, float)
    if place.shape != (2,) or not np.isfinite(place).all():
        raise TilingError("invalid center", expected="(y, x) in pixels", found=repr(center))
    return float(place[0]), float(place[1])


def _by_scale_bar(x: Reducible, scale_bar: Any, names: Sequence[str] | None) -> da.Array:
    if isinstance(scale_bar, str) or len(scale_bar) != 2:
        expected = 'its length in pixels and in a unit, as ("212 px", "50 nm")'
        raise TilingError("invalid scale_bar", expected=expected, found=repr(scale_bar))
    pixels, px = read_quantity("scale_bar", scale_bar[0], "212 px")
    length, unit = read_quantity("scale_bar", scale_bar[1], "50 nm")
    if px not in PIXELS or unit in PIXELS or pixels < 0 or length < 0:
        expected = 'its length in pixels and in a unit, as ("212 px", "50 nm")'
        raise TilingError("invalid scale_bar", expected=expected, found=repr(scale_bar))
    known = _axes(x)
    listed = [axis.name for axis in known]
    chosen = (
        listed[x.nav_ndim :] if names is None else [*([names] if isinstance(names, str) else names)]
    )
    if unknown := [name for name in chosen if name not in listed]:
        found = ", ".join(map(repr, unknown))
        raise TilingError("no such axis", expected=f"some of {', '.join(listed)}", found=found)
    is_scan = x.nav_ndim == 2 and x.arr.ndim == 4
    if names is None and is_scan and conversion(unit, "nm") is not None:
        problem = "a length on the detector of a scan"
        hint = f"Pass axes={tuple(listed[:2])!r} for the scan."
        expected = "an angle or a spatial frequency"
        raise TilingError(problem, expected=expected, found=scale_bar[1], hint=hint)
    size = length / pixels
    new = [
        replace(_plain(a), units=unit, scale=size, offset=0.0) if a.name in chosen else a
        for a in known
    ]
    return _applied(x.arr, new, f"a scale bar of {scale_bar[1]}, {scale_bar[0]}")


def _converted(x: Reducible, units: str, beam_energy: float | str | None) -> da.Array:
    """Return an array whose signal axes have another unit."""
    known, new = _axes(x), []
    for axis in known[x.nav_ndim :]:
        factor = _factor(x, axis.units, units, beam_energy)
        new.append(
            replace(axis, units=units, scale=axis.scale * factor, offset=axis.offset * factor)
        )
    return _applied(x.arr, [*known[: x.nav_ndim], *new], "the wavelength of the beam")


def _factor(x: Reducible, unit: str, units: str, beam_energy: float | str | None) -> float:
    factor = on_detector(unit, units, beam_energy, shown_of(x.arr).of)
    if factor is None:
        expected = f"a unit like {unit}" if unit else "axes with a unit"
        raise TilingError("invalid units", expected=expected, found=repr(units))
    return factor


def _axes(x: Reducible) -> list[Axis]:
    nav = x.nav_ndim
    names = [f"axis {k}" for k in range(nav)] + (
        ["y", "x"] if x.arr.ndim - nav == 2 else [f"axis {k}" for k in range(nav, x.arr.ndim)]
    )
    return [axis or Axis(name) for axis, name in zip(shown_of(x.arr).axes, names, strict=True)]


def _plain(axis: Axis) -> Axis:
    return replace(axis, coordinates=(), coordinate_units="")


def _applied(arr: da.Array, axes: Sequence[Axis], source: str) -> da.Array:
    if not all(math.isfinite(axis.scale) and axis.scale for axis in axes):
        raise TilingError("the scale is not a finite number", found=", ".join(map(str, axes)))
    if isinstance(arr, TiledArray) and arr.description is not None:
        return arr.with_measured_axes(tuple(axes), source)
    return labelled(arr, axes, shown_of(arr).units)
