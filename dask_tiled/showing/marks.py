"""Marks over pictures: outlines of detectors, disks, and positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.measuring.disk_fits import Circle
from dask_tiled.measuring.disks import Disk
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array
from dask_tiled.showing.panels import ImagePanel, Mark

ANGLES = np.linspace(0, 2 * np.pi, 181)
EXPECTED = "a mask of the picture's shape, a disk, or positions of shape (n, 2)"
NO_LINES, NO_PLACES = np.empty((0, 2, 2)), np.empty((0, 2))


def circle(disk: Circle) -> Mark:
    """Return the edge of a disk."""
    turned = np.stack([np.sin(ANGLES), np.cos(ANGLES)], axis=-1)
    return Mark((np.array([disk.y, disk.x]) + disk.radius * turned)[np.newaxis], NO_PLACES)


def outline(mask: Array) -> Mark:
    """Return the edges between pixels inside and outside of a mask."""
    inside = np.pad(mask, 1).astype(np.int8)
    lines = []
    for axis, end in ((0, (0, 1)), (1, (1, 0))):
        places = np.argwhere(np.diff(inside, axis=axis)) - 1  # before an edge
        places = places + (np.array([1, 0]) if axis == 0 else np.array([0, 1])) - 0.5
        lines.append(np.stack([places, places + end], axis=1))
    return Mark(np.concatenate(lines), NO_PLACES)


def marked(panel: Any, overlay: Any, whole: Mapping[str, Axis]) -> Any:
    """Return a picture with marks over it.

    Parameters
    ----------
    panel : ImagePanel
    overlay : Disk, array or list of them
        Disks in pixels of the array. Masks have the shape of the array, and are drawn as the
        outline of their pixels above half of their maximum. Positions are of shape (n, 2), in units
        of the axes.
    whole : mapping of Axis
        The axes of the array by name, of whose pixels the panel may show only some.

    Raises
    ------
    DatasetError
        The picture is none of pixels, or the overlay does not fit it.
    """
    if not isinstance(panel, ImagePanel):
        name = panel.title or type(panel).__name__
        raise DatasetError("overlays are drawn on images", found=f"the picture {name!r}")
    steps = [round(axis.scale / whole.get(axis.name, axis).scale) or 1 for axis in panel.axes]
    several = overlay if isinstance(overlay, list) and not _are_positions(overlay) else [overlay]
    marks = tuple(_mark(panel, one, [*map(abs, steps)]) for one in several)
    return panel._replace(marks=(*panel.marks, *marks))


def _are_positions(overlay: list[Any]) -> bool:
    """Return whether a list holds pairs of numbers."""
    return all(
        isinstance(one, Sequence | np.ndarray) and len(one) == 2 and not any(map(np.ndim, one))
        for one in overlay
    )


def _mark(panel: ImagePanel, overlay: Any, steps: Sequence[int]) -> Mark:
    if isinstance(overlay, Disk):
        overlay = overlay.circle
    if isinstance(overlay, Circle):
        y, x = (place / step for place, step in zip(overlay[:2], steps, strict=True))
        return circle(Circle(y, x, overlay.radius / steps[0]))
    try:
        values = np.asarray(overlay)
    except ValueError:
        values = np.array(None)
    if values.dtype.kind == "f" and values.size and not np.isfinite(values).any():
        raise DatasetError("invalid overlay", expected=EXPECTED, found="no finite values")
    shape = panel.values.shape[:2]
    if values.dtype.kind not in "biuf":
        raise DatasetError("invalid overlay", expected=EXPECTED, found=type(overlay).__name__)
    if values.ndim == 2:
        shown = values[:: steps[0], :: steps[1]]
        if shown.shape == shape:
            return outline(np.nan_to_num(shown) > max(float(np.nanmax(shown)), 0) / 2)
    if values.ndim == 2 and values.shape[1] == 2:
        offsets, scales = (
            np.array([getattr(axis, name) for axis in panel.axes]) for name in ("offset", "scale")
        )
        return Mark(NO_LINES, (values - offsets) / scales)
    expected = f"{EXPECTED}; the picture {panel.title!r} has shape {shape}"
    raise DatasetError("invalid overlay", expected=expected, found=f"shape {values.shape}")
