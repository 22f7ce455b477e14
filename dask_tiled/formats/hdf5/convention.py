"""Base class of conventions of HDF5 files, and the values that its methods return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_tiled.formats.hdf5.attributes import attribute, label, number, texts
from dask_tiled.formats.hdf5.datasets import Found, Picture
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.model.axes import Axis
from dask_tiled.model.doubts import Doubt, uneven_axis

MOST_VALUES = 1 << 20
"""Axes with more values are not read."""
MOST_LABELS = 100
"""Axes with more labels are not read."""


class Meant(NamedTuple):
    """The arrays that a file designates."""

    told_by: str = ""
    """Source of the designation."""
    pictures: Sequence[Picture] = ()
    """The first one is the default."""
    alone: bool = False
    """Whether only these arrays are listed, even if there are none."""
    settled: bool = False
    """Whether the first one is meant, even if others have its size."""
    by_size: int = 0
    """Number of the first arrays of which only the size tells the default one."""


class Calibration(NamedTuple):
    """The axes of an array."""

    axes: tuple[Axis, ...]
    """Axes without a name in the file have an empty one."""
    sig_dims: int | None = None
    """Number of signal axes, if the file gives it."""


class Scan(NamedTuple):
    """The scan along an array's first axis."""

    shape: tuple[int, ...]
    """(y, x); its size is the number of frames."""
    told_by: str
    """Source of the shape."""
    axes: tuple[Axis, ...]
    facts: Mapping[str, Any] = {}
    """Further facts, by location."""
    doubts: tuple[Doubt, ...] = ()
    flat: bool = False
    """Whether pixels are single numbers, stored with a signal axis of length 1."""


class Announced(NamedTuple):
    """The number of frames of an acquisition, written or not."""

    frames: int
    told_by: str
    """Source of the number."""


class Convention:
    """A convention of HDF5 files; methods return nothing for arrays that do not follow it."""

    name: ClassVar[str]
    instrument: ClassVar[Sequence[tuple[Any, ...]]] = ()
    """Facts about the instrument, as rows of :func:`~dask_tiled.model.instrument.entries` below the
    facts. The first row of each name that has a value wins."""

    def meant(self, tree: Tree, found: Found) -> Meant:  # noqa: ARG002
        """List the arrays that a file, or a group of it, designates."""
        return Meant()

    def refuse(self, tree: Tree, path: str) -> None:
        """Raise a DatasetError that explains why an object is not an array."""

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:  # noqa: ARG002
        """Read the axes of an array."""
        return None

    def announced(self, tree: Tree, picture: Picture) -> Announced | None:  # noqa: ARG002
        """Read the number of frames of the whole acquisition."""
        return None

    def scan(self, tree: Tree, picture: Picture, frames: int) -> Scan | None:  # noqa: ARG002
        """Read the shape of the scan, which must have this many frames."""
        return None

    def facts(self, tree: Tree, picture: Picture) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the groups with facts about an array, by path.

        A value lists the names of attributes and small datasets to read; an empty tuple reads all,
        at any depth; a mapping holds the facts themselves.
        """
        return {}


def positions_of(tree: Tree, group: Any, path: str, name: str) -> Any:
    """Return the dataset with the positions of an axis; None if there is none.

    A link that leads nowhere is a doubt, as the pixels can be read without the positions.
    """
    try:
        return tree.get(group, path)
    except LookupError as error:
        if tree.is_link(group, path):
            tree.doubts.append(uneven_axis(name, f"are lost with what a link leads to: {error}"))
        return None


def is_text(dataset: Any) -> bool:
    """Return whether a dataset holds texts."""
    import h5py

    return h5py.check_string_dtype(dataset.dtype) is not None


def read_axis(tree: Tree, values: Any, name: str, size: int, units: str | None = None) -> Axis:
    """Return an axis of ``size`` pixels from its positions, or from the first ones.

    Positions may be those of pixels or of their edges. Equally spaced ones are a scale, others
    coordinates. Positions that are neither are a doubt. ``units`` replaces those of the values.
    Texts become labels.
    """
    if getattr(values, "shape", None) == (size,) and size <= MOST_LABELS and is_text(values):
        labels = tuple(texts(tree.read(values)))
        return Axis(name, labels=labels if all(labels) and len({*labels}) == size else ())
    if units is None:
        units = "" if values is None else label(attribute(values, "units"))
    numbers = getattr(values, "ndim", 0) == 1 and values.dtype.kind in "fiu"
    if not numbers or not values.size:
        return Axis(name)
    if values.size > MOST_VALUES:
        tree.doubts.append(uneven_axis(name, f"are too many to read: {values.size}"))
        return Axis(name)
    points = tree.read(values)
    if len(points) == 1:
        return Axis(name, units, 1.0, number(points[0], 0.0))
    if len(points) == size + 1 and size != 1:
        points = (points[1:].astype(float) + points[:-1]) / 2
    axis = Axis.through(name, units, points)
    if axis is None and len(points) == size:
        axis = Axis.at(name, units, points)
    if axis is None:
        why = "are not numbers" if not np.isfinite(points).all() else "are not equally spaced"
        if len(points) != size:
            why += f", and there are {len(points)} for {size} pixels"
        tree.doubts.append(uneven_axis(name, why))
    return axis or Axis(name)
