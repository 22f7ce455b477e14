"""Metadata of OME-Zarr groups: pyramid levels, axes, scales and units.

Follows the OME-NGFF specification: 0.5 for what is written, 0.1 to 0.5 for what is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.model.axes import Axis
from dask_tiled.model.colours import drawn, of_channels, rgb_in
from dask_tiled.model.indexing import Array
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
    version: str = "0.5",
    *,
    title: str = "",
    has_labels: bool = False,
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
    version : {"0.4", "0.5"}
        Version of the specification: for format 2 or 3 of zarr.
    title : str
        Name of the image; without one, it has none.
    has_labels : bool
        Whether the pixels are labels, of objects in another image.

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
    if title:
        image["name"] = title
    if halving is not None and len(paths) > 1:
        image["type"] = halving.method
    channels = _channels(scaled[types.index(CHANNEL)], dtype) if CHANNEL in types else []
    beside: dict[str, Any] = {"omero": {"channels": channels}} if channels else {}
    if has_labels:
        beside["image-label"] = {"version": version}
    if version == "0.4":
        return {"multiscales": [{"version": version, **image}], **beside}
    return {"ome": {"version": version, "multiscales": [image], **beside}}


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


KEYS = (
    "multiscales", "omero", "plate", "well", "labels", "image-label", "series",
    "bioformats2raw.layout",
)  # fmt: skip
"""Attributes of groups, which version 0.5 keeps below "ome"."""
FIRST_VERSIONS = "0.1", "0.2"
"""Versions whose images have five axes without names, in the order t, c, z, y, x."""


class StoredImage(NamedTuple):
    """The metadata of an image in a group, as far as they are valid."""

    levels: tuple[str, ...] = ()
    """Paths of its arrays, from the largest to the smallest; empty without an image."""
    told: Mapping[str, Any] = {}
    """The element of ``multiscales``."""
    omero: Mapping[str, Any] = {}
    has_labels: bool = False
    """Whether its pixels are labels."""

    def axes(self, path: str, ndim: int) -> list[dict[str, Any]] | None:
        """Return names, units, scales, labels and colours of the axes of an array of the image.

        None if their number differs; what is invalid is left out.
        """
        named = self._named(ndim)
        if named is None:
            return None
        scale, offset = self._moved(path, ndim)
        names, colours = self._channels()
        found = []
        for k, (name, kind, unit) in enumerate(named):
            axis = {"name": name, "units": unit_of(unit), "scale": scale[k], "offset": offset[k]}
            if kind == CHANNEL or (not kind and name == "c"):
                axis |= {"labels": names, "colours": colours}
            found.append(axis)
        return found

    def _named(self, ndim: int) -> list[tuple[str, str, str]] | None:
        """Return name, type and unit of each axis."""
        told = self.told.get("axes")
        if told is None and self.told.get("version") in FIRST_VERSIONS and ndim == 5:
            told = [*"tczyx"]
        if not isinstance(told, list) or len(told) != ndim:
            return None
        dicts = [one if isinstance(one, Mapping) else {"name": one} for one in told]
        keys = "name", "type", "unit"
        texts = ([one.get(key) for key in keys] for one in dicts)
        return [tuple(x if isinstance(x, str) else "" for x in text) for text in texts]  # type: ignore[misc]

    def _moved(self, path: str, ndim: int) -> tuple[list[float], list[float]]:
        """Return the scales and offsets of a level; NaN and 0 if they are invalid."""
        scale, offset = np.ones(ndim), np.zeros(ndim)
        with suppress(KeyError, TypeError, ValueError):
            level = self.told["datasets"][self.levels.index(path)]
            of_all = self.told.get("coordinateTransformations", ())
            for step in (*level["coordinateTransformations"], *of_all):
                if step["type"] == "scale":
                    factor = _numbers(step["scale"], ndim)
                    scale, offset = scale * factor, offset * factor
                elif step["type"] == "translation":
                    offset = offset + _numbers(step["translation"], ndim)
            return np.where(scale > 0, scale, math.nan).tolist(), offset.tolist()
        return [math.nan] * ndim, [0.0] * ndim

    def _channels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names and colours of the channels that viewers show; empty if unknown."""
        listed = self.omero.get("channels")
        told = [
            one if isinstance(one, Mapping) else {}
            for one in (listed if isinstance(listed, list) else ())
        ]
        names = tuple(str(one.get("label") or "") for one in told)
        colours = of_channels([rgb_in(str(one.get("color", ""))) for one in told])
        return names if all(names) else (), colours


def _numbers(listed: Any, count: int) -> Array:
    """Return a list of numbers; raise a ValueError if there are fewer or more."""
    numbers = np.array(listed, float)
    if numbers.shape != (count,):
        raise ValueError(f"expected {count} numbers, found {numbers.shape}")
    return numbers


def ome_in(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes of OME-Zarr in a document; empty if there are none."""
    attributes = document.get("attributes")
    told = attributes.get("ome") if isinstance(attributes, Mapping) else None
    return told if isinstance(told, Mapping) else {}


def image_in(document: Mapping[str, Any]) -> StoredImage:
    """Return the first image of a group; without levels if there is none or it is invalid."""
    told = ome_in(document)
    with suppress(KeyError, TypeError, IndexError):
        image, omero = told["multiscales"][0], told.get("omero")
        levels = tuple(one["path"] for one in image["datasets"])
        if all(isinstance(path, str) for path in levels):
            omero = omero if isinstance(omero, Mapping) else {}
            return StoredImage(levels, image, omero, "image-label" in told)
    return StoredImage()
