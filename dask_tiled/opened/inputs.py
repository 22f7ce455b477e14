"""Arrays from users: dask, NumPy, and xarray objects that hold them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.graphs.wrapped import array_in, array_read_by
from dask_tiled.labels.axis_kinds import NEAR
from dask_tiled.model.axes import Axis
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.opened.tiled_array import TiledArray

ARRAYS = "an array of dask-tiled, dask or NumPy, or an xarray object that wraps one"


def is_array(data: object) -> bool:
    """Return whether :func:`as_array` accepts an object."""
    return isinstance(data, da.Array | np.ndarray) or is_xarray(data)


def is_xarray(data: object) -> bool:
    """Return whether an object is an xarray Dataset, DataArray or Variable."""
    xr = sys.modules.get("xarray")  # no xarray objects exist before xarray is imported
    kinds = [getattr(xr, name, None) for name in ("Dataset", "DataArray", "Variable")]
    return any(kind is not None and isinstance(data, kind) for kind in kinds)


def as_array(
    data: Any, *, expected: str = ARRAYS, error: type[DatasetError] = DatasetError
) -> da.Array:
    """Convert what a user passes to a dask array.

    NumPy arrays are wrapped. The axes of an xarray object are its dimensions, coordinates and
    units; an opened array inside it is returned as such.

    Parameters
    ----------
    data : dask.array.Array, numpy.ndarray, xarray.DataArray, Dataset or Variable
        A Dataset must have a single data variable.
    expected : str
        Description of accepted objects, for the error message.
    error : type
        Class of the error.

    Raises
    ------
    DatasetError
        Any other object: a Dataset of several variables, or an array of another library.
    """
    if isinstance(data, da.Array):
        return data
    if isinstance(data, np.ndarray):
        return da.from_array(data, chunks=-1 if data.dtype.hasobject else "auto")
    if not is_xarray(data):
        hint = "Open it with open_dataset." if isinstance(data, (str, os.PathLike)) else None
        raise error("not an array", expected=expected, found=type(data).__name__, hint=hint)
    return _of_xarray(variable_of(data, error), error)


def variable_of(data: Any, error: type[DatasetError] = DatasetError) -> Any:
    """Return the single variable of a Dataset; other objects are returned unchanged."""
    if not hasattr(data, "data_vars"):
        return data
    names = [*data.data_vars]
    if len(names) == 1:
        return data[names[0]]
    listed = ", ".join(map(repr, names))
    raise error(
        "a Dataset with several data variables" if names else "a Dataset without data variables",
        expected="one variable",
        found=listed or "none",
        hint=f"Pick one: dataset[{names[0]!r}]." if names else None,
    )


def arrays_by_name(data: Any) -> Mapping[str, Any] | None:
    """Return several arrays by name: those of a mapping or of an xarray Dataset; None for one.

    Raise a DatasetError if names are not texts, or there are no arrays.
    """
    xr = sys.modules.get("xarray")
    if xr is not None and isinstance(data, xr.DataTree):
        hint = "Pass a mapping of names to its arrays."
        raise DatasetError("a tree of Datasets cannot be exported", found="DataTree", hint=hint)
    if xr is not None and isinstance(data, xr.Dataset):
        names = [*data.data_vars]
        return {str(name): data[name] for name in names} if len(names) > 1 else None
    if not isinstance(data, Mapping):
        return None
    wrong = next((name for name in data if not isinstance(name, str)), None)
    if wrong is not None or not data:
        expected, found = "names of arrays as text", "none" if wrong is None else repr(wrong)
        raise DatasetError("invalid mapping of arrays", expected=expected, found=found)
    return data


def attributes_in(data: Any) -> dict[str, Any]:
    """Return the attributes of an xarray object's variable; none for other objects."""
    attributes = variable_of(data).attrs if is_xarray(data) else {}
    return {str(name): value for name, value in attributes.items()}


def _of_xarray(data: Any, error: type[DatasetError]) -> da.Array:
    variable = getattr(data, "variable", data)
    arr = array_in(variable._data)  # noqa: SLF001 - the public attribute would read all data
    if arr is None:
        held: Any = variable.data if variable.chunks is not None else None
        if not isinstance(held, da.Array):
            held = variable.chunk("auto" if not variable.dtype.hasobject else -1).data
        if not isinstance(held, da.Array):
            problem, expected = "the DataArray wraps neither a dask nor a NumPy array", ARRAYS
            raise error(problem, expected=expected, found=type(held).__name__)
        arr = _opened_in(held)
    known = shown_of(arr).axes
    axes = tuple(
        _axis(str(name), getattr(data, "coords", {}).get(name), axis, k)
        for k, (name, axis) in enumerate(zip(variable.dims, known, strict=True))
    )
    units = variable.attrs.get("units", "")
    is_opened = isinstance(arr, TiledArray)  # kept, as its values are the file's own
    return labelled(arr, axes, "" if is_opened else str(units))


def _opened_in(arr: da.Array) -> da.Array:
    """Return the opened array whose chunks are read, in these chunks."""
    found = array_read_by(arr)
    if found is None:
        return arr
    held, chunks = found
    is_whole = isinstance(held, TiledArray) and held.description is not None
    return held.with_chunks(chunks) if isinstance(held, TiledArray) and is_whole else arr


def _axis(name: str, coordinate: Any, known: Axis | None, k: int) -> Axis | None:
    """Return the axis of a dimension: that of the file, if the coordinate agrees with it."""
    same = known if known is not None and known.name == name else None
    if coordinate is None:
        unnamed = known is None and name == f"dim_{k}"  # a default name of xarray
        known = same or Axis(name)
        return None if unnamed else Axis(name, labels=known.labels, colours=known.colours)
    points, units = coordinate.values, str(coordinate.attrs.get("units", ""))
    if points.dtype.kind in "UT":
        labels = tuple(map(str, points))
        colours = same.colours if same is not None and same.labels == labels else ()
        return Axis(name, labels=labels, colours=colours)
    if not points.size or points.dtype.kind not in "iuf":
        return Axis(name)
    if same is not None and (same.units or same.coordinate_units) == units and _is_at(points, same):
        return same
    if points.size == 1:
        return Axis(name, units, 1.0, float(points[0]))
    return Axis.at(name, units, points) or Axis(name)


def _is_at(points: Sequence[float], axis: Axis) -> bool:
    """Return whether coordinates equal those of an axis, up to rounding."""
    places = axis.points(len(points))
    return bool((np.abs(np.asarray(points, float) - places) <= NEAR * abs(axis.scale)).all())
