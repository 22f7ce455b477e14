"""What users pass as an array: dask arrays, arrays of NumPy, and objects of xarray around them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.array.axes import labelled, shown_of
from dask_tiled.array.dask_graph.wrapped import array_in, array_read_by
from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.errors import DatasetError
from dask_tiled.model.axes import Axis

ARRAYS = "an array of dask-tiled, dask or NumPy, or an object of xarray that holds one"
NEAR = 1e-6
"""So far from those of the file coordinates may be, in steps, and be the same."""


def is_array(data: object) -> bool:
    """Return whether something is taken as an array by :func:`as_array`."""
    return isinstance(data, da.Array | np.ndarray) or is_xarray(data)


def is_xarray(data: object) -> bool:
    """Return whether something is a Dataset, a DataArray or a Variable of xarray."""
    xr = sys.modules.get("xarray")  # nothing is of xarray before somebody has imported it
    kinds = [getattr(xr, name, None) for name in ("Dataset", "DataArray", "Variable")]
    return any(kind is not None and isinstance(data, kind) for kind in kinds)


def as_array(
    data: Any, *, expected: str = ARRAYS, error: type[DatasetError] = DatasetError
) -> da.Array:
    """Return what a user passes as a dask array.

    An array of NumPy becomes one of dask. Of an object of xarray, dimensions, evenly spaced
    coordinates and units are the axes; where it holds an opened array, that is what is returned.

    Parameters
    ----------
    data : dask.array.Array, numpy.ndarray, xarray.DataArray, Dataset or Variable
        A Dataset has one data variable.
    expected : str
        What the caller takes, for the error.
    error : type
        The error.

    Raises
    ------
    DatasetError
        It is something else: a Dataset of several variables, or an array of another library.
    """
    if isinstance(data, da.Array):
        return data
    if isinstance(data, np.ndarray):
        return da.from_array(data, chunks=-1 if data.dtype.hasobject else "auto")
    if not is_xarray(data):
        found = type(data).__name__
        raise error("not an array", expected=expected, found=found)
    return _of_xarray(variable_of(data, error), error)


def variable_of(data: Any, error: type[DatasetError] = DatasetError) -> Any:
    """Return the one variable of a Dataset; anything else as it is."""
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


def attributes_in(data: Any) -> dict[str, Any]:
    """Return the attributes of the variable of an object of xarray; none of anything else."""
    attributes = variable_of(data).attrs if is_xarray(data) else {}
    return {str(name): value for name, value in attributes.items()}


def _of_xarray(data: Any, error: type[DatasetError]) -> da.Array:
    variable = getattr(data, "variable", data)
    arr = array_in(variable._data)  # noqa: SLF001 - to ask for data would read all of it
    if arr is None:
        held: Any = variable.data if variable.chunks is not None else None
        if not isinstance(held, da.Array):
            held = variable.chunk("auto" if not variable.dtype.hasobject else -1).data
        if not isinstance(held, da.Array):
            problem, expected = "this DataArray holds no array of dask or NumPy", ARRAYS
            raise error(problem, expected=expected, found=type(held).__name__)
        arr = _opened_in(held)
    known = shown_of(arr).axes
    axes = tuple(
        _axis(str(name), getattr(data, "coords", {}).get(name), axis, k)
        for k, (name, axis) in enumerate(zip(variable.dims, known, strict=True))
    )
    units = variable.attrs.get("units", "")
    is_opened = isinstance(arr, TiledArray)  # and stays so: its values are counts
    return labelled(arr, axes, "" if is_opened else str(units))


def _opened_in(arr: da.Array) -> da.Array:
    """Return the opened array that the chunks of a dask array are read of, in these chunks."""
    found = array_read_by(arr)
    if found is None:
        return arr
    held, chunks = found
    is_whole = isinstance(held, TiledArray) and held.description is not None
    return held.with_chunks(chunks) if isinstance(held, TiledArray) and is_whole else arr


def _axis(name: str, coordinate: Any, known: Axis | None, k: int) -> Axis | None:
    """Return the axis of a dimension, which is that of the file where both say the same."""
    same = known if known is not None and known.name == name else None
    if coordinate is None:
        unnamed = known is None and name == f"dim_{k}"  # as xarray calls them
        return None if unnamed else Axis(name, labels=same.labels if same else ())
    points, units = coordinate.values, str(coordinate.attrs.get("units", ""))
    if points.dtype.kind in "UT":
        return Axis(name, labels=tuple(map(str, points)))
    if not points.size or points.dtype.kind not in "iuf":
        return Axis(name)
    if same is not None and same.units == units and _is_at(points, same):
        return same
    if points.size == 1:
        return Axis(name, units, 1.0, float(points[0]))
    return Axis.through(name, units, points) or Axis(name)


def _is_at(points: Sequence[float], axis: Axis) -> bool:
    """Return whether positions are those of an axis, but for rounding."""
    places = axis.offset + axis.scale * np.arange(len(points))
    return bool((np.abs(np.asarray(points, float) - places) <= NEAR * abs(axis.scale)).all())
