"""Parse axes as users describe them: ``"0.5 nm"``, numbers, tuples or ``Axis`` objects."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Real
from typing import Any

from dask_tiled.errors import DatasetError, nearest
from dask_tiled.model.axes import Axis
from dask_tiled.model.colours import is_sound_list
from dask_tiled.model.units import Prefixed

Calibration = Axis | str | float | tuple[float, str] | tuple[float, str, float]
"""A user's description of one axis."""
Calibrations = Mapping[str, Calibration] | Sequence[Axis]
"""Descriptions of some axes by name, or of all axes in order."""

USUAL = {"Å", "angstrom", "1/Å", "deg", "px", "h", "K"}
"""Units without prefix that are accepted without pint, whose import takes almost a second."""
FORMS = '"0.5 nm", "0.5 nm from 10 nm", 0.5, (0.5, "nm"), (0.5, "nm", 10) or an Axis'
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})(.*)", re.IGNORECASE | re.DOTALL)
_UNIT = re.compile(r"(?:1\s*/.+|[^\d\s+.,;:-].*)?", re.DOTALL)


def calibrated(
    axes: Sequence[Axis], given: Calibrations, shape: Sequence[int], path: str
) -> tuple[Axis, ...]:
    """Return the axes with a user's descriptions applied.

    Parameters
    ----------
    axes : sequence of Axis
        The axes of the files.
    given : mapping, or sequence of Axis
        Descriptions of some axes by name, or all axes, which may have new names.
    shape : sequence of int
        Lengths of the axes.
    path : str
        File named in errors.

    Raises
    ------
    DatasetError
        An axis is unknown, or its scale, unit or name is invalid.
    """
    if isinstance(given, Mapping):
        found = list(axes)
        names = [axis.name for axis in axes]
        for name, value in given.items():
            if name not in names:
                hint = nearest(name, names) if isinstance(name, str) else None
                told = {"expected": f"one of {', '.join(names)}", "found": repr(name), "hint": hint}
                raise DatasetError("no such axis", path=path, **told)
            for k in (k for k, one in enumerate(names) if one == name):
                found[k] = described(axes[k], value, path)
    else:
        listed = isinstance(given, Sequence) and all(isinstance(one, Axis) for one in given)
        if not listed or len(given) != len(axes):
            expected = f"an Axis for each of {', '.join(axis.name for axis in axes)}, or a mapping"
            raise DatasetError("invalid axes", path=path, expected=expected, found=repr(given))
        found = [described(axis, one, path) for axis, one in zip(axes, given, strict=True)]
    return _checked(axes, found, shape, path)


def replaced(
    axes: Sequence[Axis], known: Mapping[str, Axis], shape: Sequence[int], path: str
) -> tuple[Axis, ...]:
    """Return axes with those in ``known`` replaced; errors are those of :func:`calibrated`."""
    return _checked(axes, [known.get(axis.name, axis) for axis in axes], shape, path)


def described(axis: Axis, value: Any, path: str) -> Axis:
    """Return an axis with the described changes; name and labels are kept unless given.

    Raise a DatasetError if the scale is invalid, or pint does not recognise the unit.
    """
    found = value if isinstance(value, Axis) else None
    if isinstance(value, str):
        parts = quantity(value)
    elif isinstance(value, (tuple, list)):
        parts = (*value, 0.0)[:3] if 2 <= len(value) <= 3 else None
    else:
        parts = (value, "", 0.0)
    if found is None and parts is not None and isinstance(parts[1], str):
        found = replace(axis, scale=parts[0], units=_unit(parts[1]), offset=parts[2])
        found = replace(found, coordinates=(), coordinate_units="")
    if found is None or not _is_sound(found):
        problem = f"invalid calibration of the axis {axis.name!r}"
        raise DatasetError(problem, path=path, expected=FORMS, found=repr(value))
    if not is_sound_list(found.colours):
        problem = f"invalid colours of the axis {axis.name!r}"
        expected = 'a tuple of "#rrggbb", or "" for unknown colours'
        raise DatasetError(problem, path=path, expected=expected, found=repr(found.colours))
    found = replace(found, scale=float(found.scale), offset=float(found.offset))
    if found.units != axis.units and (not _UNIT.fullmatch(found.units) or is_unknown(found.units)):
        problem = f"invalid unit of the axis {axis.name!r}"
        expected = 'a unit that pint recognises, such as "nm" or "1/nm"'
        raise DatasetError(problem, path=path, expected=expected, found=repr(found.units))
    return found


def quantity(text: str) -> tuple[float, str, float] | None:
    """Parse ``"0.5 nm from 10 nm"`` into scale, unit and offset; None if invalid."""
    scale, start, offset = text.replace("\N{MINUS SIGN}", "-").partition(" from ")
    parts = [_QUANTITY.fullmatch(one) for one in ((scale, offset) if start else (scale,))]
    if None in parts:
        return None
    numbers, units = zip(*((float(one[1]), _unit(one[2])) for one in parts if one), strict=True)
    if len({*units} - {""}) > 1:
        return None
    return numbers[0], units[0], numbers[1] if start else 0.0


def _unit(text: str) -> str:
    """Return a unit; ``/nm`` after a number means ``1/nm``."""
    text = text.strip()
    return f"1{text}" if text.startswith("/") else text


def _is_sound(axis: Axis) -> bool:
    """Return whether an axis has a name, a text unit, text labels and finite numbers."""
    coordinates: Any = axis.coordinates
    if not isinstance(coordinates, tuple):
        return False
    numbers: tuple[Any, ...] = axis.scale, axis.offset, *coordinates
    if not all(isinstance(one, Real) and not isinstance(one, bool) for one in numbers):
        return False
    with suppress(OverflowError):  # integers may be too large for a float
        units = axis.units, axis.coordinate_units
        texts = axis.name and all(isinstance(one, str) for one in (axis.name, *units))
        labels = isinstance(axis.labels, tuple) and all(isinstance(x, str) for x in axis.labels)
        return bool(texts and labels and axis.scale and all(map(math.isfinite, numbers)))
    return False


def _checked(
    before: Sequence[Axis], after: Sequence[Axis], shape: Sequence[int], path: str
) -> tuple[Axis, ...]:
    """Return the axes after checking that new names are unique and labels match the axis length."""
    names = [axis.name for axis in after]
    for old, new, size in zip(before, after, shape, strict=True):
        if new.name != old.name and names.count(new.name) > 1:
            expected, found = "a different name for each Axis", ", ".join(names)
            problem = f"two axes are called {new.name!r}"
            raise DatasetError(problem, path=path, expected=expected, found=found)
        check_counts(new, size, path, old.name)
    return tuple(after)


def check_counts(axis: Axis, size: int, path: str | None = None, called: str = "") -> None:
    """Check that an axis has as many labels, colours and coordinates as positions, or none.

    Raise a DatasetError otherwise, with the name by which the user knows the axis.
    """
    for kind in ("labels", "colours", "coordinates"):
        count = len(getattr(axis, kind))
        if count not in (0, size):
            problem = f"wrong {kind} of the axis {(called or axis.name)!r}"
            raise DatasetError(problem, path=path, expected=f"{size} {kind}, or none", found=count)


def is_unknown(unit: str) -> bool:
    """Return whether pint does not recognise a unit; without pint, all units are accepted."""
    if not unit or unit in USUAL or Prefixed.of(unit):
        return False
    try:
        import pint
    except ImportError:
        return False
    try:
        magnitude: float = pint.get_application_registry().parse_expression(unit).magnitude
    except Exception:  # noqa: BLE001 - pint raises many errors
        return True
    return magnitude != 1
