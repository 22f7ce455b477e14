"""File axes of computed arrays, and labels for axes of any array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import dask.array as da
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.errors import DatasetError
from dask_tiled.graphs.labelling import with_labels
from dask_tiled.labels.axis_kinds import as_axis
from dask_tiled.labels.layer_axes import Axes, labels_in
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description
from dask_tiled.opened.tiled_array import TiledArray
from dask_tiled.plans.tasks import Labelling


class ArrayAxes(NamedTuple):
    """File axes, descriptions and units of an array."""

    axes: Axes
    """None for axes that do not stem from files, or are unknown."""
    of: tuple[Description, ...]
    """Descriptions of the files that are read, without duplicates."""
    units: str = ""
    """Unit of the values; empty if unknown."""


def shown_of(arr: da.Array) -> ArrayAxes:
    """Return the file axes of an array, and the descriptions of the files that it reads.

    Functions of chunks keep the axes if they keep the shape. Unknown axes are None.
    """
    by_layer = labels_in(arr.dask) if isinstance(arr.dask, HighLevelGraph) else {}
    labels = by_layer.get(arr.name)
    if labels is None:
        return ArrayAxes((None,) * arr.ndim, ())
    axes = labels.axes or (None,) * arr.ndim
    return ArrayAxes(tuple(map(as_axis, axes)), labels.of, labels.units)


def labelled(arr: da.Array, axes: Sequence[Axis | None], units: str = "") -> da.Array:
    """Return an array with other axes, which results computed from it keep as far as known.

    Parameters
    ----------
    arr : dask.array.Array
    axes : sequence of Axis or None
        One for each axis of ``arr``; None if unknown.
    units : str, optional
        Unit of the values, if known.

    Returns
    -------
    dask.array.Array
        The same values in the same chunks. Labels add no tasks, and computations on opened
        arrays still run on tiles. An opened array stays one.

    Raises
    ------
    DatasetError
        There are more or fewer axes than ``arr`` has, or more or fewer labels than positions.
    """
    new_axes = tuple(axes)
    if len(new_axes) != arr.ndim:
        raise DatasetError(
            "the number of axes does not match the array",
            expected=f"{arr.ndim} axes",
            found=len(new_axes),
        )
    for axis, length in zip(new_axes, arr.shape, strict=True):
        if axis is not None and axis.labels and len(axis.labels) != length:
            raise DatasetError(
                f"the number of labels of the axis {axis.name} does not match the array",
                expected=f"{length} labels",
                found=len(axis.labels),
            )
    if isinstance(arr, TiledArray) and arr.description is not None and not units:
        named = tuple(axis for axis in new_axes if axis is not None)
        if len(named) == arr.ndim:
            return arr.with_axes(named)
    if not isinstance(arr.dask, HighLevelGraph):  # an array expression
        return arr
    return with_labels(arr, Labelling(new_axes, units))
