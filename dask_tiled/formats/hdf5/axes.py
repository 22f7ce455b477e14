"""Names, units and scales that conventions of HDF5 files give to the axes of a dataset.

Layout facts: the NeXus manual (NXdata, NXdetector), the EMD file format of the NCEM and of py4DSTEM
(emdfile 1.0), the specification of HyperSpy's files, and the Eiger documentation of Dectris.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats.hdf5 import velox
from dask_tiled.formats.hdf5.attributes import (
    attribute,
    label,
    number,
    text,
    texts,
)
from dask_tiled.formats.hdf5.datasets import Picture
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.model.axes import Axis, nav_axes, sig_axes

MOST_VALUES = 1 << 20
"""Axes with more values than this are not read."""
PREFIXED = re.compile(
    r"(?<![^\W_])(?<!_)(da|[yzafpnuµμmcdhkMGTPEZY])_"
    r"(m|s|g|A|V|eV|Hz|rad|sr|K|Pa|bar|W|J|C|F|T|N|mol|L|Ohm|Ω)(?![^\W\d])"
)
"""A unit as the NCEM writes it: ``n_m`` for nm. Other lines below are a part of the unit."""


class Calibration(NamedTuple):
    """What a file says about the axes of a dataset."""

    convention: str
    """Where it says so."""
    axes: tuple[Axis, ...]
    """Without a name where the file gives none."""
    sig_dims: int | None = None
    """How many of them are signal axes, if it says that."""


def calibration(tree: Tree, picture: Picture) -> Calibration:
    """Read the axes of an array, by the first convention that it follows."""
    if picture.order:
        return Calibration("Velox", velox.axes(tree, picture), velox.sig_dims(picture))
    path = picture.path if picture.is_series else posixpath.dirname(picture.path)
    group = tree.get(tree.root, path)
    found = (read(tree, group, picture) for read in (_hspy, _nexus, _emd, _eiger))
    nothing = Calibration("", (Axis(""),) * len(picture.shape))
    return next(filter(None, found), nothing)


def named(axes: Sequence[Axis], nav_ndim: int) -> tuple[Axis, ...]:
    """Give the usual names to axes that have none, or one that another has, too."""
    usual = nav_axes(nav_ndim) + sig_axes(len(axes) - nav_ndim)
    names = [axis.name for axis in axes]
    found = list(axes)
    for k, axis in enumerate(axes):
        if not axis.name or names.count(axis.name) > 1:
            name = usual[k].name
            found[k] = replace(axis, name=f"axis_{k}" if name in names else name)
    return tuple(found)


def _hspy(tree: Tree, group: Any, picture: Picture) -> Calibration | None:
    parts = [tree.look(group, f"axis-{k}") for k in range(len(picture.shape))]
    if not parts or any(part is None for part in parts):
        return None
    known = {"navigate", "index_in_array", "scale"}  # up to version 1.2 the last one alone
    if not all(known & set(part.attrs) for part in parts):
        return None
    places = [int(number(attribute(part, "index_in_array"), k)) for k, part in enumerate(parts)]
    if sorted(places) == list(range(len(parts))):
        parts = [parts[places.index(k)] for k in range(len(parts))]
    axes, navigate = [], []
    for part, size in zip(parts, picture.shape, strict=True):
        axis = Axis(label(attribute(part, "name")), label(attribute(part, "units")))
        values, scale = tree.look(part, "axis"), attribute(part, "scale")
        if scale is None and values is not None:  # it is not uniform, perhaps
            axes.append(replace(_axis(tree, values, axis.name, size), units=axis.units))
        else:
            offset = number(attribute(part, "offset"), 0.0)
            step = number(scale, 1.0)
            axes.append(Axis.calibrated(axis.name, axis.units, step, offset, signed=True))
        navigate.append(attribute(part, "navigate"))
    if any(one is None for one in navigate):  # before version 1.3
        return Calibration("HyperSpy", tuple(axes), _recorded_by(tree, group))
    navigates = [bool(np.all(one)) for one in navigate]
    count = navigates.count(False)
    first = all(navigates[: len(navigates) - count])  # otherwise nothing that we could split
    return Calibration("HyperSpy", tuple(axes), max(1, count) if first else None)


def _recorded_by(tree: Tree, group: Any) -> int | None:
    """Read how many signal axes there are from what old files say of the signal."""
    for path in ("mapped_parameters", "metadata/Signal"):
        part = tree.look(group, path)
        if part is not None:
            found = {"spectrum": 1, "image": 2}.get(text(attribute(part, "record_by")))
            if found is not None:
                return found
    return None


def _nexus(tree: Tree, group: Any, picture: Picture) -> Calibration | None:
    own, shape = picture.members[0], picture.shape
    signal, marked = attribute(group, "signal"), attribute(own, "signal")
    if text(attribute(group, "NX_class")) not in {"NXdata", "NXdetector"} and marked is None:
        return None
    kinds = {"image": 2, "spectrum": 1, "vertex": 1}
    told = attribute(own, "interpretation"), attribute(group, "interpretation")
    kind = next(filter(None, map(text, told)), "")
    axes = [Axis("")] * len(shape)
    signals = [text(signal), *texts(attribute(group, "auxiliary_signals"))]
    listed = attribute(own, "axes")
    if posixpath.basename(picture.path) in signals or listed is not None:
        for k, axis in enumerate(texts(attribute(group, "axes") if listed is None else listed)):
            indices = np.atleast_1d(np.asarray(attribute(group, f"{axis}_indices")))
            at = int(indices[0]) if indices.size and indices.dtype.kind in "iu" else k
            if axis and 0 <= at < len(shape) and indices.size == 1:
                axes[at] = _axis(tree, tree.look(group, axis), axis, shape[at])
    sig_dims = min(kinds[kind], len(shape)) if kind in kinds else None
    return Calibration("NeXus", tuple(axes), sig_dims)


def _emd(tree: Tree, group: Any, picture: Picture) -> Calibration | None:
    if "emd_group_type" not in group.attrs:
        return None
    first = 1 if tree.look(group, "dim0") is None else 0
    axes = []
    for k, size in enumerate(picture.shape):
        values = tree.look(group, f"dim{k + first}")
        name = "" if values is None else label(attribute(values, "name"))
        axis = _axis(tree, values, name, size)
        units = PREFIXED.sub(r"\1\2", axis.units.strip("[]"))
        axes.append(replace(axis, units=label(units)))
    return Calibration("EMD", tuple(axes))


def _eiger(tree: Tree, group: Any, picture: Picture) -> Calibration | None:
    axes = [Axis("frame")]
    detector = tree.look(group.parent, "instrument/detector")
    if len(picture.shape) != 3 or detector is None:
        return None
    for name in ("y", "x"):
        size = tree.look(detector, f"{name}_pixel_size")
        if getattr(size, "shape", None) not in {(), (1,)} or size.dtype.kind not in "fiu":
            return None
        scale = number(tree.read(size), 1.0)
        axes.append(Axis(name, label(attribute(size, "units")) or "m", scale))
    return Calibration("Eiger", tuple(axes), 2)


def _axis(tree: Tree, values: Any, name: str, size: int) -> Axis:
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
