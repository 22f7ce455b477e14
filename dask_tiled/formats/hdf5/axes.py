"""Names, units and scales that conventions of HDF5 files give to the axes of a dataset.

Layout facts: the NeXus manual (NXdata, NXdetector), the EMD file format of the NCEM and of py4DSTEM
(emdfile 1.0), the specification of HyperSpy's files, and the Eiger documentation of Dectris.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats.hdf5.datasets import Picture
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.model.description import Axis, nav_axes, sig_axes

MOST_VALUES = 1 << 20
"""Axes with more values than this are not read."""
NOTHING = {"", ".", "_None_", "<undefined>", "None"}
"""What stands for a name or a unit that is not there."""


class Calibration(NamedTuple):
    """What a file says about the axes of a dataset."""

    convention: str
    """Where it says so."""
    axes: tuple[Axis, ...]
    """Without a name where the file gives none."""
    sig_dims: int | None = None
    """How many of them are signal axes, if it says that."""


def text(value: Any) -> str:
    """Read text, however it is stored; empty where it is something else."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        value = value.decode("utf8", "replace")
    return str(value) if isinstance(value, str) else ""


def label(value: Any) -> str:
    """Read a name or a unit; empty where the text stands for nothing."""
    found = text(value).strip()
    return "" if found in NOTHING else found


def texts(value: Any) -> list[str]:
    """Read a list of texts: an array of them, or one with colons or commas between them."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return [label(item) for item in value]
    return [label(name) for name in re.split(r"[:,]", text(value).strip("[]"))]


def calibration(tree: Tree, picture: Picture) -> Calibration:
    """Read the axes of an array, by the first convention that it follows."""
    path = picture.path if len(picture.members) > 1 else posixpath.dirname(picture.path)
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
    if not parts or any(part is None or "navigate" not in part.attrs for part in parts):
        return None
    axes, navigate = [], []
    for part in parts:
        entry = dict(part.attrs)
        scale, offset = _number(entry.get("scale"), 1.0), _number(entry.get("offset"), 0.0)
        axes.append(Axis(label(entry.get("name")), label(entry.get("units")), scale, offset))
        navigate.append(bool(np.all(entry["navigate"])))
    count = navigate.count(False)
    first = all(navigate[: len(navigate) - count])  # otherwise nothing that we could split
    return Calibration("HyperSpy", tuple(axes), max(1, count) if first else None)


def _nexus(tree: Tree, group: Any, picture: Picture) -> Calibration | None:
    here, own, shape = dict(group.attrs), dict(picture.members[0].attrs), picture.shape
    if text(here.get("NX_class")) not in {"NXdata", "NXdetector"} and "signal" not in own:
        return None
    kinds = {"image": 2, "spectrum": 1, "vertex": 1}
    kind = text(own.get("interpretation", here.get("interpretation")))
    axes = [Axis("")] * len(shape)
    signals = [text(here.get("signal")), *texts(here.get("auxiliary_signals"))]
    if posixpath.basename(picture.path) in signals or "axes" in own:
        names = texts(own.get("axes", here.get("axes")))
        for k, axis in enumerate(names):
            indices = np.atleast_1d(here.get(f"{axis}_indices", k))
            at = int(indices[0]) if indices.size and indices.dtype.kind in "iu" else k
            if axis and at < len(shape) and indices.size == 1:
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
        name = "" if values is None else label(values.attrs.get("name"))
        axis = _axis(tree, values, name, size)
        # Files of the NCEM have [n_m].
        axes.append(replace(axis, units=axis.units.strip("[]").replace("_", "")))
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
        scale = _number(tree.read(size), 1.0)
        axes.append(Axis(name, label(size.attrs.get("units")) or "m", scale))
    return Calibration("Eiger", tuple(axes), 2)


def _axis(tree: Tree, values: Any, name: str, size: int) -> Axis:
    """Read an axis from its values, or from the first of them, if they are equally spaced."""
    units = label(getattr(values, "attrs", {}).get("units"))
    numbers = getattr(values, "ndim", 0) == 1 and values.dtype.kind in "fiu"
    if not numbers or not 0 < values.size <= MOST_VALUES:
        return Axis(name, units)
    points = tree.read(values).astype(float)
    if len(points) == size + 1 and size != 1:  # edges of bins
        points = (points[1:] + points[:-1]) / 2
    if len(points) == 1:
        return Axis(name, units, 1.0, _number(points[0], 0.0))
    scale = float(points[-1] - points[0]) / (len(points) - 1)
    line = points[0] + scale * np.arange(len(points))
    if not scale or not np.isfinite(scale) or not (abs(points - line) <= 1e-3 * abs(scale)).all():
        return Axis(name, units)
    return Axis(name, units, scale, float(points[0]))


def _number(value: Any, default: float) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        return default
    return float(array.reshape(-1)[0])


def plain_attributes(attributes: Any, most: int = 64) -> Mapping[str, Any]:
    """Read attributes as plain values: the first ones, and of arrays only small ones."""
    found: dict[str, Any] = {}
    for key in list(attributes)[:most]:
        try:
            value = attributes[key]
        except (OSError, RuntimeError, TypeError, ValueError, KeyError):
            continue  # of a type that h5py does not know
        if isinstance(value, (bytes, str)):
            found[key] = text(value)[:1000]
        elif getattr(value, "size", most + 1) <= most and value.dtype.kind in "biufcSUO":
            items = [text(v) if isinstance(v, (bytes, str)) else v for v in value.ravel().tolist()]
            if all(isinstance(item, (bool, int, float, complex, str)) for item in items):
                found[key] = items[0] if value.ndim == 0 else tuple(items)
    return found
