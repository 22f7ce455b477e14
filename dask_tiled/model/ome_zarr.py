"""Metadata of OME-Zarr groups: pyramid levels, axes, scales and units.

Follows the OME-NGFF specification, version 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from dask_tiled.model.axes import Axis
from dask_tiled.model.colours import drawn
from dask_tiled.model.ome_axes import CHANNEL, types_of, unit_of, word_of
from dask_tiled.model.pyramids import Halving

MOST_CHANNELS = 64
"""More channels are not listed for viewers: they are a spectrum."""


def image_of(
    paths: Sequence[str],
    names: Sequence[str],
    axes: Sequence[Axis | None],
    dtype: np.dtype,
    halving: Halving | None = None,
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
    dtype : dtype
        Type of the pixels.
    halving : Halving, optional
        How the levels are computed.

    Returns
    -------
    dict
        Attributes of the group; empty for images that the specification does not support: with
        fewer than two or more than five axes, in another order than time, channels, space, with
        repeated names, or an axis of negative scale.
    """
    scaled = [replace(axis or Axis(one), name=one) for one, axis in zip(names, axes, strict=True)]
    types = types_of(scaled)
    if types is None or len({*names}) < len(names) or any(axis.scale <= 0 for axis in scaled):
        return {}
    told = []
    for axis, kind in zip(scaled, types, strict=True):
        unit = word_of(axis.units)
        told.append({"name": axis.name, "type": kind, **({"unit": unit} if unit else {})})
    datasets = []
    for k, path in enumerate(paths):
        at_level = scaled if halving is None else halving.at_level(scaled, k)
        shown = [axis or Axis("") for axis in at_level]
        moved = [
            {"type": "scale", "scale": [float(axis.scale) for axis in shown]},
            {"type": "translation", "translation": [float(axis.offset) for axis in shown]},
        ]
        datasets.append({"path": path, "coordinateTransformations": moved})
    image: dict[str, Any] = {"axes": told, "datasets": datasets}
    if halving is not None and len(paths) > 1:
        image["type"] = halving.method
    found: dict[str, Any] = {"version": "0.5", "multiscales": [image]}
    channels = _channels(scaled[types.index(CHANNEL)], dtype) if CHANNEL in types else []
    return {"ome": found | ({"omero": {"channels": channels}} if channels else {})}


def _channels(axis: Axis, dtype: np.dtype) -> list[dict[str, Any]]:
    """List the channels of an axis with names or colours for viewers, with the range of a dtype."""
    count = len(axis.labels or axis.colours)
    if count > MOST_CHANNELS or dtype.kind not in "iuf":
        return []
    names, colours = axis.labels or map(str, range(count)), drawn(axis.colours, count)
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (0, 1)
    window = {"min": low, "max": high, "start": low, "end": high}
    return [
        {"label": name, "color": colour[1:].upper(), "active": True, "window": window}
        for name, colour in zip(names, colours, strict=True)
    ]


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
                {
                    "name": one["name"],
                    "units": unit_of(str(one.get("unit", ""))),
                    "scale": size,
                    "offset": start,
                }
                for one, size, start in zip(*columns, strict=True)
            ]
    return None
