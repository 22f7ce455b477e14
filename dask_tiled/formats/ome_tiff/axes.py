"""Axes of an OME image: names, units and scales, with those that modulo annotations split."""

from __future__ import annotations

import math

from dask_tiled.formats.ome_tiff.xml import Image, Modulo
from dask_tiled.model.description import Axis


def nav_axes_of(
    image: Image, shape: tuple[int, int, int], modulo: dict[str, Modulo], *, squeeze: bool
) -> tuple[tuple[Axis, ...], tuple[int, ...]]:
    """Give the axes of planes, in the order T, C and Z, and how many there are along each.

    `modulo` are the axes inside of them; with `squeeze` those of one plane are left out.
    """
    axes: list[tuple[Axis, int]] = []
    for letter, size in zip("TCZ", shape, strict=True):
        inner = modulo.get(letter)
        if inner is None or inner.size < 2 or size % inner.size:
            axes.append((_axis(image, letter), size))
            continue
        axes.append((_axis(image, letter, inner.size), size // inner.size))
        axes.append((_inner_axis(letter, inner, {axis.name for axis, _ in axes}), inner.size))
    kept = [(axis, size) for axis, size in axes if size > 1 or not squeeze]
    return tuple(axis for axis, _ in kept), tuple(size for _, size in kept)


def sig_axes_of(image: Image, shape: tuple[int, ...], letters: str) -> tuple[Axis, ...]:
    """Give the axes of a page, which has fewer pixels than the XML says on levels of a pyramid."""
    return tuple(
        _axis(image, letter.upper(), image.sizes[letter.upper()] / size)
        if letter in "yx"
        else Axis("depth" if letter == "z" else letter)
        for letter, size in zip(letters, shape, strict=True)
    )


def _axis(image: Image, letter: str, factor: float = 1.0) -> Axis:
    """Give an axis whose positions are ``factor`` times as far apart as the XML says."""
    scale, units = image.scales.get(letter, (math.nan, ""))
    return Axis.calibrated(letter.lower(), units, scale * factor)


def _inner_axis(letter: str, inner: Modulo, taken: set[str]) -> Axis:
    clash = inner.name in taken | {"t", "c", "z", "y", "x", "s", ""}
    name = f"{letter.lower()}_{inner.name or 'inner'}" if clash else inner.name
    return Axis.calibrated(name, inner.units, inner.step, inner.start)
