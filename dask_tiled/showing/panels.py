"""Panels of a picture: images, vectors and lines on axes with units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array
from dask_tiled.model.units import SHOWN, Prefixed, prefixes_of

PERCENTILES, DARK = (0.5, 99.5), 0.1
"""Percentiles of black and white; below this median brightness, dark values are enhanced."""


class Mark(NamedTuple):
    """Lines or positions over a picture, in its pixels as (y, x)."""

    lines: Array
    """Lines of shape (n, points, 2)."""
    places: Array
    """Positions of shape (n, 2)."""


class ImagePanel(NamedTuple):
    """A gray or colour image on two axes."""

    title: str
    values: Array
    axes: tuple[Axis, Axis]
    units: str = ""
    marks: tuple[Mark, ...] = ()
    colours: str = "gray"
    """Name of a colour map."""
    ends: tuple[str, str] = ("", "")
    """Directions at the ends of both axes, such as ``"SI"``, if known."""


class VectorPanel(NamedTuple):
    """Vectors on a plane, of shape (2, y, x): y components, then x components."""

    title: str
    values: Array
    axes: tuple[Axis, Axis]
    units: str = ""


class PhasePanel(NamedTuple):
    """Complex numbers on a plane."""

    title: str
    values: Array
    axes: tuple[Axis, Axis]
    units: str = ""


class Composite(NamedTuple):
    """Channels in one image, each in its own colour."""

    title: str
    channels: Sequence[ImagePanel]
    colours: Sequence[str]
    """Colours of the channels, as "#rrggbb"."""

    @property
    def image(self) -> ImagePanel:
        """The image of all channels, with their colours added."""
        light = np.zeros((*self.channels[0].values.shape, 3))
        for channel, colour in zip(self.channels, self.colours, strict=False):
            low, high, _ = contrast(channel.values)
            with np.errstate(invalid="ignore"):
                bright = np.nan_to_num(np.clip((channel.values - low) / (high - low), 0, 1))
            light += bright[..., np.newaxis] * [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        values = (255 * np.minimum(light, 1)).astype(np.uint8)
        return self.channels[0]._replace(title=self.title, values=values)


class Line(NamedTuple):
    """Lines along an axis, of shape (n, length), with their names."""

    title: str
    values: Array
    axis: Axis
    units: str = ""
    names: Sequence[str] = ()


Panel = ImagePanel | VectorPanel | PhasePanel | Composite | Line


def contrast(
    values: Array, percentiles: tuple[float, float] = PERCENTILES
) -> tuple[float, float, float]:
    """Return the values of black and white, and a gamma that enhances dark values."""
    finite = np.ma.compressed(values[np.isfinite(values)])  # without masked values
    if not finite.size:
        return 0.0, 1.0, 1.0
    low, middle, high = np.percentile(finite, (percentiles[0], 50, percentiles[1])).tolist()
    if low == high:
        low, high = float(finite.min()), float(finite.max())
    if low == high:
        return low, low + 1, 1.0
    if values.dtype.kind in "iu" and high - low <= 1:  # two levels, as of a mask
        return low, high, 1.0
    share = max((middle - low) / (high - low), 1e-9)
    dark = low >= 0 and share < DARK
    return low, high, max(0.25, round(math.log(2 * DARK) / math.log(share), 2)) if dark else 1.0


def colours_of(values: Array) -> Array:
    """Return colours scaled to 0 to 1; uint8 is unchanged."""
    if values.dtype == np.uint8:
        return values
    low, high, _ = contrast(values[..., :3])
    with np.errstate(invalid="ignore"):
        return np.clip(np.nan_to_num((values - low) / (high - low)), 0, 1)


def hues(y: Array, x: Array, longest: float, colours: Any = None) -> Array:
    """Return colours of vectors: hue is the direction, with y downwards, brightness the length.

    ``colours`` is a cyclic colour map of matplotlib for the directions, from right to up.
    """
    from matplotlib.colors import hsv_to_rgb

    with np.errstate(invalid="ignore"):
        turn = np.nan_to_num(np.arctan2(-y, x) / (2 * np.pi)) % 1
        light = np.nan_to_num(np.clip(np.hypot(y, x) / (longest or 1), 0, 1))
    if colours is None:
        rgb = hsv_to_rgb(np.stack([turn, np.full_like(light, 0.9), light], axis=-1))
    else:
        rgb = colours(turn)[..., :3] * light[..., np.newaxis]
    return np.asarray(255 * rgb).astype(np.uint8)


def in_units(axis: Axis, extent: float) -> Axis:
    """Return the axis with a unit prefix in which a length is readable."""
    unit = Prefixed.of(axis.units)
    if unit is None or unit.prefix not in SHOWN.values():
        return axis
    prefixes = prefixes_of(unit.base).values()
    factors = {x: 10.0 ** (unit.power - unit._replace(prefix=x).power) for x in prefixes}
    sizes = {x: extent * factor for x, factor in factors.items()}
    if not unit.prefix or not 0.1 <= extent < 1000:
        best = min(sizes, key=lambda x: (not 1 <= sizes[x] < 1000, abs(math.log10(sizes[x]))))
        factor, unit = factors[best], unit._replace(prefix=best)
        axis = replace(axis, scale=axis.scale * factor, offset=axis.offset * factor)
    return replace(axis, units=str(unit))


def round_length(most: float) -> float:
    """Return the largest 1, 2 or 5 times a power of ten up to ``most``."""
    power = 10.0 ** math.floor(math.log10(most))
    return max(digit * power for digit in (1, 2, 5) if digit * power <= most * (1 + 1e-9))
