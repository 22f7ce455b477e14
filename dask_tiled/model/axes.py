"""The axes of arrays: names, units, scales."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from dask_tiled.model.indexing import Array
from dask_tiled.model.units import Prefixed, readable, shifted, spelled

MOST_PRINTED = 1e6
"""Larger offsets are printed with an exponent: such axes keep their unit."""
MOST_SHOWN = 8
"""Maximum number of labels shown as text."""
MOST_COORDINATES = 1 << 15
"""Maximum number of coordinates of an axis: they are part of each description."""
EXACT, STRAIGHT = 1e-3, 0.5
"""Maximum distance of positions from a line, in steps: always, and if they are rounded."""
DECIMALS = 9
"""Search at most this many decimals for the rounding of positions."""
WAVELENGTHS = "emission", "excitation"
"""Names of axes of light."""
FEW = 16
"""Fewer positions are rounded to a hundredth of a step at most: they may be uneven instead."""


@dataclass(frozen=True, slots=True, repr=False)
class Axis:
    """One axis of an array. Position ``i`` has the coordinate ``offset + scale * i``.

    Attributes
    ----------
    name : str
        Name of the dimension.
    units : str
        Unit of the scale; empty if unknown, or if the axis has coordinates.
    scale, offset : float
        Calibration; 1 and 0 if unknown, or if the axis has coordinates.
    labels : tuple of str
        Names of the positions, for example of channels or components; empty if unnamed.
    colours : tuple of str
        Colours in which channels are drawn, as "#rrggbb", or "" where one is unknown; empty if none
        is known.
    coordinates : tuple of float
        Coordinates of positions that are not equally spaced; empty otherwise.
    coordinate_units : str
        Unit of the coordinates; empty if unknown.

    Examples
    --------
    >>> import dask_tiled
    >>> axis = dask_tiled.Axis("scan_x", "nm", 0.5)
    >>> axis.units, axis.scale, axis.offset
    ('nm', 0.5, 0.0)
    """

    name: str
    units: str = ""
    scale: float = 1.0
    offset: float = 0.0
    labels: tuple[str, ...] = ()
    colours: tuple[str, ...] = field(default=(), kw_only=True)
    coordinates: tuple[float, ...] = ()
    coordinate_units: str = ""

    @classmethod
    def calibrated(
        cls, name: str, units: str, scale: float, offset: float = 0.0, *, signed: bool = False
    ) -> Axis:
        """Return an axis with a scale from a file, or without a scale if that one is invalid.

        Scales are positive; with ``signed`` they may be negative.
        """
        if not 0 < (abs(scale) if signed else scale) < math.inf:
            return cls(name)
        return cls(name, units, scale, offset if math.isfinite(offset) else 0.0)

    @classmethod
    def through(cls, name: str, units: str, points: Array) -> Axis | None:
        """Return the axis through positions; None unless they are equally spaced.

        They may be off by 1/1000 of a step, or by the rounding of their dtype or decimals, up to
        half a step.
        """
        with np.errstate(all="ignore"):  # any may be NaN or infinite
            places = points.astype(float)
            scale = float(places[-1] - places[0]) / max(1, len(places) - 1)
            off = places - (places[0] + scale * np.arange(len(places)))
            step, most = abs(scale), float(np.ptp(off)) / 2
            even = bool((abs(off) <= EXACT * step).all())
            if not even and (abs(off) <= (STRAIGHT + EXACT) * step).all():
                even = most <= _rounding(points, places, step)
        return cls(name, units, scale, float(places[0])) if scale and even else None

    @classmethod
    def at(cls, name: str, units: str, points: Array) -> Axis | None:
        """Return the axis at positions: a scale if they are equally spaced, or else coordinates.

        None if some are not finite, or there are more than ``MOST_COORDINATES``.
        """
        axis = cls.through(name, units, points)
        if axis is None and len(points) <= MOST_COORDINATES:
            coordinates = tuple(points.astype(float).tolist())
            if all(map(math.isfinite, coordinates)):
                return cls(name, coordinates=coordinates, coordinate_units=units)
        return axis

    def cut(self, start: int, step: int, length: int | None = None) -> Axis:
        """Return the axis of every ``step``-th position from ``start`` on, of ``length`` at most.

        Positions before the first one have no labels, no colours and no coordinates.
        """
        if (start, step) == (0, 1) and not (self.labels or self.colours or self.coordinates):
            return self
        kept, most = slice(start, None, step) if start >= 0 else slice(0), slice(length)
        axis = replace(self, labels=self.labels[kept][most], colours=self.colours[kept][most])
        if self.coordinates:
            return _moved(axis, self.coordinates[kept][most])
        return replace(axis, offset=self.offset + self.scale * start, scale=self.scale * step)

    def binned(self, count: int) -> Axis:
        """Return the axis of bins of ``count`` positions, each at the middle of its positions."""
        middle = self.offset + self.scale * (count - 1) / 2
        axis = self if count == 1 else replace(self, labels=(), colours=())
        if self.coordinates:
            whole = len(self.coordinates) // count * count
            means = np.reshape(self.coordinates[:whole], (-1, count)).mean(axis=1)
            return _moved(axis, tuple(means.tolist()))
        return replace(axis, offset=middle, scale=self.scale * count)

    def points(self, size: int) -> Array:
        """Return the coordinates of ``size`` positions, by the scale or one by one."""
        if len(self.coordinates) == size:
            return np.array(self.coordinates)
        points: Array = self.offset + self.scale * np.arange(size)
        return points

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, without colours and coordinates if there are none."""
        told = {"name": self.name, "units": self.units, "scale": self.scale, "offset": self.offset}
        told |= {"labels": [*self.labels]}
        if self.colours:
            told |= {"colours": [*self.colours]}
        if self.coordinates:
            units = self.coordinate_units
            told |= {"coordinates": [*self.coordinates], "coordinate_units": units}
        return told

    @property
    def is_calibrated(self) -> bool:
        """Whether the axis has a scale, an offset or units."""
        return (self.units, self.scale, self.offset) != ("", 1.0, 0.0)

    @property
    def listed(self) -> str:
        """The labels as text, truncated after the first ones; empty if there are none."""
        shown = [*self.labels[:MOST_SHOWN], *["..."] * (len(self.labels) > MOST_SHOWN)]
        return f" ({', '.join(shown)})" if shown else ""

    @property
    def steps(self) -> str:
        """The scale as text, with its sign and the offset; empty if the axis has none.

        Lengths have a prefix that fits the scale.
        """
        if self.coordinates or not self.is_calibrated:
            return ""
        unit, factor = self.units, 1.0
        known = Prefixed.of(unit)
        if known is not None and known.base == "m":
            unit, factor = readable(unit, self.scale)
        if not abs(self.offset * factor) < MOST_PRINTED:
            unit, factor = self.units, 1.0
        units = unit and f" {unit}"
        start = f" from {self.offset * factor:g}{units}" if self.offset else ""
        return f" (steps of {self.scale * factor:g}{units}{start})"

    @property
    def spacing(self) -> str:
        """The scale, or else the range of the coordinates, as text."""
        if not self.coordinates:
            return self.steps
        units = self.coordinate_units and f" {self.coordinate_units}"
        first, last = self.coordinates[0], self.coordinates[-1]
        return f" (uneven steps from {first:g} to {last:g}{units})"

    def __str__(self) -> str:
        return self.name + self.spacing

    def __repr__(self) -> str:
        told = {one.name: repr(getattr(self, one.name)) for one in fields(self)}
        if len(self.coordinates) > MOST_SHOWN:
            first = ", ".join(map(repr, self.coordinates[: MOST_SHOWN - 1]))
            told["coordinates"] = f"({first}, ..., {self.coordinates[-1]!r})"
        if not self.coordinates:
            del told["coordinates"], told["coordinate_units"]
        if not self.colours:
            del told["colours"]
        return f"Axis({', '.join(f'{name}={text}' for name, text in told.items())})"


def usual_units(axis: Axis) -> Axis:
    """Return an axis with the usual spelling of its units."""
    units, of_points = spelled(axis.units), spelled(axis.coordinate_units)
    if (units, of_points) == (axis.units, axis.coordinate_units):
        return axis
    return replace(axis, units=units, coordinate_units=of_points)


def of_light_microscope(axis: Axis) -> Axis:
    """Return an axis in metres in the usual unit: µm, or nm for wavelengths; others unchanged."""
    if axis.units != "m":
        return axis
    unit, power = ("nm", 9) if axis.name in WAVELENGTHS else ("µm", 6)
    scale, offset = shifted(axis.scale, power), shifted(axis.offset, power)
    return replace(axis, units=unit, scale=scale, offset=offset)


def _moved(axis: Axis, coordinates: tuple[float, ...]) -> Axis:
    """Return an axis at other coordinates."""
    units = axis.coordinate_units if coordinates else ""
    return replace(axis, coordinates=coordinates, coordinate_units=units)


def _rounding(points: Array, places: Array, step: float) -> float:
    """Return how far rounding of the dtype or to decimals may have moved positions."""
    largest = float(abs(places).max())
    unit = float(np.spacing(points.dtype.type(largest))) if points.dtype.kind == "f" else 0.0
    exact = max(1e-9, 8 * float(np.spacing(largest)))
    for decimals in range(DECIMALS + 1):
        quantum = 10.0**-decimals
        if quantum <= (1 if len(points) >= FEW else 0.01) * (1 + EXACT) * step:
            near = abs(places - np.round(places, decimals))
            if (near <= max(unit, exact * quantum)).all():
                return 0.75 * quantum + 4 * unit
    return 4 * unit


def nav_axes(ndim: int) -> tuple[Axis, ...]:
    """Return navigation axes with default names."""
    names = {0: (), 1: ("frame",), 2: ("scan_y", "scan_x")}
    return tuple(map(Axis, names.get(ndim, tuple(f"nav_{k}" for k in range(ndim)))))


def sig_axes(ndim: int) -> tuple[Axis, ...]:
    """Return signal axes with default names."""
    names = {0: (), 1: ("channel",), 2: ("y", "x"), 3: ("z", "y", "x")}
    return tuple(map(Axis, names.get(ndim, tuple(f"sig_{k}" for k in range(ndim)))))
