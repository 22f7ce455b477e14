"""What viewers of OME-Zarr read of a group: axes, their types, scales and units.

Facts: the OME-NGFF specification, version 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_tiled.formats.zarr.ome import SPACE, TIME
from dask_tiled.model.axes import Axis

_FULL_NAMES = SPACE | TIME
_TYPES: dict[int, list[str | None]] = {
    2: ["space", "space"],
    3: [None, "space", "space"],
    4: [None, "space", "space", "space"],
}
"""Images have two or three axes of space, the last ones, and one of no type before; no more."""


def image_of(
    paths: Sequence[str], names: Sequence[str], axes: Sequence[Axis | None], binned: int = 0
) -> dict[str, Any]:
    """Describe an array in a group, and the levels of its pyramid, as an image of OME-Zarr.

    Parameters
    ----------
    paths : sequence of str
        The array in its group, then the levels made of it.
    names : sequence of str
        Those of its dimensions.
    axes : sequence of Axis or None
        What is known of them.
    binned : int
        So many of the last axes are halved from one level to the next.

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
    """Return the axes of a level: each of its pixels lies in the middle of those it is made of."""
    first = len(axes) - binned
    return (*axes[:first], *(axis and axis.binned(1 << level) for axis in axes[first:]))
