"""What a group of OME-Zarr says of the arrays in it: the levels of a pyramid, and their axes.

Facts: the OME-NGFF specification, version 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

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


def image_in(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first image of a group; nothing where it has none that can be understood."""
    with suppress(KeyError, TypeError, IndexError):
        image = document["attributes"]["ome"]["multiscales"][0]
        if all(isinstance(one["path"], str) for one in image["datasets"]):
            return image
    return {}


def levels_of(image: Mapping[str, Any]) -> tuple[str, ...]:
    """List the arrays of an image, from the largest to the smallest."""
    return tuple(one["path"] for one in image.get("datasets", ()))


def axes_of(image: Mapping[str, Any], path: str) -> list[dict[str, Any]] | None:
    """Return names, units, scales and offsets of an array of an image; None where it lacks them."""
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
