"""Delmic: cathodoluminescence by Odemis, without its thumbnail.

Layout facts: the HDF5 writer of Odemis, and RosettaSciIO's reader, whose order of axes and of
acquisitions this is. A group ``Acquisition*`` holds ``ImageData/Image``, mostly (C, T, Z, Y, X) or
(C, A, Z, Y, X), as its dimension labels say. Y goes up, and the offset is the centre of the image.
Angle-resolved images are an acquisition for each position of the beam, in order of time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats.hdf5.attributes import attribute, number, text, texts
from dask_tiled.formats.hdf5.convention import MOST_VALUES, Calibration, Convention, Meant
from dask_tiled.formats.hdf5.datasets import MOST_OBJECTS, Found, Picture, picture_of
from dask_tiled.formats.hdf5.library import names_in
from dask_tiled.formats.hdf5.tree import BROKEN, Tree
from dask_tiled.model.axes import Axis
from dask_tiled.model.units import prefixed

START, IMAGE = "Acquisition", "ImageData/Image"
NEEDED = "SVIData", "PhysicalData", IMAGE
STORED = "CTZYX"
"""Labels of the axes of files without labels."""
NAMES = {"Z": "z", "Y": "y", "X": "x", "T": "time", "A": "angle", "C": "wavelength"}
"""Names of the axes by label, in the order shown."""
SPECTRAL, UNITS = "TAC", {"T": "s", "C": "m"}
"""Axes of the signal, unless their length is 1, and units of the values."""
POSITIONS = {"Z": 1, "Y": -1, "X": 1}
"""Axes of the specimen, with their directions."""
BEAM = ("Y", "X")
SCANNED, ANCHOR = "Secondary electrons concurrent", "Anchor region"
RESOLVED, UNKNOWN = 1, 8
RANKS = {"CL intensity": 0, "AC": 2, "TC": 3, "T": 4, "C": 5, SCANNED: 6, ANCHOR: 7}
RANKS |= {"Secondary electrons survey": 9}
"""Places in the list, of images by title and of spectra by the axes of the signal."""
INVALID = 111
"""State of an invalid value."""
MOST_NAMES = 1000
"""Read at most this many values of an acquisition."""


class Acquisition(NamedTuple):
    """An acquisition of a file."""

    group: Any
    title: str
    picture: Picture
    """The image as it is stored."""
    labels: tuple[str, ...]
    """Labels of the stored axes."""

    @property
    def sizes(self) -> dict[str, int]:
        """Lengths of the stored axes, by label."""
        return dict(zip(self.labels, self.picture.shape, strict=True))

    @property
    def shown(self) -> tuple[str, ...]:
        """Labels of the axes shown, in order: those longer than 1, or else those of an image."""
        return tuple(name for name in NAMES if self.sizes.get(name, 1) > 1) or BEAM

    @property
    def spectral(self) -> str:
        """Labels of the signal axes of spectra and time traces; empty for images."""
        return "".join(name for name in self.shown if name in SPECTRAL)

    def rank(self, tree: Tree) -> int:
        """Return the place of the acquisition among others."""
        if self.title == ANCHOR:
            return RANKS[ANCHOR]
        if self.spectral:
            return RANKS.get(self.spectral, UNKNOWN)
        pole = tree.look(self.group, "PhysicalData/PolePosition")
        return RESOLVED if getattr(pole, "ndim", 0) == 2 else RANKS.get(self.title, UNKNOWN)

    def arranged(self, members: Sequence[Acquisition] = (), scan: tuple[int, ...] = ()) -> Picture:
        """Return the array of the acquisition, or of those at all positions of a scan."""
        sizes, lead = self.sizes, len(scan)
        places = [self.labels.index(name) + lead for name in self.shown]
        left = [k for k in range(lead, lead + len(sizes)) if k not in places]
        return self.picture._replace(
            shape=(*scan, *(sizes[name] for name in self.shown)),
            order=(*left, *range(lead), *places),
            title=self.title,
            members=tuple(one.picture.members[0] for one in members) or self.picture.members,
            grid=scan,
        )


class Delmic(Convention):
    """Delmic SPARC, by Odemis."""

    name = "Delmic"
    instrument = (
        ("beam_energy", "*PhysicalData/AccelerationVoltage", "V"),
        ("beam_current", "*PhysicalData/EmissionCurrent", "A"),
        ("magnification", "*PhysicalData/Magnification"),
        ("exposure_time", "*PhysicalData/IntegrationTime", "s"),
        ("date", "*ImageData/TOffset", "", lambda told: datetime.fromtimestamp(told, UTC)),
    )

    def meant(self, tree: Tree, found: Found) -> Meant:
        """List the acquisitions: light first, then secondary electrons."""
        ranked = [(one.rank(tree), one) for one in _acquisitions(tree, found)]
        scans = (one for _, one in ranked if one.title == SCANNED)
        scan = next((tuple(one.sizes[name] for name in BEAM) for one in scans), ())
        listed = [(rank, one.arranged()) for rank, one in ranked if rank != RESOLVED]
        resolved: dict[str, list[Acquisition]] = {}
        for rank, one in ranked:
            if rank == RESOLVED:
                polarization = text(_value(tree, one.group, "PhysicalData/Polarization"))
                resolved.setdefault(polarization, []).append(one)
        for polarization, some in resolved.items():
            alike = {(one.shown, one.labels, one.picture.shape, one.picture.dtype) for one in some}
            whole = scan and math.prod(scan) == len(some) and len(alike) == 1
            if whole:
                some.sort(key=lambda one: _number(tree, one, "TOffset"))
            merged = [some[0].arranged(some, scan)] if whole else [one.arranged() for one in some]
            named = (one._replace(title=f"{one.title} {polarization}".strip()) for one in merged)
            listed += [(RESOLVED, one) for one in named]
        listed.sort(key=lambda pair: pair[0])
        pictures, first = (
            [one for _, one in listed],
            sum(rank == listed[0][0] for rank, _ in listed),
        )
        told_by = "the first acquisition of Delmic"
        return Meant(told_by, pictures, alone=bool(listed), settled=first == 1)

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:
        """Read wavelengths, times and positions."""
        one = _acquisition(tree, picture.path.split("/")[1])
        if one is None or picture.path != one.picture.path:
            return None
        if picture.grid:  # axes of the camera are not angles
            titled = (name for name in _names(tree) if _title(tree, name) == SCANNED)
            scanned = _acquisition(tree, next(titled, "")) or one
            scan = (_axis(tree, scanned, name, "scan_") for name in BEAM)
            return Calibration((*scan, Axis("y"), Axis("x")), 2)
        prefix = "scan_" if one.spectral else ""
        axes = tuple(_axis(tree, one, name, prefix) for name in one.shown)
        return Calibration(axes, len(one.spectral) or min(2, len(axes)))

    def facts(self, tree: Tree, picture: Picture) -> Mapping[str, Any]:
        """Return the values of an acquisition, without those that are marked as invalid."""
        name = picture.path.split("/")[1]
        one = _acquisition(tree, name)
        if one is None:
            return {}
        values = tree.look(one.group, "PhysicalData")
        valid = [x for x in names_in(values, MOST_NAMES) if not _is_invalid(values, x)]
        groups = {"PhysicalData": (*valid,), "ImageData": ("TOffset",), "SVIData": ()}
        return {f"/{name}/{group}": names for group, names in groups.items()}


def _names(tree: Tree) -> list[str]:
    return [name for name in names_in(tree.root, MOST_OBJECTS) if name.startswith(START)]


def _acquisitions(tree: Tree, found: Found) -> Iterator[Acquisition]:
    """Yield the acquisitions of the file, or the one of a group."""
    _, *inside = found.top[0].split("/")
    yield from filter(None, (_acquisition(tree, name) for name in inside[:1] or _names(tree)))


def _acquisition(tree: Tree, name: str) -> Acquisition | None:
    """Return an acquisition by its name; None for other groups."""
    group = tree.look(tree.root, name) if name.startswith(START) else None
    if group is None or any(tree.look(group, part) is None for part in NEEDED):
        return None
    image = tree.look(group, IMAGE)
    picture = picture_of(f"/{name}/{IMAGE}", image)
    labels = tuple(texts(attribute(image, "DIMENSION_LABELS")))
    labels = labels if any(labels) else tuple(STORED)
    if picture is None or len(labels) != len(picture.shape) or not {*BEAM} <= {*labels} <= {*NAMES}:
        return None
    return Acquisition(group, _title(tree, name), picture, labels)


def _title(tree: Tree, name: str) -> str:
    return text(_value(tree, tree.root, f"{name}/PhysicalData/Title"))


def _axis(tree: Tree, one: Acquisition, name: str, prefix: str) -> Axis:
    """Return an axis of an acquisition, in a unit with a prefix that fits its steps or values."""
    size = one.sizes[name]
    points = np.asarray(_value(tree, one.group, f"ImageData/DimensionScale{name}"))
    offset = number(_value(tree, one.group, f"ImageData/{name}Offset"), 0.0)
    if name in POSITIONS:
        step = POSITIONS[name] * number(points, 0.0)
        units, factor = prefixed("m", step)
        first = factor * (offset - (size - 1) / 2 * step)
        title = f"{prefix}{NAMES[name]}" if name in BEAM else NAMES[name]
        return Axis.calibrated(title, units, factor * step, first, signed=True)
    base = UNITS.get(name)
    if base is None or points.dtype.kind not in "fiu":
        return Axis(NAMES[name])
    if points.shape != (size,):
        units, factor = prefixed(base, offset or number(points, 0.0))
        return Axis.calibrated(NAMES[name], units, factor * number(points, 0.0), factor * offset)
    units, factor = prefixed(base, float(points.mean()))
    return Axis.at(NAMES[name], units, factor * points) or Axis(NAMES[name])


def _number(tree: Tree, one: Acquisition, name: str) -> float:
    return number(_value(tree, one.group, f"ImageData/{name}"), 0.0)


def _value(tree: Tree, group: Any, path: str) -> Any:
    """Read a small dataset; None if it is missing, large or damaged."""
    try:
        item = tree.look(group, path)
        size = getattr(item, "size", None) or 0
        return tree.read(item) if 0 < size <= MOST_VALUES else None
    except BROKEN:  # also errors of this package: the pixels may be readable
        return None


def _is_invalid(group: Any, name: str) -> bool:
    state = attribute(group.get(name), "State")
    return np.size(state) > 0 and np.ravel(state)[0] == INVALID
