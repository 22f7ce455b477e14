"""Indices by names of axes, and by labels and coordinates of positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.errors import DatasetError, nearest
from dask_tiled.model.axes import Axis
from dask_tiled.opened.limits import MOST_NAMED


def by_axis(axes: Sequence[Axis], wanted: Mapping[str, Any], path: str) -> dict[int, Any]:
    """Return the values for each axis by its number.

    Raise a DatasetError if there is no axis of a name, or several.
    """
    names = [axis.name for axis in axes]
    for name in wanted:
        if names.count(name) != 1:
            problem = "several axes have this name" if name in names else "no such axis"
            hint = nearest(name, names) if isinstance(name, str) else None
            expected = f"one of {', '.join(names)}"
            raise DatasetError(problem, path=path, expected=expected, found=repr(name), hint=hint)
    return {names.index(name): value for name, value in wanted.items()}


def selected(arr: da.Array, indices: Mapping[int, Any]) -> da.Array:
    """Return a part of an array: lists select along their own axis, one after the other."""
    basic: list[Any] = [slice(None)] * arr.ndim
    for k, index in indices.items():
        if isinstance(index, (int, np.integer, slice)):
            basic[k] = index
        else:
            arr = arr[(*(slice(None),) * k, index)]
    return arr[tuple(basic)]


def positions_of(axis: Axis, size: int, wanted: Any, path: str) -> int | slice | list[int]:
    """Return the position, or the positions, that have labels or coordinates.

    Parameters
    ----------
    axis, size : Axis, int
        The axis, and its length.
    wanted : str, float, slice, or iterable of them
        A label; a coordinate, of which the nearest position is meant; from the first to the last of
        two, inclusively; or several.
    path : str
        File named in errors.

    Raises
    ------
    DatasetError
        There is no such position.
    """
    if isinstance(wanted, slice):
        return _between(axis, size, wanted, path)
    if isinstance(wanted, Iterable) and not isinstance(wanted, str):
        return [_position(axis, size, value, path) for value in wanted]
    return _position(axis, size, wanted, path)


def _position(axis: Axis, size: int, wanted: Any, path: str) -> int:
    """Return the position of a label, or the nearest one of a coordinate."""
    if isinstance(wanted, str):
        if axis.labels.count(wanted) == 1:
            return axis.labels.index(wanted)
        problem = f"the axis {axis.name!r} has no position of this name"
        if wanted in axis.labels:
            problem = f"several positions of the axis {axis.name!r} have this name"
        listed = ", ".join(map(repr, axis.labels[:MOST_NAMED])) or "no names"
        hint = nearest(wanted, axis.labels)
        raise DatasetError(problem, path=path, expected=listed, found=repr(wanted), hint=hint)
    points = axis.points(size)
    steps = abs(np.diff(points)) if size > 1 else np.array([abs(axis.scale)])
    away = abs(points - float(wanted))
    place = int(away.argmin())
    # Between positions the nearest one is meant; beyond the ends, within half a step.
    if not away[place] <= steps[max(0, place - 1) : place + 1].max() / 2 * (1 + 1e-9):
        units = axis.units or axis.coordinate_units
        expected = f"{points.min():g} to {points.max():g} {units}".rstrip()
        problem = f"the axis {axis.name!r} has no such position"
        raise DatasetError(problem, path=path, expected=expected, found=repr(wanted))
    return place


def _between(axis: Axis, size: int, wanted: slice, path: str) -> slice:
    """Return the positions from one label or coordinate to another, inclusively.

    None if the second comes before the first along the axis. A negative step turns both around.
    """
    backwards = wanted.step is not None and wanted.step < 0
    start, stop = (wanted.stop, wanted.start) if backwards else (wanted.start, wanted.stop)
    first, last = 0, size - 1
    if isinstance(start, str) or isinstance(stop, str):
        first = first if start is None else _position(axis, size, start, path)
        last = last if stop is None else _position(axis, size, stop, path)
    elif start is not None or stop is not None:
        steps = np.diff(points := axis.points(size))
        if (steps < 0).any() and (steps > 0).any():
            problem = f"the positions of the axis {axis.name!r} are not in order"
            raise DatasetError(problem, path=path, hint="Select them by numbers, with isel().")
        sign = -1 if (steps < 0).any() else 1
        inside = np.ones(size, bool)
        inside &= True if start is None else points * sign >= float(start) * sign
        inside &= True if stop is None else points * sign <= float(stop) * sign
        places = np.flatnonzero(inside)
        first, last = (int(places[0]), int(places[-1])) if len(places) else (0, -1)
    if first > last:
        return slice(0, 0, wanted.step)
    if backwards:
        return slice(last, first - 1 if first else None, wanted.step)
    return slice(first, last + 1, wanted.step)
