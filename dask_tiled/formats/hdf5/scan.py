"""The scan of an Arina or Eiger detector, of which a file beside its master tells.

Layout facts: py4DSTEM and ncempy, which find the pixel size in nm there, and take the scan for
square. The file has the name of the master without ``_master``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats.hdf5.attributes import plain_attributes
from dask_tiled.formats.hdf5.tree import BROKEN, Tree
from dask_tiled.formats.tools.files import beside
from dask_tiled.model.axes import Axis

MASTER = "_master.h5"
GROUP = "STEM Metadata"
LENGTHS = {
    "y": re.compile(r"(scan|size|shape|n|pixels|points|num).*y|scan.*(height|rows)"),
    "x": re.compile(r"(scan|size|shape|n|pixels|points|num).*x|scan.*(width|columns)"),
}
"""How attributes may be called that say how many positions there are along an axis."""


class Scan(NamedTuple):
    """What the file beside a master says."""

    shape: tuple[int, int]
    """(y, x), which the frames fill."""
    axes: tuple[Axis, Axis]
    told_by: str
    """Where the shape stands, or from what it is inferred."""
    path: str
    """The group that says so, after the name of the file."""
    facts: Mapping[str, Any]
    """Its attributes; arrays of one item as that item."""


def read_scan(tree: Tree, frames: int) -> Scan | None:
    """Read the scan of so many frames; None where nothing tells of it, or not of so many."""
    master = tree.file.path
    path = beside(master.removesuffix(MASTER), ".h5") if master.endswith(MASTER) else None
    if path is None:
        return None
    try:
        facts = plain_attributes(tree.get(tree.open(path), GROUP))
    except BROKEN:  # errors of this package, too: a file that nobody asked for
        return None
    facts = {name: _only(value) for name, value in facts.items()}
    where = f"{os.path.basename(path)}/{GROUP}"
    shape, told_by = _shape(facts, frames)
    if shape is None:
        return None
    sizes = np.atleast_1d(np.asarray(facts.get("Pixel Size")))
    size = float(sizes[0]) if sizes.dtype.kind in "fiu" and len(set(sizes.tolist())) == 1 else 0.0
    axes = (Axis.calibrated("scan_y", "nm", size), Axis.calibrated("scan_x", "nm", size))
    return Scan(shape, axes, told_by.format(where), where, facts)


def _shape(facts: Mapping[str, Any], frames: int) -> tuple[tuple[int, int] | None, str]:
    """Find two lengths that give so many frames; or else take the scan for square."""
    lengths: dict[str, tuple[str, int]] = {}
    for name, value in facts.items():
        if _whole(value) > 0:
            for axis, pattern in LENGTHS.items():
                if pattern.fullmatch(name.lower()):
                    lengths.setdefault(axis, (name, _whole(value)))
    if len(lengths) == len(LENGTHS):
        shape = lengths["y"][1], lengths["x"][1]
        if math.prod(shape) == frames:
            return shape, f"{lengths['y'][0]} and {lengths['x'][0]} in {{}}"
    side = math.isqrt(frames)
    told_by = f"inferred: {{}} tells of a scan, and {frames} frames make a square"
    return ((side, side), told_by) if side * side == frames else (None, "")


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and value == value // 1 else 0
