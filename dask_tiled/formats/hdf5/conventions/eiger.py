"""Eiger and Arina of Dectris: the series of a master file, its pixel size, and the scan file.

Layout facts: the documentation of the Eiger detectors. py4DSTEM and ncempy read the pixel size of a
scan, in nm, from the file with the master's name without ``_master``, and assume a square scan.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_tiled.formats.hdf5.attributes import attribute, label, number, plain_attributes
from dask_tiled.formats.hdf5.convention import (
    Announced,
    Calibration,
    Convention,
    Meant,
    Scan,
)
from dask_tiled.formats.hdf5.datasets import FRAME, SERIES, Found, Picture, by_size
from dask_tiled.formats.hdf5.detector import CHANNEL, MOST_NAMES
from dask_tiled.formats.hdf5.library import names_in
from dask_tiled.formats.hdf5.tree import BROKEN, Tree
from dask_tiled.formats.tools.files import beside
from dask_tiled.model.axes import Axis
from dask_tiled.model.doubts import Doubt, inferred_scan

MASTER = "_master.h5"
GROUP = "STEM Metadata"
SPECIFIC = "instrument/detector/detectorSpecific"
COUNTS = "nimages", "ntrigger"
MOST_FRAMES = 1 << 40
LENGTHS = {
    "y": re.compile(r"(scan|size|shape|n|pixels|points|num).*y|scan.*(height|rows)"),
    "x": re.compile(r"(scan|size|shape|n|pixels|points|num).*x|scan.*(width|columns)"),
}
"""Attribute names for the number of scan positions along an axis."""


class Eiger(Convention):
    """Dectris master files, mostly NeXus."""

    name = "Eiger"
    instrument = (
        ("beam_energy", f"*{GROUP}/High Tension", "V"),
        ("magnification", f"*{GROUP}/Magnification"),
        ("camera_length", f"*{GROUP}/Camera Length", "m"),
        ("camera_length", "**/detector_distance", "@"),
    )

    def meant(self, tree: Tree, found: Found) -> Meant:  # noqa: ARG002
        """List series, including those with a single part."""
        frames = [one for one in found.pictures.values() if len(one.shape) >= FRAME]
        named = (x for x in frames if x.is_series or SERIES.fullmatch(posixpath.basename(x.path)))
        series = by_size(named)
        return Meant("names of an Eiger master", series, by_size=len(series))

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:
        """Read the pixel size of the detector, and the names of channels of a series."""
        lead = len(picture.shape) - FRAME
        named = picture.is_series or SERIES.fullmatch(posixpath.basename(picture.path))
        if lead < 0 or (lead == 0 and not named):
            return None
        detector = tree.look(picture.group(tree).parent, "instrument/detector")
        nav = [Axis("frame")] if lead == 1 else [Axis("")] * lead
        if named and lead == 2:
            nav = [Axis("frame"), Axis("channel", labels=_channels(detector, picture.shape[1]))]
        sig = [_pixels(tree, detector, name) for name in ("y", "x")]
        if Axis("") in sig:
            sig = [Axis(""), Axis("")]
        is_told = sig != [Axis("")] * FRAME or any(axis.labels for axis in nav)
        return Calibration((*nav, *sig), FRAME) if is_told else None

    def announced(self, tree: Tree, picture: Picture) -> Announced | None:
        """Multiply the numbers of triggers and of images for each; only for whole series."""
        group = picture.group(tree)
        parts = sum(map(bool, map(SERIES.fullmatch, group)))
        if not SERIES.fullmatch(posixpath.basename(picture.path)) and not picture.is_series:
            return None
        own = tree.look(group.parent, SPECIFIC) if picture.is_series or parts == 1 else None
        if own is None:
            return None
        frames = math.prod(_count(tree, tree.look(own, name)) for name in COUNTS)
        return Announced(frames, f"{' x '.join(COUNTS)} in {own.name}") if frames else None

    def scan(self, tree: Tree, picture: Picture, frames: int) -> Scan | None:  # noqa: ARG002
        """Read the scan from the file beside the master."""
        master = tree.file.path
        path = beside(master.removesuffix(MASTER), ".h5") if master.endswith(MASTER) else None
        if path is None:
            return None
        try:
            facts = plain_attributes(tree.get(tree.open(path), GROUP))
        except BROKEN:  # also errors of this package: the file is optional
            return None
        facts = {name: _only(value) for name, value in facts.items()}
        where = f"{os.path.basename(path)}/{GROUP}"
        shape, told_by, doubts = _shape(facts, frames)
        if shape is None:
            return None
        sizes = np.atleast_1d(np.asarray(facts.get("Pixel Size")))
        one = sizes.dtype.kind in "fiu" and len(set(sizes.tolist())) == 1
        size = float(sizes[0]) if one else 0.0
        axes = (Axis.calibrated("scan_y", "nm", size), Axis.calibrated("scan_x", "nm", size))
        return Scan(shape, told_by.format(where), axes, {where: facts}, doubts)

    def facts(self, tree: Tree, picture: Picture) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the group around a series, unless it is a NeXus entry."""
        around = posixpath.dirname(picture.folder)
        return {around: ()} if picture.is_series and around.strip("/") else {}


def _channels(detector: Any, count: int) -> tuple[str, ...]:
    """Return the names of the channels, from their groups in the detector, or else numbers."""
    names = names_in(detector, MOST_NAMES) if hasattr(detector, "attrs") else []
    ends = [name.removesuffix(CHANNEL) for name in names if name.endswith(CHANNEL)]
    return tuple(ends if len(ends) == count else map(str, range(1, min(count, MOST_NAMES) + 1)))


def _pixels(tree: Tree, detector: Any, name: str) -> Axis:
    """Return an axis of the detector; without a name if its pixel size is unknown."""
    size: Any = None if detector is None else tree.look(detector, f"{name}_pixel_size")
    if getattr(size, "shape", None) not in {(), (1,)} or size.dtype.kind not in "fiu":
        return Axis("")
    units = label(attribute(size, "units")) or "m"
    return Axis(name, units, number(tree.read(size), 1.0))


def _shape(
    facts: Mapping[str, Any], frames: int
) -> tuple[tuple[int, int] | None, str, tuple[Doubt, ...]]:
    """Return two lengths whose product is the number of frames, or a square shape in doubt."""
    lengths: dict[str, tuple[str, int]] = {}
    for name, value in facts.items():
        if _whole(value) > 0:
            for axis, pattern in LENGTHS.items():
                if pattern.fullmatch(name.lower()):
                    lengths.setdefault(axis, (name, _whole(value)))
    if len(lengths) == len(LENGTHS):
        shape = lengths["y"][1], lengths["x"][1]
        if math.prod(shape) == frames:
            return shape, f"{lengths['y'][0]} and {lengths['x'][0]} in {{}}", ()
    side = math.isqrt(frames)
    if side * side != frames:
        return None, "", ()
    why = f"the file beside the master describes a scan, and {frames} frames make a square"
    told_by = f"inferred: {{}} describes a scan, and {frames} frames make a square"
    return (side, side), told_by, (inferred_scan((side, side), why),)


def _count(tree: Tree, item: Any) -> int:
    """Return the whole number in a dataset; 0 if it is none."""
    one = getattr(item, "shape", None) in {(), (1,)} and item.dtype.kind in "iu"
    found = int(number(tree.read(item), 0)) if one else 0
    return found if 0 < found < MOST_FRAMES else 0


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and value == value // 1 else 0
