"""NeXus: default data, signals, axes of NXdata, and facts of entries.

Layout facts: the NeXus manual (``default``, ``signal``, NXdata, NXdetector), and the definitions of
NXem, NXinstrument and NXbeam, which allow their groups anywhere.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.formats.hdf5.attributes import attribute, label, text, text_of, texts
from dask_tiled.formats.hdf5.colours import SIG_DIMS, interpreted
from dask_tiled.formats.hdf5.convention import (
    Calibration,
    Convention,
    Meant,
    positions_of,
    read_axis,
)
from dask_tiled.formats.hdf5.datasets import SERIES, Found, Picture, by_size, picture_of
from dask_tiled.formats.hdf5.library import names_in
from dask_tiled.formats.hdf5.tree import MOST_LINKS, Tree
from dask_tiled.model.axes import Axis

MOST_MEMBERS = 1000
"""Look at most at this many members of a group for axes."""
INTERPRETATIONS = {"image": 2, "spectrum": 1, "vertex": 1}
"""Number of signal axes by ``interpretation``."""


def _threshold(detector: Mapping[str, Any]) -> str:
    """Return the threshold that all channels of a detector have; raise a ValueError if none."""
    channels = [told for name, told in detector.items() if name.endswith("_channel")]
    told = {(one["threshold_energy"], one.get("threshold_energy@units", "")) for one in channels}
    ((value, units),) = told
    return f"{value} {units}"


class Nexus(Convention):
    """NeXus, all versions."""

    name = "NeXus"
    instrument = (
        ("microscope", "**/instrument/name"),
        ("microscope", "**/instrument/fabrication/model"),
        ("beam_energy", "**/electron_source/voltage", "@"),
        ("beam_energy", "**/electron_gun/voltage", "@"),
        ("beam_current", "**/beam_current", "@"),
        ("photon_energy", "**/incident_energy", "@"),
        ("photon_energy", "**/photon_energy", "@"),
        ("photon_energy", "**/monochromator/energy", "@"),
        ("photon_energy", "*/*/energy", "@"),
        ("wavelength", "**/incident_wavelength", "@"),
        ("magnification", "**/magnification"),
        ("camera_length", "**/camera_length", "@"),
        ("convergence_angle", "**/semi_convergence_angle", "@"),
        ("defocus", "**/defocus", "@"),
        ("working_distance", "**/working_distance", "@"),
        ("detector", "**/detector/description"),
        ("detector", "**/detector/local_name"),
        ("y_pixel_size", "**/y_pixel_size", "@"),
        ("x_pixel_size", "**/x_pixel_size", "@"),
        ("exposure_time", "**/exposure_time", "@"),
        ("exposure_time", "**/count_time", "@"),
        ("dwell_time", "**/dwell_time", "@"),
        ("gain_setting", "**/detector/gain_setting"),
        ("threshold", "**/instrument/*/threshold_energy", "@"),
        ("threshold", "**/instrument/*", "", _threshold),
        ("date", "*/start_time"),
        ("date", "**/data_collection_date"),
    )

    def meant(self, tree: Tree, found: Found) -> Meant:
        """Follow ``default``, or list the signals of all NXdata, those near the default first."""
        path, group = _default(tree, found, *found.top)
        pointed = [_signal(tree, found, path, group)]
        if pointed == [None]:
            entries = [one for one in _of_class(found, "NXentry") if _is_below(one[0], path)]
            ends = [_default(tree, found, *one) for one in entries]
            moved = [end for end, one in zip(ends, entries, strict=True) if end[0] != one[0]]
            pointed = [_signal(tree, found, *end) for end in moved]
        if any(pointed):
            return Meant("default of NeXus", [*filter(None, pointed)])
        signals, faults = list[Picture](), list[DatasetError]()
        for one in _of_class(found, "NXdata"):
            try:
                signals += filter(None, [_signal(tree, found, *one)])
            except DatasetError as error:
                faults.append(error)
        known = found.lost.keys() | found.ragged.keys()
        links = (error for error in faults if error.where in known)
        fault = next(links, None if signals else next(iter(faults), None))
        if fault is not None:
            raise fault
        signals = by_size(signals)
        signals.sort(key=lambda one: not _is_below(one.path, path))
        near = sum(_is_below(one.path, path) for one in signals)
        return Meant("signal of NXdata", signals, by_size=near or len(signals))

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:
        """Read the ``axes`` of the group or, in older files, of the dataset."""
        group, own, shape = picture.group(tree), picture.members[0], picture.shape
        data = text(attribute(group, "NX_class")) in {"NXdata", "NXdetector"}
        if picture.order or (not data and attribute(own, "signal") is None):
            return None
        told = attribute(own, "interpretation"), attribute(group, "interpretation")
        name = next(filter(None, map(label, told)), "")
        kind, colours = INTERPRETATIONS.get(name), interpreted(name, shape)
        axes = [Axis("")] * len(shape)
        names = text(attribute(group, "signal")), *texts(attribute(group, "auxiliary_signals"))
        listed = attribute(own, "axes")
        if posixpath.basename(picture.path) in names or listed is not None:
            for k, axis in enumerate(texts(attribute(group, "axes") if listed is None else listed)):
                indices = np.atleast_1d(np.asarray(attribute(group, f"{axis}_indices")))
                at = int(indices[0]) if indices.size and indices.dtype.kind in "iu" else k
                if axis and 0 <= at < len(shape) and indices.size == 1:
                    values = positions_of(tree, group, axis, axis)
                    axes[at] = read_axis(tree, values, axis, shape[at])
        unnamed = axes == [Axis("")] * len(shape)
        for k, name in _marked_axes(tree, group) if unnamed else ():
            if k < len(shape):
                axes[k] = read_axis(tree, tree.look(group, name), name, shape[k])
        if colours is not None:
            usual = Axis("y"), Axis("x"), Axis("s", labels=colours.labels)
            pairs = zip(axes[-SIG_DIMS:], usual, strict=True)
            axes[-SIG_DIMS:] = [old if old.name else new for old, new in pairs]
            kind = SIG_DIMS
        return Calibration(tuple(axes), kind and min(kind, len(shape)))

    def facts(self, tree: Tree, picture: Picture) -> Mapping[str, Any]:
        """Return the innermost NXentry around the array."""
        path = picture.folder
        while path.strip("/"):
            if text(attribute(tree.look(tree.root, path), "NX_class")) == "NXentry":
                return {path: ()}
            path = posixpath.dirname(path)
        return {}


def _marked_axes(tree: Tree, group: Any) -> Iterator[tuple[int, str]]:
    """Yield the axes of older files: datasets with their number, of which one may be primary."""
    marked: dict[int, list[tuple[bool, str]]] = {}
    for name in names_in(group, MOST_MEMBERS):
        item = tree.look(group, name)
        number = text_of(attribute(item, "axis"))
        if number.isdecimal() and len(number) < 3 and int(number):
            primary = text_of(attribute(item, "primary")) == "1"
            marked.setdefault(int(number) - 1, []).append((not primary, name))
    for k, names in marked.items():
        yield k, min(names)[1]


def _of_class(found: Found, name: str) -> list[tuple[str, Any]]:
    return [one for one in found.groups if text(attribute(one[1], "NX_class")) == name]


def _is_below(path: str, group: str) -> bool:
    return f"{path}/".startswith(f"{group}/")


def _default(tree: Tree, found: Found, path: str, group: Any) -> tuple[str, Any]:
    """Follow ``default`` attributes from a group on; raise a DatasetError if they lead nowhere."""
    from h5py import Group

    for _ in range(MOST_LINKS):
        name = label(attribute(group, "default"))
        place = posixpath.normpath(posixpath.join(path or "/", name))
        following = found.designated(tree, group, place, name) if name else None
        if not isinstance(following, Group):
            return path, group
        path, group = place, following
    problem = "default attributes lead in a circle"
    raise CorruptFileError(problem, path=tree.file.path, where=path, expected="a group of data")


def _signal(tree: Tree, found: Found, path: str, group: Any) -> Picture | None:
    """Return the signal of a group; in older files a dataset is marked as the signal."""
    name = label(attribute(group, "signal"))
    if not name:
        inner = found.inside(path)
        marked = (one for one in inner if text_of(attribute(one.members[0], "signal")) == "1")
        return next(marked, None)
    if SERIES.fullmatch(name) and path in found.pictures:  # the first part of a series
        return found.pictures[path]
    place = f"{path.rstrip('/')}/{name}"
    found.raise_ragged(tree.file.path, place)
    known = found.pictures.get(place)
    return known or picture_of(place, found.designated(tree, group, place, name))
