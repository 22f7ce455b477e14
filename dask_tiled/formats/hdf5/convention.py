"""The base class of conventions of HDF5 files, and the values that its methods return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from dask_tiled.formats.hdf5.attributes import attribute, label, number
from dask_tiled.formats.hdf5.datasets import Found, Picture
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.model.axes import Axis

MOST_VALUES = 1 << 20
"""Axes with more values than this are not read."""


class Meant(NamedTuple):
    """The arrays that a file means."""

    told_by: str = ""
    """Where that stands."""
    pictures: Sequence[Picture] = ()
    """The first of them opens."""
    alone: bool = False
    """Whether the file has no others, even if it means none."""


class Calibration(NamedTuple):
    """The axes of an array."""

    axes: tuple[Axis, ...]
    """Without a name where the file gives none."""
    sig_dims: int | None = None
    """The number of signal axes, if it says that."""


class Scan(NamedTuple):
    """The scan that the first axis of an array is."""

    shape: tuple[int, ...]
    """(y, x), which the frames fill."""
    told_by: str
    """Where the shape stands, or from what it is inferred."""
    axes: tuple[Axis, ...]
    facts: Mapping[str, Any] = {}
    """More facts, by their places."""
    flat: bool = False
    """Whether there is one number at each position, which the array has as an axis of length 1."""


class Row(NamedTuple):
    """Where something stands that is said of the instrument."""

    name: str
    """In the vocabulary of :mod:`dask_tiled.model.instrument`."""
    path: str
    """Below the facts; pattern and unit as in :class:`~dask_tiled.formats.tools.Entry`."""
    unit: str = ""
    read: Callable[[Any], Any] | None = None


class Convention:
    """A convention; each method returns nothing of an array that does not follow it."""

    name: ClassVar[str]
    instrument: ClassVar[Sequence[Row]] = ()
    """Of each name the first row that leads to something counts."""

    def meant(self, tree: Tree, found: Found) -> Meant:  # noqa: ARG002
        """List the arrays that a file means, or a group of it."""
        return Meant()

    def refuse(self, tree: Tree, path: str) -> None:
        """Raise a DatasetError that says why something is no array."""

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:  # noqa: ARG002
        """Read the axes of an array."""
        return None

    def scan(self, tree: Tree, picture: Picture, frames: int) -> Scan | None:  # noqa: ARG002
        """Read the shape of the scan that has so many frames."""
        return None

    def facts(self, tree: Tree, picture: Picture) -> Mapping[str, Any]:  # noqa: ARG002
        """List the groups with facts of an array, by their paths.

        The value of each are the names of the attributes and small datasets in it that are read; an
        empty tuple for all of them, at any depth; or a mapping, which are the facts.
        """
        return {}


def read_axis(tree: Tree, values: Any, name: str, size: int) -> Axis:
    """Read an axis from its values, or from the first of them, if they are equally spaced."""
    units = "" if values is None else label(attribute(values, "units"))
    numbers = getattr(values, "ndim", 0) == 1 and values.dtype.kind in "fiu"
    if not numbers or not 0 < values.size <= MOST_VALUES:
        return Axis(name, units)
    points = tree.read(values)
    if len(points) == 1:
        return Axis(name, units, 1.0, number(points[0], 0.0))
    axis = Axis.through(name, units, points)
    if axis is None:
        return Axis(name, units)
    edges = len(points) == size + 1 and size != 1
    return replace(axis, offset=axis.offset + axis.scale / 2) if edges else axis
