"""Axes that a dataset describes in JSON: ``axistags`` of VIGRA and ilastik, ``properties`` of Nion.

Layout facts: files of ilastik and of Nion Swift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dask_tiled.formats.hdf5.attributes import attribute, text
from dask_tiled.formats.hdf5.convention import Calibration, Convention
from dask_tiled.formats.hdf5.datasets import Picture
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.formats.tools.text import number_in, parse_json
from dask_tiled.model.axes import Axis

MOST_TEXT = 1 << 20
"""Longer JSON is not read."""
COLOURS = "c"
"""Key of the axis of channels of VIGRA."""


class Vigra(Convention):
    """Axis tags of VIGRA, which ilastik writes."""

    name = "axis tags of VIGRA"

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:  # noqa: ARG002
        """Read keys and resolutions of the axes; 0 is an unknown resolution."""
        tags = _list(_document(picture, "axistags").get("axes"))
        if picture.order or len(tags) != len(picture.shape):
            return None
        axes = [_tagged(one) for one in tags]
        keys = [axis.name for axis in axes]
        inner = 3 if keys[-1:] == [COLOURS] and {*keys[-3:-1]} == {*"xy"} else None
        return Calibration(tuple(axes), inner)


class NionSwift(Convention):
    """Properties of a data item of Nion Swift."""

    name = "properties of Nion Swift"

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:  # noqa: ARG002
        """Read the calibrations, and the number of axes of a datum."""
        said = _document(picture, "properties")
        sources = _list(said.get("data_sources"))
        for one in (said, *sources[:1]):
            listed = _list(_mapping(one).get("dimensional_calibrations"))
            if not picture.order and len(listed) == len(picture.shape):
                count = _mapping(one).get("datum_dimension_count")
                valid = type(count) is int and 0 < count <= len(listed)
                return Calibration(tuple(map(_calibrated, listed)), count if valid else None)
        return None


def _document(picture: Picture, name: str) -> Mapping[str, Any]:
    """Return the JSON in an attribute of a dataset; empty if there is none."""
    told = text(attribute(picture.members[0], name))
    try:
        return _mapping(parse_json(told)) if 0 < len(told) <= MOST_TEXT else {}
    except ValueError:
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _tagged(tag: Any) -> Axis:
    key = _mapping(tag).get("key")
    name = key if isinstance(key, str) and key.isprintable() and key != "?" else ""
    return Axis.calibrated(name, "", number_in(tag, "resolution") or 1.0)


def _calibrated(told: Any) -> Axis:
    units = _mapping(told).get("units")
    step, offset = number_in(told, "scale"), number_in(told, "offset")
    return Axis.calibrated("", units if isinstance(units, str) else "", step, offset, signed=True)
