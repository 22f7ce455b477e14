"""Lengths and positions in frames: numbers in axis units, or texts with a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import TilingError
from dask_tiled.measuring.disks import disk_of
from dask_tiled.model.axes import Axis
from dask_tiled.model.calibration import quantity
from dask_tiled.model.units import conversion
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.job_arrays import Reducible

PIXELS = "px"

Length = float | str
"""A number in the units of the axes, or a text with a unit."""
Place = tuple[float, ...]
"""Position of a point in a frame, in pixels along each axis."""


class SignalAxes(NamedTuple):
    """The signal axes of an array."""

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, x: Reducible) -> Self:
        """Return the signal axes of an array; unknown axes are uncalibrated."""
        arr, nav_ndim = x
        known = shown_of(arr).axes[nav_ndim:]
        axes = tuple(axis or Axis(f"axis {nav_ndim + k}") for k, axis in enumerate(known))
        return cls(arr.shape[nav_ndim:], axes)

    @property
    def units(self) -> str:
        """The unit of plain numbers: that of all axes, or pixels if no axis has one."""
        found = {axis.units for axis in self.axes}
        if found == {""} or not found:
            return PIXELS
        if len(found) > 1:
            listed = ", ".join(f"{axis.name} in {axis.units or PIXELS}" for axis in self.axes)
            hint = 'Pass a text with a unit: "10 px".'
            raise TilingError("the signal axes have different units", found=listed, hint=hint)
        return found.pop()

    def length(self, name: str, value: Length) -> tuple[float, str]:
        """Parse a length into number and unit.

        Raise a TilingError if the length is invalid or negative, or its unit is incompatible with
        the axes.
        """
        number, unit = self._read(name, value)
        if number < 0:
            raise TilingError(f"{name} is negative", expected="0 or more", found=value)
        self.steps(unit)
        return number, unit

    def steps(self, unit: str) -> tuple[float, ...]:
        """Return the size of a pixel along each axis in a unit."""
        if unit == PIXELS:
            return (1.0,) * len(self.axes)
        return tuple(abs(axis.scale) * _factor(axis, unit) for axis in self.axes)

    def place(self, center: Sequence[Length]) -> Place:
        """Parse a position: one number or text for each axis.

        Raise a TilingError if the number of values does not match the axes, or a value is invalid.
        """
        names = ", ".join(axis.name for axis in self.axes)
        if isinstance(center, str) or not hasattr(center, "__len__"):
            raise TilingError("invalid center", expected=f"({names})", found=repr(center))
        if len(center) != len(self.axes):
            raise TilingError(
                "center does not have a value for each axis",
                expected=f"({names})",
                found=repr(center),
            )
        found = []
        for axis, value in zip(self.axes, center, strict=True):
            number, unit = self._read(f"center along {axis.name}", value)
            if unit != PIXELS:
                number = (number / _factor(axis, unit) - axis.offset) / axis.scale
            found.append(number)
        return tuple(found)

    def _read(self, name: str, value: Any) -> tuple[float, str]:
        if isinstance(value, str):
            found = quantity(value)
            if found is not None and found[1] and not found[2]:
                return found[0], found[1]
        elif isinstance(value, (Real, np.number)) and not isinstance(value, (bool, np.bool_)):
            number = float(value)
            if math.isfinite(number):
                return number, self.units
        expected = 'a number, or a text with a unit such as "20 mrad" or "10 px"'
        raise TilingError(f"invalid {name}", expected=expected, found=repr(value))


def distances(
    shape: Sequence[int], center: Place, steps: Sequence[float]
) -> npt.NDArray[np.float64]:
    """Return the distance of each pixel from a point; ``steps`` are the pixel sizes."""
    squares: Any = 0.0
    for k, (n, at, step) in enumerate(zip(shape, center, steps, strict=True)):
        along = [n if axis == k else 1 for axis in range(len(shape))]
        squares = squares + np.square((np.arange(n) - at) * step).reshape(along)
    return np.sqrt(np.broadcast_to(squares, shape))


def center_of(x: Reducible, frame: SignalAxes, center: Sequence[Length] | None) -> Place:
    """Return a given centre, or compute that of the bright disk."""
    if center is not None:
        return frame.place(center)
    hint = f"Pass center=({', '.join(axis.name for axis in frame.axes)})."
    return disk_of(x, hint).center


def _factor(axis: Axis, unit: str) -> float:
    """Return how much 1 of the axis's unit is in ``unit``."""
    found = conversion(axis.units, unit)
    if found is not None:
        return found
    raise TilingError(
        f"the unit is incompatible with the axis {axis.name}",
        expected=f"{axis.units} or pixels" if axis.units else "pixels",
        found=unit,
        hint=None if axis.units else 'The axis has no units: calibrate it, or use "px".',
    )
