"""The group of an exported array: dimension names, coordinates and attributes for xarray."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np

from dask_tiled.export.zarr.plates import is_plate
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Array
from dask_tiled.model.mark import MARK, attributes_of
from dask_tiled.opened.spec import Given

DATA = "data"
"""Name of the array in its group."""
_NAME = re.compile(r"(?!\.|__)[^/\\\0\ud800-\udfff]+")
_UNSAFE = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f\ud800-\udfff]')
"""Characters that zarr, or a file system of an operating system, forbids."""
_OF_WINDOWS = re.compile(r"(?:con|prn|aux|nul|(?:com|lpt)\d)(?:\..*)?", re.IGNORECASE)
"""Names of devices."""
SERIES = "OME"
"""Group that lists the images of a series in OME-Zarr."""
_LONGEST = 200
"""Longest name of a node in bytes, with room for a suffix."""
LARGEST = 1 << 63
"""Integers from here on are written as text: netCDF and HDF5 have no larger type."""


class Coordinate(NamedTuple):
    """Coordinates of the pixels along an axis."""

    name: str
    numbers: Array
    """Positions, or labels."""
    attributes: dict[str, str]
    """The units, if known."""


class Labels(NamedTuple):
    """Dimensions, coordinates and attributes of an array for xarray."""

    dims: tuple[str, ...]
    axes: tuple[Axis, ...]
    """One axis for each dimension, with its name; uncalibrated if nothing is known."""
    coords: dict[str, tuple[Any, ...]]
    """Dimension, values and attributes of each coordinate, by name."""
    attrs: dict[str, Any]


def dimension_names(axes: Sequence[Axis | None]) -> list[str]:
    """Return the names of dimensions; unnamed axes get the names that xarray would give them."""
    return [(axis and axis.name) or f"dim_{k}" for k, axis in enumerate(axes)]


class Dimensions:
    """Dimensions of several arrays: equal axes share a name, and different ones never do.

    Parameters
    ----------
    taken : collection of str
        Names that dimensions cannot have.
    """

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = {*taken}
        self._known: dict[tuple[Axis, int], list[str]] = {}

    def of(
        self, variable: str, axes: Sequence[Axis | None], shape: Sequence[int]
    ) -> tuple[Axis, ...]:
        """Return the axes of an array, renamed to its dimension names.

        An axis has the name of an equal axis of an earlier array. If another axis has its name,
        that of the array is its prefix.
        """
        found: list[Axis] = []
        for name, axis, size in zip(dimension_names(axes), axes, shape, strict=True):
            named = replace(axis or Axis(name), name=name)
            own = {one.name for one in found}
            alike = self._known.setdefault((named, size), [])
            shared = next((one for one in alike if one not in own), None)
            if shared is None:
                longer = (f"{variable}_{name}" + f"_{k}" * (k > 1) for k in count(1))
                shared = next(one for one in chain([name], longer) if one not in self._taken)
                self._taken.add(shared)
                alike.append(shared)
            found.append(replace(named, name=shared))
        return tuple(found)


def coordinates_of(
    names: Sequence[str],
    axes: Sequence[Axis | None],
    shape: Sequence[int],
    taken: Sequence[str] = (),
) -> Iterator[Coordinate]:
    """Yield the coordinates of axes with labels, coordinates, a scale, an offset or units.

    An axis has no coordinate if its name is not a valid array name, is in ``taken``, or is shared
    by two axes.
    """
    for name, axis, size in zip(names, axes, shape, strict=True):
        if axis is None or not names_an_array(name, taken) or names.count(name) > 1:
            continue
        units = {"units": axis.units} if axis.units else {}
        if axis.labels and len(axis.labels) == size:
            yield Coordinate(name, np.array(axis.labels), {})
        elif axis.coordinates:
            units = {"units": axis.coordinate_units} if axis.coordinate_units else {}
            if len(axis.coordinates) == size:
                yield Coordinate(name, axis.points(size), units)
        elif axis.scale and axis.is_calibrated:
            yield Coordinate(name, axis.points(size), units)


def names_an_array(name: str, others: Sequence[str]) -> bool:
    """Return whether an array in a group may have a name, given the names of the others.

    zarr treats a backslash as a slash; file names are limited in length, and have no NUL.
    """
    taken = DATA, "zarr.json", *others
    return bool(_NAME.fullmatch(name)) and len(name.encode()) < 256 and name not in taken


def node_names(names: Iterable[str]) -> dict[str, str]:
    """Return names of zarr nodes by names of arrays: valid on all systems, unique without case.

    Forbidden characters are replaced by "_", and equal names get a number. Valid names are kept,
    and so are those of the fields of a plate.
    """
    names = [*names]
    if is_plate(names):
        return {name: name for name in names}
    plain = {name: _as_a_node(name) for name in names}
    found, taken = {}, {as_a_folder(one) for one in (SERIES, "zarr.json")}
    for name in sorted(plain, key=lambda name: plain[name] != name):
        numbered = (f"{plain[name]}_{k}" for k in count(2))
        every = chain([plain[name]], numbered)
        found[name] = next(x for x in every if as_a_folder(x) not in taken)
        taken.add(as_a_folder(found[name]))
    return {name: found[name] for name in plain}


def _as_a_node(name: str) -> str:
    """Return a name, with what is not valid for a zarr node on all systems replaced."""
    plain = _UNSAFE.sub("_", normalize("NFC", name))
    if plain.startswith((".", "__")):
        plain = plain.lstrip("._")
    plain = plain.encode()[:_LONGEST].decode(errors="ignore").rstrip(". ") or DATA
    return plain + "_" * bool(_OF_WINDOWS.fullmatch(plain))


def as_a_folder(name: str) -> str:
    """Return a name as file systems of macOS and Windows compare it: without case."""
    return normalize("NFC", name).casefold()


def labels_of(
    axes: Sequence[Axis | None], shape: Sequence[int], of: Sequence[Description]
) -> Labels:
    """Return the dimensions and coordinates of an array, and the metadata of its source files."""
    names = dimension_names(axes)
    dims = [one if names.count(one) == 1 else f"{one}_{k}" for k, one in enumerate(names)]
    coords = {one.name: tuple(one) for one in coordinates_of(dims, axes, shape)}
    known = [replace(axis or Axis(""), name=name) for axis, name in zip(axes, dims, strict=True)]
    attrs = _told_by(of[0]) if len(of) == 1 else {}
    return Labels(tuple(dims), tuple(known), coords, attrs)


def _told_by(desc: Description) -> dict[str, Any]:
    """Convert metadata of files to numbers, texts and lists, which netCDF supports."""
    mark = attributes_of((), [desc])[MARK]
    first, *others = mark["files"]
    source = f"{first} and {len(others)} more" if others else first
    told: dict[str, Any] = {"format": desc.format, "source": source}
    if "complete" in mark:
        told["complete"] = int(mark["complete"])
    if "doubts" in mark:
        told["doubts"] = ["{text}: {settle}".format_map(one) for one in mark["doubts"]]
    for name, fact in mark.get("instrument", {}).items():
        told |= {name: fact["value"]} | ({f"{name}_units": fact["unit"]} if fact["unit"] else {})
    return told | dict(_flat("", mark["metadata"]))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Flatten nested metadata: names are joined with dots, and empty values are dropped."""
    if isinstance(value, dict):
        for key, item in value.items():
            inner = key.strip("/").replace("/", ".")
            yield from _flat(f"{name}.{inner}" if name else inner, item)
    elif isinstance(value, list):
        alike = {type(item) for item in value} in ({str}, {int}, {float})
        if value:
            whole = alike and all(map(fits, value))
            yield name, value if whole else json.dumps(value, ensure_ascii=False)
    elif value is not None:
        yield name, int(value) if isinstance(value, bool) else value if fits(value) else str(value)


def fits(value: Any) -> bool:
    """Return whether netCDF and HDF5 can store a value, if it is an integer."""
    return not isinstance(value, int) or -LARGEST <= value < LARGEST


def own_attributes(attributes: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """Drop attributes of an xarray object that are metadata of its source files."""
    known = labels_of(given.shown.axes, given.shape, given.shown.of).attrs if attributes else {}
    return {name: value for name, value in attributes.items() if name not in known}
