"""Differential phase contrast: from centres of mass to the phase of the sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_tiled.errors import TilingError
from dask_tiled.model.axes import Axis
from dask_tiled.model.beam import acceleration_voltage, on_detector, read_quantity
from dask_tiled.model.indexing import Array
from dask_tiled.model.units import conversion, interaction_constant
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.opened.tile_functions import reducible
from dask_tiled.tiles.descans import Descan
from dask_tiled.tiles.lengths import PIXELS
from dask_tiled.tiles.masks import center_of_mass
from dask_tiled.tiles.vectors import ScanRotation, turning

PADDINGS = "mirror", "periodic"
METHODS = "fourier", "iterative"
VACUUM = 8.8541878188e-12
"""Permittivity of the vacuum in F/m, CODATA 2022."""
ROUNDS, STILL = 2000, 1e-9
"""Most iterations, and the relative error at which they end."""


def phase_from_com(
    com: Any,
    *,
    scale: str | None = None,
    step: str | tuple[str, str] | None = None,
    beam_energy: float | str | None = None,
    center: Sequence[float] | None = None,
    rotation: ScanRotation | float = 0.0,
    padding: str = "mirror",
    method: str = "fourier",
) -> da.Array:
    r"""Integrate maps of centres of mass to the phase that the sample adds to the beam.

    A thin sample with a phase :math:`\varphi` shifts the centre of mass of the diffraction pattern,
    as a spatial frequency, by :math:`\nabla\varphi / 2\pi` (averaged over the probe), and a beam of
    the wavelength :math:`\lambda` by the angle :math:`\lambda` times that. This is integrated in
    the sense of least squares, by Fourier transforms: with the spatial frequencies
    :math:`\boldsymbol{k}` of the scan,

    .. math::
        F(\varphi) = \frac{\boldsymbol{k} \cdot F(\nabla\varphi)}{2\pi i\,|\boldsymbol{k}|^2}

    Parameters
    ----------
    com : dask.array.Array
        (..., scan_y, scan_x, 2), real: components (y, x), as of :func:`center_of_mass`.
    scale : str, optional
        Size of 1 in ``com``, such as ``"0.02 1/nm"`` or ``"0.5 mrad"``; required if ``com`` is in
        pixels or has no unit. ``"1 px"`` for a phase up to a factor.
    step : str, or two of them, optional
        Distance of scan positions, (y, x), such as ``"0.5 nm"``; by default from the axes.
    beam_energy : float or str, optional
        Energy of the electrons, as ``"200 kV"`` or ``"200 keV"``; numbers are in V. Required for
        angles; by default from the files. It must be 1 to 3000 kV.
    center : (float, float), optional
        Position of the beam without a sample, (y, x) in the units of ``com``. By default
        the mean of ``com`` over each map, which removes the slope of the phase.
    rotation : ScanRotation or float
        Degrees by which shifts are rotated, clockwise as y points down, into the axes of the
        scan; :func:`scan_rotation` finds it, and whether y is negated before.
    padding : {"mirror", "periodic"}
        Continuation of maps beyond their edges: mirror images, which need four times the memory,
        or the map again, for periodic samples.
    method : {"fourier", "iterative"}
        Fourier transforms; or differences between neighbours, which are fitted by conjugate
        gradients, without neighbours beyond the edges: positions whose shift is NaN then have no
        influence.

    Returns
    -------
    dask.array.Array
        (..., scan_y, scan_x), float64, on the axes of the scan. Its mean is 0. In radians, the unit
        ``"rad"``; with a scale in pixels without a unit, as if the shifts in pixels were the
        gradient per step of the scan. Where the potential of the sample is higher, as at atoms, the
        phase is higher, too: electrons are deflected towards it.

    Raises
    ------
    TilingError
        ``com`` has another shape, an option is invalid, or units are unknown or incompatible.

    Notes
    -----
    With Fourier transforms NaN, as for empty frames, counts as no shift. With ``"periodic"``,
    slopes are lost. For a phase that is smooth on the scale of a step, the result is exact to
    rounding with ``"periodic"`` if it is periodic; with ``"mirror"``, errors are within 3 % of its
    range in our tests, worst near the edges.

    References
    ----------
    Lazić, Bosch and Lazar, Ultramicroscopy 160 (2016) 265; Bon, Monneret and Wattellier, Applied
    Optics 51 (2012) 5698 (mirrored edges).

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> from dask_tiled import tiles
    >>> phase = tiles.phase_from_com(tiles.center_of_mass(arr), beam_energy="200 kV")
    >>> phase.shape
    (60, 64)
    """
    maps = _maps(com)
    known = _units(maps, scale, step, beam_energy)
    return _phase(maps, known, center, rotation, padding, method)


class Dpc(NamedTuple):
    """Results of :func:`~dask_tiled.tiles.dpc`, lazy, on the axes of the scan.

    Attributes
    ----------
    phase : dask.array.Array
        Phase that the sample adds to the beam, in rad.
    electric_field : dask.array.Array
        (..., scan_y, scan_x, 2): components (y, x). In V/m, averaged over the thickness of the
        sample; without a thickness in V, projected along the beam.
    charge_density : dask.array.Array
        In C/m^3; without a thickness in C/m^2.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> found = dask_tiled.tiles.dpc(arr, beam_energy="200 kV")
    >>> [dask_tiled.to_xarray(one).units for one in found]
    ['rad', 'V', 'C/m^2']
    """

    phase: da.Array
    electric_field: da.Array
    charge_density: da.Array


def dpc(
    arr: Any,
    mask: npt.ArrayLike | None = None,
    *,
    thickness: str | None = None,
    descan: Descan | npt.ArrayLike | None = None,
    scale: str | None = None,
    step: str | tuple[str, str] | None = None,
    beam_energy: float | str | None = None,
    rotation: ScanRotation | float = 0.0,
    padding: str = "mirror",
    method: str = "fourier",
) -> Dpc:
    r"""Return phase, electric field and charge density of a thin sample, from frames.

    The centre of mass of the diffraction pattern, as a spatial frequency, is :math:`\nabla\varphi /
    2\pi`. The phase is :math:`\varphi = \sigma V`, with the potential :math:`V` projected along the
    beam and :math:`\sigma = 2\pi m e \lambda / h^2` (relativistic mass), the field
    :math:`-\nabla V`, and the charge density :math:`-\varepsilon_0 \nabla^2 V`.

    Parameters
    ----------
    arr : dask.array.Array
        A calibrated scan, nav + sig; or maps of centres of mass of :func:`center_of_mass`.
    mask : array-like, optional
        Weights of the pixels of the frames.
    thickness : str, optional
        Thickness of the sample, such as ``"20 nm"``.
    descan : Descan or array-like, optional
        As in :func:`center_of_mass`.
    scale, step, beam_energy, rotation, padding, method : optional
        As in :func:`phase_from_com`. The energy of the beam is required.

    Returns
    -------
    Dpc
        ``phase``, ``electric_field`` and ``charge_density``.

    Raises
    ------
    TilingError
        As in :func:`phase_from_com`: nothing is returned in rad, V or C that has no scale.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> field = dask_tiled.tiles.dpc(arr, beam_energy="200 kV", thickness="10 nm").electric_field
    >>> field.shape, dask_tiled.to_xarray(field).units
    ((60, 64, 2), 'V/m')
    """
    x = reducible(arr, None)
    last = shown_of(x.arr).axes[-1] if x.arr.ndim else None
    if last is not None and last.name == "component":
        if mask is not None or descan is not None:
            problem = "a mask and a descan apply to frames"
            raise TilingError(problem, expected="frames", found="maps of centres")
        com = x.arr
    else:
        com = center_of_mass(x.arr, mask, descan=descan)
    maps = _maps(com)
    known = _units(maps, scale, step, beam_energy)
    phase = _phase(maps, known, None, rotation, padding, method)
    gradients, steps, units = known
    if not units:
        hint = 'Pass a scale with a unit, such as scale="0.5 mrad".'
        raise TilingError("a field needs a scale", found=f"scale={scale!r}", hint=hint)
    volts = acceleration_voltage(beam_energy, shown_of(maps).of)
    length, depth = 1.0, ""
    if thickness is not None:
        number, unit = _read("thickness", thickness, "20 nm")
        length, depth = number * _in("nm", unit, "thickness"), "/m"
        if length <= 0:
            raise TilingError("invalid thickness", expected="more than 0", found=repr(thickness))
    # rad/nm to V, or with a thickness in nm to V/nm, and that to V/m
    factor = -gradients / interaction_constant(volts) / (length / (1e9 if depth else 1.0))
    whole = maps.rechunk(dict.fromkeys(range(maps.ndim - 3, maps.ndim), -1))
    axes = shown_of(maps).axes
    field = da.map_blocks(
        partial(_turned, turn=factor * turning(rotation)), whole, dtype=np.dtype(float),
        meta=np.empty((0,) * maps.ndim),
    )  # fmt: skip
    charge = da.map_blocks(
        partial(_divergence, steps=steps), field, drop_axis=maps.ndim - 1, dtype=np.dtype(float),
        meta=np.empty((0,) * (maps.ndim - 1)),
    )  # fmt: skip
    charge_units = "C/m^3" if depth else "C/m^2"
    return Dpc(
        phase,
        labelled(field, axes, f"V{depth}"),
        labelled(charge * (VACUUM * 1e9), axes[:-1], charge_units),
    )


def _phase(
    maps: da.Array,
    known: _Units,
    center: Sequence[float] | None,
    rotation: ScanRotation | float,
    padding: str,
    method: str,
) -> da.Array:
    """Return the phase of :func:`phase_from_com`."""
    if padding not in PADDINGS:
        raise TilingError("invalid padding", expected=" or ".join(PADDINGS), found=repr(padding))
    if method not in METHODS:
        raise TilingError("invalid method", expected=" or ".join(METHODS), found=repr(method))
    if method == "iterative" and padding != "mirror":
        raise TilingError("iterations need no padding", expected="mirror", found=repr(padding))
    at = None if center is None else np.asarray(center, float)
    if at is not None and (at.shape != (2,) or not np.isfinite(at).all()):
        raise TilingError("invalid center", expected="(y, x)", found=repr(center))
    chunks = dict.fromkeys(range(maps.ndim - 3, maps.ndim), -1)
    turn = known.gradient * turning(rotation)
    solve = _fitted if method == "iterative" else partial(_integrated, mirrors=padding == "mirror")
    found = da.map_blocks(
        partial(solve, center=at, turn=turn, steps=known.steps),
        maps.rechunk(chunks),
        drop_axis=maps.ndim - 1,
        dtype=np.dtype(float),
        meta=np.empty((0,) * (maps.ndim - 1)),
    )
    return labelled(found, shown_of(maps).axes[:-1], known.phase)


def _turned(com: Array, turn: Array) -> Array:
    """Return the vectors from the mean of each map, after a matrix."""
    shifts = com.astype(np.float64)
    found: Array = (shifts - _mean(shifts)) @ turn.T
    return found


def _divergence(field: Array, steps: tuple[float, float]) -> Array:
    """Return the divergence of vectors (y, x), per nm; 0 along axes of one position."""
    found = np.zeros(field.shape[:-1])
    for k, step in enumerate(steps):
        if found.shape[k - 2] > 1:
            found += _slope(np.moveaxis(field[..., k], k - 2, 0), step, k - 2)
    return found


def _slope(values: Array, step: float, axis: int) -> Array:
    """Return slopes along the first axis, of fourth order but for two positions at each end."""
    found: Array = np.gradient(values, step, axis=0)
    if len(values) >= 5:
        near, far = values[3:-1] - values[1:-3], values[4:] - values[:-4]
        found[2:-2] = (8 * near - far) / (12 * step)
    return np.moveaxis(found, 0, axis)


def scan_rotation(com: Any) -> ScanRotation:
    """Find the rotation between scan and detector where the curl vanishes; this computes ``com``.

    The centres of mass of a thin sample are a gradient, whose curl is 0; a rotation adds curl.

    Parameters
    ----------
    com : dask.array.Array
        (..., scan_y, scan_x, 2), as for :func:`phase_from_com`: at least 2 x 2 positions, with
        equal steps along both axes.

    Returns
    -------
    ScanRotation
        To pass as ``rotation`` to :func:`phase_from_com` or :func:`center_of_mass`. An angle of
        180 degrees more has no curl either, but inverts the phase: atoms should be brighter than
        the gaps between them.

    Raises
    ------
    TilingError
        ``com`` has another shape.

    Examples
    --------
    >>> import dask_tiled
    >>> arr = dask_tiled.open_dataset(dask_tiled.samples.gold())
    >>> from dask_tiled import tiles
    >>> found = tiles.scan_rotation(tiles.center_of_mass(arr))
    >>> found.flip
    False
    """
    maps = _maps(com)
    if min(maps.shape[-3:-1]) < 2:
        expected, found = "2 x 2 positions or more", f"shape {maps.shape}"
        raise TilingError(
            "the maps are too small to compute a curl", expected=expected, found=found
        )
    shifts = maps.compute().astype(np.float64)
    values = np.nan_to_num(shifts - _mean(shifts))
    y, x = values[..., 0], values[..., 1]
    curls = []
    for flip in (False, True):
        down = -y if flip else y
        curl, divergence = _along(x, -2) - _along(down, -1), _along(down, -2) + _along(x, -1)
        # Rotated by an angle, the curl is cos(angle) * curl - sin(angle) * divergence.
        squares, mixed = (curl**2).sum() - (divergence**2).sum(), 2 * (curl * divergence).sum()
        least = (curl**2).sum() + (divergence**2).sum() - math.hypot(squares, mixed)
        angle = math.degrees(0.5 * math.atan2(mixed, -squares))
        curls.append((least, ScanRotation(angle, flip)))
    return min(curls, key=lambda one: one[0])[1]


def _maps(com: Any) -> da.Array:
    """Return maps of centres of mass after checking shape and dtype."""
    maps = reducible(com, None).arr
    if maps.ndim < 3 or maps.shape[-1] != 2 or 0 in maps.shape:
        expected, found = "shape (..., scan_y, scan_x, 2)", f"shape {maps.shape}"
        raise TilingError(
            "com does not have the shape of maps of centres", expected=expected, found=found
        )
    if maps.dtype.kind not in "biuf":
        raise TilingError(
            "com does not hold real numbers", expected="real numbers", found=maps.dtype
        )
    return maps


class _Units(NamedTuple):
    """Units of maps of centres of mass."""

    gradient: float
    """Gradient of the phase per unit of the maps: in rad/nm, or without a unit."""
    steps: tuple[float, float]
    """Distance of scan positions, (y, x), in nm, or 1."""
    phase: str
    """``"rad"``; empty for a phase up to a factor."""


def _units(maps: da.Array, scale: str | None, step: Any, beam_energy: float | str | None) -> _Units:
    """Return the units of maps of centres of mass."""
    shown = shown_of(maps)
    size, unit = 1.0, shown.units
    if scale is not None:
        if unit not in ("", PIXELS):
            problem, expected = "com has a unit already", "no scale"
            raise TilingError(problem, expected=expected, found=f"com in {unit}, scale {scale!r}")
        size, unit = _read("scale", scale, "0.5 mrad")
    elif unit in ("", PIXELS):
        raise TilingError(
            "the scale of com is unknown",
            expected="centres of mass in mrad or 1/nm",
            found=f"a unit of {unit!r}" if unit else "no unit",
            hint='Calibrate the detector: arr.calibrate(disk="20 mrad"); or pass scale="0.5 mrad", '
            'or scale="1 px" for a phase up to a factor, without a unit.',
        )
    listed = step if isinstance(step, (tuple, list)) else (step, step)
    if len(listed) != 2:
        raise TilingError("step is not a pair", expected="(y, x)", found=repr(step))
    if unit == PIXELS:
        if step is not None:
            hint = 'Pass a scale with a unit, such as scale="0.5 mrad".'
            raise TilingError("a step without a scale of com", found=repr(step), hint=hint)
        return _Units(size, (1.0, 1.0), "")
    steps = [
        _step_of(axis) if one is None else _read("step", one, "0.5 nm")
        for one, axis in zip(listed, shown.axes[-3:-1], strict=True)
    ]
    if any(length in ("", PIXELS) for _, length in steps):
        hint = 'Pass step="0.5 nm".'
        raise TilingError("the steps of the scan have no unit", found=f"com in {unit}", hint=hint)
    y, x = (number * _in("nm", length, "step") for number, length in steps)
    frequency = on_detector(unit, "1/nm", beam_energy, shown.of)
    if frequency is None:
        expected = "a unit like 1/nm or mrad"
        raise TilingError("the unit of com is incompatible", expected=expected, found=unit)
    return _Units(2 * math.pi * frequency * size, (y, x), "rad")


def _in(wanted: str, unit: str, name: str) -> float:
    """Return how much 1 of ``unit`` is in ``wanted``."""
    found = conversion(unit, wanted)
    if found is None:
        expected = f"a unit like {wanted}"
        raise TilingError(f"the unit of {name} is incompatible", expected=expected, found=unit)
    return found


def _read(name: str, value: Any, example: str) -> tuple[float, str]:
    """Parse a quantity, whose unit is required."""
    number, unit = read_quantity(name, value, example)
    if not unit:
        expected = f'a text with a unit such as "{example}"'
        raise TilingError(f"invalid {name}", expected=expected, found=repr(value))
    return number, unit


def _step_of(axis: Axis | None) -> tuple[float, str]:
    return (1.0, "") if axis is None or axis.coordinates else (axis.scale, axis.units)


def _integrated(
    com: Array, center: Array | None, turn: Array, steps: tuple[float, float], *, mirrors: bool
) -> Array:
    """Return the phase with this gradient, after applying the matrix ``turn``."""
    shifts = com.astype(np.float64)
    shifts -= _mean(shifts) if center is None else center
    y, x = np.moveaxis(np.nan_to_num(shifts) @ turn.T, -1, 0)
    height, width = y.shape[-2:]
    if mirrors:  # an even phase has gradients that are odd along their own axis
        y, x = _extended(y, (-1, 1)), _extended(x, (1, -1))
    ky, kx = (np.fft.fftfreq(n, step) for n, step in zip(y.shape[-2:], steps, strict=True))
    ky, kx = ky[:, None], kx[: x.shape[-1] // 2 + 1]
    square = ky**2 + kx**2
    square[0, 0] = 1.0
    found = (ky * np.fft.rfft2(y) + kx * np.fft.rfft2(x)) / (2j * math.pi * square)
    phase = np.fft.irfft2(found, y.shape[-2:])[..., :height, :width]
    return phase - phase.mean((-2, -1), keepdims=True)


def _fitted(com: Array, center: Array | None, turn: Array, steps: tuple[float, float]) -> Array:
    """Return the phase whose differences between neighbours fit best."""
    shifts = com.astype(np.float64)
    shifts -= _mean(shifts) if center is None else center
    there: Array = np.isfinite(shifts.sum(axis=-1))
    gradient = np.nan_to_num(shifts) @ turn.T
    start = _integrated(com, center, turn, steps, mirrors=True)
    found = np.empty(start.shape)
    for place in np.ndindex(start.shape[:-2]):
        found[place] = _least_squares(gradient[place], there[place], start[place], steps)
    return found - found.mean((-2, -1), keepdims=True) if found.size else found


def _least_squares(
    gradient: Array, there: Array, start: Array, steps: tuple[float, float]
) -> Array:
    """Fit differences of a phase by conjugate gradients."""
    known, weights = [], []
    for axis, step in enumerate(steps):
        low, high = _pairs(gradient[..., axis], axis)
        known.append((low + high) / 2 * step)
        weights.append(np.logical_and(*_pairs(there, axis)).astype(float))
        weights[-1] = np.maximum(weights[-1], 1e-6)  # holes are bridged smoothly

    def transposed(differences: list[Array]) -> Array:
        found = np.zeros(there.shape)
        for axis, (values, weight) in enumerate(zip(differences, weights, strict=True)):
            low, high = _pairs(found, axis)
            high += values * weight
            low -= values * weight
        return found

    def normal(phase: Array) -> Array:
        return transposed([np.diff(phase, axis=axis) for axis in (0, 1)])

    phase = start.copy()
    wanted = transposed(known)
    rest = wanted - normal(phase)
    way, square = rest.copy(), float((rest**2).sum())
    end = STILL**2 * float((wanted**2).sum())
    for _ in range(ROUNDS):
        if square <= end:
            break
        moved = normal(way)
        factor = square / float((way * moved).sum())
        phase += factor * way
        rest -= factor * moved
        square, before = float((rest**2).sum()), square
        way = rest + square / before * way
    return phase


def _pairs(values: Array, axis: int) -> tuple[Array, Array]:
    """Return views of all positions but the last, and but the first, along one of the last axes."""
    return (values[:-1], values[1:]) if axis == 0 else (values[:, :-1], values[:, 1:])


def _mean(shifts: Array) -> Array:
    """Return the mean shift of each map, ignoring NaN."""
    there = np.isfinite(shifts)
    total = np.where(there, shifts, 0).sum((-3, -2), keepdims=True)
    return total / np.maximum(there.sum((-3, -2), keepdims=True), 1)


def _extended(values: Array, signs: tuple[int, int]) -> Array:
    """Extend maps by their mirror images."""
    for axis, sign in zip((-2, -1), signs, strict=True):
        values = np.concatenate([values, sign * np.flip(values, axis)], axis)
    return values


def _along(values: Array, axis: int) -> Array:
    """Return differences along one axis, at the midpoints of both axes."""
    other = -3 - axis
    steps = np.diff(values, axis=axis)
    low, high = (np.take(steps, range(k, steps.shape[other] - 1 + k), other) for k in (0, 1))
    return (low + high) / 2
