"""HyperSpy: the signals in ``Experiments``, their axes, and metadata of the instrument.

Layout facts: the specification of HyperSpy's files, and its metadata structure.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import numpy as np

from dask_tiled.errors import MissingFileError
from dask_tiled.formats.hdf5.attributes import attribute, label, number, text
from dask_tiled.formats.hdf5.convention import Calibration, Convention, Meant, read_axis
from dask_tiled.formats.hdf5.datasets import Found, Picture, by_size
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.formats.tools.hyperspy import AxisFacts, in_order, signal_dims
from dask_tiled.model.axes import Axis
from dask_tiled.model.doubts import uneven_axis

DATA = re.compile(r"/Experiments/[^/]+/data")
UNNAMED = "__unnamed__"
"""Group of a signal without a title."""
OF_AXES = {"navigate", "index_in_array", "scale"}
"""Attributes that identify an axis; up to version 1.2 only the last one."""
BESIDE = "metadata", "original_metadata", "mapped_parameters", "original_parameters"
"""Groups next to the data; the last two before version 1.3."""
RECORDED = {"spectrum": 1, "image": 2}
"""Number of signal axes by the ``record_by`` of old files."""
PLACES = (
    "*metadata/Acquisition_instrument/TEM",
    "*metadata/Acquisition_instrument/SEM",
    "*mapped_parameters/*EM",
    "*/auxiliary/hyperspy_metadata/Acquisition_instrument/*EM",
)
"""Metadata of the microscope; the last path is in NeXus files that HyperSpy writes."""
ROWS = (
    ("microscope", "microscope"),
    ("acquisition_mode", "acquisition_mode"),
    ("beam_energy", "beam_energy", "@keV"),
    ("beam_current", "beam_current", "@nA"),
    ("magnification", "magnification"),
    ("camera_length", "camera_length", "@mm"),
    ("convergence_angle", "convergence_angle", "@mrad"),
    ("collection_angle", "**/collection_angle", "@mrad"),
    ("working_distance", "working_distance", "@mm"),
    ("tilt_alpha", "Stage/tilt_alpha", "deg"),
    ("tilt_alpha", "tilt_stage", "deg"),
    ("tilt_beta", "Stage/tilt_beta", "deg"),
    ("detector", "Detector/Camera/name"),
    ("exposure_time", "**/exposure", "@s"),
    ("exposure_time", "**/exposure_time", "@s"),
    ("dwell_time", "**/dwell_time", "@s"),
)
"""The units are the defaults of HyperSpy."""


def _date(said: Mapping[str, Any]) -> date | str:
    """Combine date and time. Names of time zones are ignored: many are ambiguous."""
    day, clock, zone = (said.get(name) or "" for name in ("date", "time", "time_zone"))
    if not day:  # before version 1.2: "datetime.date(1991, 10, 1)"
        words = f"{said['_datetime_date']} {said.get('_datetime_time', '')}"
        numbers: list[Any] = [int(one) for one in re.findall(r"\d+", words)]
        return datetime(*numbers) if numbers[3:] else date(*numbers)  # noqa: DTZ001 - no time zone is stored
    zone = "+00:00" if zone == "UTC" else zone
    known = zone if re.fullmatch(r"[+-]\d\d:\d\d", zone) else ""
    return f"{day}T{clock}{known}" if clock else str(day)


class HyperSpy(Convention):
    """HyperSpy, all versions."""

    name = "HyperSpy"
    instrument = (
        ("date", "*metadata/General", "", _date),
        ("date", "*/auxiliary/hyperspy_metadata/General", "", _date),
        ("date", "*mapped_parameters", "", _date),
        *((name, f"{place}/{path}", *rest) for place in PLACES for name, path, *rest in ROWS),
    )

    def meant(self, tree: Tree, found: Found) -> Meant:
        """List the signals, with their names as titles."""
        stored = by_size(one for one in found.pictures.values() if DATA.fullmatch(one.path))
        names = [posixpath.basename(one.folder) for one in stored]
        titles = ["" if name == UNNAMED else name for name in names]
        signals = [one._replace(title=x) for one, x in zip(stored, titles, strict=True)]
        for path in filter(DATA.fullmatch, found.lost):
            found.raise_lost(tree.file.path, path)
        for path in filter(DATA.fullmatch, () if signals else found.ragged):
            found.raise_ragged(tree.file.path, path)
        return Meant("Experiments of HyperSpy", signals, by_size=len(signals))

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:
        """Read the groups ``axis-0``, ``axis-1``, ..."""
        group = picture.group(tree)
        names = [f"axis-{k}" for k in range(len(picture.shape))]
        parts = [_linked(tree, group, name) for name in names]
        if not parts or any(part is None or not OF_AXES & set(part.attrs) for part in parts):
            return None
        facts = in_order([_facts(tree, part) for part in parts])
        axes = tuple(one.axis for one in facts)
        if any(one.navigate is None for one in facts):  # before version 1.3
            told = (tree.look(group, path) for path in ("mapped_parameters", "metadata/Signal"))
            kinds = [text(attribute(one, "record_by")) for one in told]
            return Calibration(axes, next(filter(None, map(RECORDED.get, kinds)), None))
        return Calibration(axes, signal_dims(facts))

    def facts(self, tree: Tree, picture: Picture) -> Mapping[str, Any]:
        """Return the groups next to the data."""
        own = picture.group(tree)
        return {f"{picture.folder}/{name}": () for name in BESIDE if name in own}


def _facts(tree: Tree, part: Any) -> AxisFacts:
    index, navigate = attribute(part, "index_in_array"), attribute(part, "navigate")
    place = None if index is None else int(number(index, -1))
    return AxisFacts(_axis(tree, part), place, None if navigate is None else bool(np.all(navigate)))


def _linked(tree: Tree, group: Any, name: str) -> Any:
    """Return a member of a group; None if there is none.

    Raise a MissingFileError if it is a link that leads nowhere.
    """
    try:
        return tree.get(group, name)
    except LookupError as error:
        if tree.is_link(group, name):
            what, where = "a link to an axis leads to nothing", f"{group.name}/{name}"
            path = tree.file.path
            raise MissingFileError(what, path=path, where=where, found=str(error)) from error
        return None


def _axis(tree: Tree, part: Any) -> Axis:
    name, units = (label(attribute(part, key)) for key in ("name", "units"))
    values, scale = _linked(tree, part, "axis"), attribute(part, "scale")
    if scale is None and values is not None:  # perhaps a non-uniform axis
        return read_axis(tree, values, name, getattr(values, "size", 0), units)
    if scale is None and attribute(part, "expression") is not None:
        tree.doubts.append(uneven_axis(name, "follow from an expression"))
        return Axis(name)
    step, offset = number(scale, math.nan), number(attribute(part, "offset"), 0.0)
    return Axis.calibrated(name, units, step, offset, signed=True)
