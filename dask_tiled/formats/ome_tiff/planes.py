"""What OME-XML says of single planes: when and where each was taken.

Facts: the OME data model, 2016-06; older files name no units, where newer ones do.
"""

from __future__ import annotations

import math
from array import array
from functools import cache, partial
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.ome_tiff.xml import MAX_BYTES, MAX_RUNS, read_text, whole
from dask_tiled.model.indexing import Array, Index

NAMES = {
    "elapsed_time": ("DeltaT", "s", "s"),
    "exposure_time": ("ExposureTime", "s", "s"),
    **{f"position_{axis}": (f"Position{axis.upper()}", "", "m") for axis in "xyz"},
}
"""Facts, the attributes that they are, the units that these have by default, and ours."""


class Planes(NamedTuple):
    """Planes of an image that the XML speaks of."""

    places: Index  # along T, C and Z: a row for each
    sizes: tuple[int, int]  # of the image along T and Z
    facts: Array


def read_planes(path: str, number: int) -> Planes:
    """Read what the XML of a file says of the planes of an image.

    Lengths are given in metres and times in seconds. What has no unit, or that of the "reference
    frame", is given as it is stored, in fields of other names.
    """
    reader = _Reader(number)
    tools.parse_xml(read_text(path), path, take=reader.take, max_bytes=MAX_BYTES)
    order = [name for known in NAMES for name in (known, f"stored_{known}")]
    kinds = [(name, "f8") for name in order if name in reader.columns]
    facts = np.full(len(reader.places) // 3, math.nan, kinds)
    for name, (rows, values) in reader.columns.items():
        facts[name][np.frombuffer(rows, np.int64)] = np.frombuffer(values)
    return Planes(np.array(reader.places, np.int64).reshape(-1, 3), reader.sizes, facts)


class _Reader:
    """Gathers the planes of one image while the XML is read."""

    def __init__(self, number: int) -> None:
        self.before = number  # images that come before
        self.places, self.sizes = array("q"), (1, 1)
        self.columns: dict[str, tuple[array[int], array[float]]] = {}
        self.take = {"Plane": self.add, "Image": self.end, "TiffData": lambda _: None}

    def add(self, element: Element) -> None:
        if self.before:
            return
        row = len(self.places) // 3
        if row == MAX_RUNS:
            raise ValueError(f"more than {MAX_RUNS} Plane elements")
        self.places.extend(whole(element.get(f"The{axis}", "0"), f"The{axis}") for axis in "TCZ")
        for name, (attribute, usual, unit) in NAMES.items():
            text = element.get(attribute)
            if text is not None:
                factor = _factor(element.get(f"{attribute}Unit", usual), unit)
                field = f"stored_{name}" if factor is None else name
                rows, values = self.columns.setdefault(field, (array("q"), array("d")))
                rows.append(row)
                values.append(_number(text, attribute) * (factor or 1.0))

    def end(self, element: Element) -> None:
        pixels = next((child for child in element if tools.local_name(child) == "Pixels"), None)
        if pixels is not None:
            if not self.before:
                t, z = (whole(pixels.get(f"Size{axis}", ""), f"Size{axis}", 1) for axis in "TZ")
                self.sizes = t, z
            self.before -= 1


_factor = cache(partial(tools.converted, 1.0))


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} of a Plane is {text[:40]!r}") from None
