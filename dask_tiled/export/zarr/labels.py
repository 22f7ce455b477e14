"""Arrays as xarray has them: dimensions with names, coordinates with units, and attributes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np

from dask_tiled.array.axes import shown_of
from dask_tiled.array.doors import is_xarray, variable_of
from dask_tiled.export.zarr.group import DATA, coordinates_of, dimension_names
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description
from dask_tiled.model.mark import MARK, attributes_of
from dask_tiled.opening import opened

if TYPE_CHECKING:
    import xarray as xr

LARGEST = 1 << 63
"""Whole numbers from here on are written as text: netCDF has no larger ones."""


class Labels(NamedTuple):
    """Dimensions, coordinates and attributes of an array for xarray."""

    dims: tuple[str, ...]
    coords: dict[str, tuple[Any, ...]]
    """By name: the dimension, numbers and attributes."""
    attrs: dict[str, Any]


def to_xarray(data: Any, **options: Any) -> xr.DataArray:
    """Return an array with named dimensions, coordinates with units, and what the file says.

    Parameters
    ----------
    data : path-like, sequence of path-like, dask.array.Array, or object of xarray
        What :func:`open_dataset` opens, or an array: one that was opened, or what was computed of
        one, as long as it is known which axes are left. What is of xarray keeps its coordinates,
        attributes and name, and holds the lazy array.
    **options
        Those of :func:`open_dataset`, for what is not open yet.

    Returns
    -------
    xarray.DataArray
        It is called ``data`` and holds the lazy array itself, so that what xarray computes of it
        runs on tiles. There is a coordinate for every axis with a scale, an offset or units, in
        these units, and one of texts for an axis with labels. The attributes are ``units`` of the
        values, ``format``, ``source``, the name of the file, what is known of the instrument, such
        as ``beam_energy`` and ``beam_energy_units``, and metadata: ``dm.tags.Meta Data.Format`` is
        ``metadata["dm"]["tags"]["Meta Data"]["Format"]``.

    Raises
    ------
    DatasetError
        There are options for an array that is open already; or as for :func:`open_dataset`.
    ImportError
        There is no xarray.
    """
    try:
        import xarray as xr
    except ImportError as error:
        hint = 'xarray is missing. Run: pip install "dask-tiled[xarray]"'
        raise ImportError(hint) from error

    arr = opened(data, **options)
    if isinstance(data, xr.Dataset | xr.DataArray):
        return variable_of(data).copy(data=arr)
    shown = shown_of(arr)
    labels = labels_of(shown.axes, arr.shape, shown.of)
    units = {"units": shown.units} if shown.units else {}
    return xr.DataArray(arr, labels.coords, labels.dims, DATA, labels.attrs | units)


def own_attributes(data: Any, arr: da.Array) -> dict[str, Any]:
    """Return the attributes of an object of xarray that are not those of the files it shows."""
    if not is_xarray(data):
        return {}
    shown = shown_of(arr)
    known = labels_of(shown.axes, arr.shape, shown.of).attrs
    attributes = variable_of(data).attrs.items()
    return {str(name): value for name, value in attributes if name not in known}


def labels_of(
    axes: Sequence[Axis | None], shape: Sequence[int], of: Sequence[Description]
) -> Labels:
    """Return which axes an array has, and what is known of the files it was made of."""
    names = dimension_names(axes)
    dims = [one if names.count(one) == 1 else f"{one}_{k}" for k, one in enumerate(names)]
    coords = {one.name: tuple(one) for one in coordinates_of(dims, axes, shape)}
    for name, axis, size in zip(dims, axes, shape, strict=True):
        if axis is not None and axis.labels and len(axis.labels) == size:
            coords[name] = (name, np.array(axis.labels), {})
    return Labels(tuple(dims), coords, _told_by(of[0]) if len(of) == 1 else {})


def _told_by(desc: Description) -> dict[str, Any]:
    """Write down what files say: numbers, texts and lists of them, which netCDF can hold."""
    mark = attributes_of((), [desc])[MARK]
    first, *others = mark["files"]
    source = f"{first} and {len(others)} more" if others else first
    told: dict[str, Any] = {"format": desc.format, "source": source}
    for name, fact in mark.get("instrument", {}).items():
        told |= {name: fact["value"]} | ({f"{name}_units": fact["unit"]} if fact["unit"] else {})
    return told | dict(_flat("", mark["metadata"]))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Go through nested metadata; names are put together with dots, and what is empty is left."""
    if isinstance(value, dict):
        for key, item in value.items():
            inner = key.strip("/").replace("/", ".")
            yield from _flat(f"{name}.{inner}" if name else inner, item)
    elif isinstance(value, list):
        alike = {type(item) for item in value} in ({str}, {int}, {float})
        if value:
            whole = alike and all(map(_fits, value))
            yield name, value if whole else json.dumps(value, ensure_ascii=False)
    elif value is not None:
        yield name, int(value) if isinstance(value, bool) else value if _fits(value) else str(value)


def _fits(value: Any) -> bool:
    """Return whether netCDF has such a number."""
    return not isinstance(value, int) or -LARGEST <= value < LARGEST
