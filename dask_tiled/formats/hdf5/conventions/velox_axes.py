"""Metadata of the data of Velox, a column of JSON for each frame, and the axes in them."""

from __future__ import annotations

from typing import Any

from dask_tiled.formats.hdf5.conventions.velox_json import (
    MOST_TEXT,
    Json,
    number_in,
    parsed,
    part_of,
    text_in,
)
from dask_tiled.formats.hdf5.datasets import Picture
from dask_tiled.formats.hdf5.tree import BROKEN, Tree
from dask_tiled.model.axes import Axis
from dask_tiled.model.units import prefixed


def metadata_of(tree: Tree, picture: Picture, path: str = "Metadata") -> Json:
    """Read the metadata of the first frame; empty if unreadable."""
    return column_of(tree, tree.look(picture.members[0].parent, path))


def column_of(tree: Tree, found: Any, number: int = 0) -> Json:
    """Read the metadata of a frame."""
    if getattr(found, "ndim", 0) != 2 or found.dtype != "u1" or found.shape[0] > MOST_TEXT:
        return {}
    try:
        tree.check_sources(found)
        column = found[:, number]
    except BROKEN:
        return {}
    return parsed(column.tobytes().partition(b"\0")[0])


def lengths_in(said: Json) -> tuple[Axis, ...]:
    """Return the axes of the pixels, y and x."""
    result = part_of(said, "BinaryResult")
    size, offset = part_of(result, "PixelSize"), part_of(result, "Offset")
    names = {"y": "height", "x": "width"}
    return tuple(
        _length(name, result.get(f"PixelUnit{name.upper()}"), size.get(key), offset.get(name))
        for name, key in names.items()
    )


def _length(name: str, units: Any, scale: Any, offset: Any) -> Axis:
    """Return an axis, in a unit with few leading zeros."""
    axis = Axis.calibrated(name, text_in(units), number_in(scale), number_in(offset))
    if axis.units == "1/m":
        return Axis(name, "1/nm", axis.scale / 1e9, axis.offset / 1e9)
    if axis.units != "m":
        return axis
    unit, factor = prefixed("m", axis.scale)
    return Axis(name, unit, axis.scale * factor, axis.offset * factor)


def detector_in(said: Json) -> Json:
    """Return what is told of the detector that recorded the data; empty if nothing."""
    name = text_in(part_of(said, "BinaryResult").get("Detector"))
    detectors = (one for one in part_of(said, "Detectors").values() if isinstance(one, dict))
    return next((one for one in detectors if name and one.get("DetectorName") == name), {})


def energies_in(said: Json) -> Axis:
    """Return the axis of the channels of a spectrum."""
    step, start = (number_in(detector_in(said).get(key)) for key in ("Dispersion", "OffsetEnergy"))
    return Axis.calibrated("Energy", "keV", step / 1000, start / 1000)
