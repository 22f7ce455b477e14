"""What viewers of OME-Zarr read of a group: axes, their types, scales and units.

Facts: the OME-NGFF specification, version 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_tiled.model.description import Axis

_SPACE = {
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
_TIME = {"ns": "nanosecond", "us": "microsecond", "µs": "microsecond", "ms": "millisecond"}
_TIME |= {"s": "second", "min": "minute", "h": "hour"}
_FULL_NAMES = _SPACE | _TIME
_TYPES: dict[int, list[str | None]] = {
    2: ["space", "space"],
    3: [None, "space", "space"],
    4: [None, "space", "space", "space"],
}
"""Images have two or three axes of space, the last ones, and one of no type before; no more."""


def image_of(name: str, names: Sequence[str], axes: Sequence[Axis | None]) -> dict[str, Any]:
    """Describe an array in a group as an image of OME-Zarr.

    Parameters
    ----------
    name : str
        The array in its group.
    names : sequence of str
        Those of its dimensions.
    axes : sequence of Axis or None
        What is known of them.

    Returns
    -------
    dict
        Attributes of the group; none where the specification has no such images: of fewer than two
        or more than four axes, with a name twice, or with an axis that runs backwards.
    """
    scaled = [axis or Axis(one) for one, axis in zip(names, axes, strict=True)]
    types = list(_TYPES.get(len(names), ()))
    if not types or len({*names}) < len(names) or any(axis.scale <= 0 for axis in scaled):
        return {}
    if scaled[0].units in _TIME and types[0] is None:
        types[0] = "time"
    elif len(names) == 3 and (names[0] == "z" or scaled[0].units in _SPACE):
        types[0] = "space"
    told = []
    for one, axis, kind in zip(names, scaled, types, strict=True):
        unit = _FULL_NAMES.get(axis.units, axis.units)
        told.append(
            {"name": one, **({"type": kind} if kind else {}), **({"unit": unit} if unit else {})}
        )
    moved = [
        {"type": "scale", "scale": [float(axis.scale) for axis in scaled]},
        {"type": "translation", "translation": [float(axis.offset) for axis in scaled]},
    ]
    datasets = [{"path": name, "coordinateTransformations": moved}]
    return {"ome": {"version": "0.5", "multiscales": [{"axes": told, "datasets": datasets}]}}
