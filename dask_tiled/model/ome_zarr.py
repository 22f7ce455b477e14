"""Metadata of OME-Zarr groups: pyramid levels, axes, scales and units.

Follows the OME-NGFF specification, version 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dask_tiled.model.axes import Axis

SPACE = {
    "pm": "picometer",
    "A": "angstrom",
    "Å": "angstrom",
    "nm": "nanometer",
    "um": "micrometer",
    "µm": "micrometer",
    "μm": "micrometer",
    "mm": "millimeter",
    "cm": "centimeter",
    "m": "meter",
}
TIME = {"ns": "nanosecond", "us": "microsecond", "µs": "microsecond", "ms": "millisecond"}
TIME |= {"s": "second", "min": "minute", "h": "hour"}
_SYMBOLS = {name: unit for unit, name in (SPACE | TIME).items()} | {"micrometer": "µm"}
_FULL_NAMES = SPACE | TIME
_TYPES: dict[int, list[str | None]] = {
    2: ["space", "space"],
    3: [None, "space", "space"],
    4: [None, "space", "space", "space"],
}
"""Axis types by number of axes: two or three space axes come last, after at most one untyped
axis."""


def image_of(
    paths: Sequence[str], names: Sequence[str], axes: Sequence[Axis | None], binned: int = 0
) -> dict[str, Any]:
    """Return OME-Zarr metadata of an image: an array of a group and its pyramid levels.

    Parameters
    ----------
    paths : sequence of str
        The array in its group, then the levels made of it.
    names : sequence of str
        Names of its dimensions.
    axes : sequence of Axis or None
        Axes of the dimensions; None if unknown.
    binned : int
        Number of trailing axes that are halved from one level to the next.

    Returns
    -------
    dict
        Attributes of the group; empty for images that the specification does not support: with
        fewer than two or more than four axes, repeated names, or an axis of negative scale.
    """
    scaled = [axis or Axis(one) for one, axis in zip(names, axes, strict=True)]
    types = list(_TYPES.get(len(names), ()))
    if not types or len({*names}) < len(names) or any(axis.scale <= 0 for axis in scaled):
        return {}
    if scaled[0].units in TIME and types[0] is None:
        types[0] = "time"
    elif len(names) == 3 and (names[0] == "z" or scaled[0].units in SPACE):
        types[0] = "space"
    told = []
    for one, axis, kind in zip(names, scaled, types, strict=True):
        unit = _FULL_NAMES.get(axis.units, axis.units)
        told.append(
            {"name": one, **({"type": kind} if kind else {}), **({"unit": unit} if unit else {})}
        )
    datasets = []
    for k, path in enumerate(paths):
        shown = [axis or Axis("") for axis in at_level(scaled, binned, k)]
        moved = [
            {"type": "scale", "scale": [float(axis.scale) for axis in shown]},
            {"type": "translation", "translation": [float(axis.offset) for axis in shown]},
        ]
        datasets.append({"path": path, "coordinateTransformations": moved})
    image: dict[str, Any] = {"axes": told, "datasets": datasets}
    if len(paths) > 1:
        image["type"] = "mean"
    return {"ome": {"version": "0.5", "multiscales": [image]}}


def at_level(axes: Sequence[Axis | None], binned: int, level: int) -> tuple[Axis | None, ...]:
    """Return the axes of a level, whose pixels lie at the centres of those they average."""
    first = len(axes) - binned
    return (*axes[:first], *(axis and axis.binned(1 << level) for axis in axes[first:]))


def image_in(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first image of a group; empty if there is none or it is invalid."""
    with suppress(KeyError, TypeError, IndexError):
        image = document["attributes"]["ome"]["multiscales"][0]
        if all(isinstance(one["path"], str) for one in image["datasets"]):
            return image
    return {}


def levels_of(image: Mapping[str, Any]) -> tuple[str, ...]:
    """List the arrays of an image, from the largest to the smallest."""
    return tuple(one["path"] for one in image.get("datasets", ()))


def axes_of(image: Mapping[str, Any], path: str) -> list[dict[str, Any]] | None:
    """Return name, unit, scale and offset of each axis of an image's array; None if invalid."""
    with suppress(KeyError, TypeError, ValueError):
        told = image["axes"]
        scale, offset = np.ones(len(told)), np.zeros(len(told))
        level = image["datasets"][levels_of(image).index(path)]
        of_all = image.get("coordinateTransformations", ())
        for step in (*level["coordinateTransformations"], *of_all):
            if step["type"] == "scale":
                scale, offset = scale * step["scale"], offset * step["scale"]
            elif step["type"] == "translation":
                offset = offset + step["translation"]
        if np.isfinite([scale, offset]).all() and (scale > 0).all():
            columns = told, scale.tolist(), offset.tolist()
            return [
                {"name": one["name"], "units": _symbol(one), "scale": size, "offset": start}
                for one, size, start in zip(*columns, strict=True)
            ]
    return None


def _symbol(axis: Mapping[str, Any]) -> str:
    unit = str(axis.get("unit", ""))
    return _SYMBOLS.get(unit, unit)
