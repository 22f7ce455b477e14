"""OME-XML: the images of a set of files, and the pages of their planes.

Layout facts: the OME-TIFF specification and the OME data model, 2016-06; older names where they
differ. Older files have no units.
"""

from __future__ import annotations

import math
import os
from array import array
from functools import cache, partial
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.text import local_name, number_in, parse_xml, plain_tree
from dask_tiled.model.colours import of_channels, rgb
from dask_tiled.model.indexing import Array, Index
from dask_tiled.model.instrument import converted

MAX_BYTES = 1 << 28  # a plane takes some 200 bytes of XML
LARGEST = 1 << 48
"""Limit of integers in the XML, so that products do not overflow."""
MAX_RUNS = 2_000_000
MAX_DEVICES = 1000
DEVICES = {
    "InstrumentRef": "instrument",
    "ObjectiveSettings": "objective",
    "ObjectiveRef": "objective",
    "DetectorSettings": "detector",
}
"""Elements of an image that refer to devices, which precede the images."""
PLANE_FACTS = {
    "elapsed_time": ("DeltaT", "s", "s"),
    "exposure_time": ("ExposureTime", "s", "s"),
    **{f"position_{axis}": (f"Position{axis.upper()}", "", "m") for axis in "xyz"},
}
"""Facts of planes: attribute, its default unit, and our unit."""
WHOLE_FILE = -1  # number of planes of a run that is a whole file


class TiffDataFile(NamedTuple):
    """A file in a TiffData element; both empty for the file with the XML."""

    uuid: str
    name: str


class PlaneRuns(NamedTuple):
    """Runs of consecutive planes in a file, as columns."""

    source: Index  # index of the file in the document
    page: Index  # of the first plane
    planes: Index  # number, or WHOLE_FILE
    first: Index  # position of the first plane along Z, C and T


class OmeImage(NamedTuple):
    """An Image element."""

    name: str
    order: str  # order of Z, C and T, fastest first
    sizes: dict[str, int]  # C includes the samples of a pixel
    runs: PlaneRuns
    scales: dict[str, tuple[float, str]]  # step and unit, by axis
    channels: tuple[str, ...]
    colours: tuple[str, ...]
    annotations: tuple[str, ...]  # their identifiers
    devices: dict[str, Any]  # its instrument, and the first objective and detector
    facts: dict[str, Any]
    heights: Array  # TheT, TheC, TheZ and PositionZ (m) of planes that have it, one row each


class Modulo(NamedTuple):
    """An axis inside of Z, C or T: equally spaced, or with labels and a step of NaN."""

    name: str
    size: int
    start: float
    step: float
    units: str
    labels: tuple[str, ...]


class PlaneFacts(NamedTuple):
    """Facts about single planes: times and positions.

    Lengths are in metres, times in seconds. Values without unit, or in units of the "reference
    frame", are stored unconverted under other names.
    """

    places: Index  # along T, C and Z, one row each
    facts: Array


class Document(NamedTuple):
    """The OME-XML of a file."""

    path: str
    uuid: str
    elsewhere: TiffDataFile | None  # the file with the metadata, if this one is binary only
    sources: tuple[TiffDataFile, ...]
    images: tuple[OmeImage, ...]
    modulo: dict[str, dict[str, Modulo]]  # by annotation, and by Z, C or T
    creator: str
    planes: PlaneFacts | None

    @classmethod
    def parse(cls, path: str, text: bytes, planes_of: int | None = None) -> Document:
        """Parse the OME-XML of a file; optionally with facts about the planes of one image."""
        reader = _Reader(planes_of)
        root = parse_xml(text, path, take=reader.take, max_bytes=MAX_BYTES)
        name, problem = local_name(root), "the XML is not OME-XML"
        if name != "OME":
            raise tools.CorruptFileError(problem, path=path, expected="OME", found=name)
        other = _child(root, "BinaryOnly")
        return cls(
            path,
            plain_uuid(root.get("UUID")),
            None if other is None else _source(other.get("UUID"), other.get("MetadataFile")),
            tuple(reader.sources),
            tuple(reader.images),
            reader.modulo,
            root.get("Creator", ""),
            None if planes_of is None else reader.planes(),
        )

    def with_own_pages(self) -> Document:
        """Return the document with all pages of its file as the planes of its only image."""
        numbers = ([len(self.sources)], [0], [WHOLE_FILE], [[0, 0, 0]])
        runs = PlaneRuns(*(np.array(column, np.int64) for column in numbers))
        (image,) = self.images
        sources = (*self.sources, TiffDataFile("", ""))
        return self._replace(images=(image._replace(runs=runs),), sources=sources)

    def name_of(self, source: int) -> str:
        """Return the name of a file in the XML."""
        uuid, name = self.sources[source]
        return name or uuid or os.path.basename(self.path)


class _Reader:
    """Collects data while the XML is parsed."""

    def __init__(self, planes_of: int | None) -> None:
        self.planes_of = planes_of
        self.places = array("q")
        self.columns: dict[str, tuple[array[int], array[float]]] = {}  # facts of planes
        self.sources: dict[TiffDataFile, int] = {}
        self.runs: list[tuple[int, ...]] = []
        self.images: list[OmeImage] = []
        self.modulo: dict[str, dict[str, Modulo]] = {}
        self.devices: dict[str, Any] = {}  # by identifier
        self.heights = array("d")
        kinds = "Boolean Comment Double File List Long Map Tag Term Timestamp"
        ignored = ["ROI", *(f"{kind}Annotation" for kind in kinds.split())]
        self.take: dict[str, Any] = dict.fromkeys(ignored, lambda _: None)
        self.take["Plane"] = self.add_height if planes_of is None else self.add_plane
        self.take |= {"TiffData": self.add_run, "Image": self.add_image}
        self.take["XMLAnnotation"] = self.add_modulo
        self.take |= dict.fromkeys(["Instrument", "Objective", "Detector"], self.add_device)

    def add_run(self, element: Element) -> None:
        if len(self.runs) == MAX_RUNS:
            raise ValueError(f"more than {MAX_RUNS} TiffData elements")
        uuid = _child(element, "UUID")
        source = TiffDataFile("", "") if uuid is None else _source(uuid.text, uuid.get("FileName"))
        page, count = element.get("IFD"), element.get("PlaneCount", element.get("NumPlanes"))
        usual = WHOLE_FILE if page is None else 1
        planes = usual if count is None else whole(count, "PlaneCount")
        first = (whole(element.get(f"First{axis}", "0"), f"First{axis}") for axis in "ZCT")
        number = self.sources.setdefault(source, len(self.sources))
        self.runs.append((number, whole(page or "0", "IFD"), planes, *first))

    def add_plane(self, element: Element) -> None:
        if len(self.images) != self.planes_of:
            return
        row = len(self.places) // 3
        if row == MAX_RUNS:
            raise ValueError(f"more than {MAX_RUNS} Plane elements")
        self.places.extend(whole(element.get(f"The{axis}", "0"), f"The{axis}") for axis in "TCZ")
        for name, (attribute, usual, unit) in PLANE_FACTS.items():
            text = element.get(attribute)
            if text is not None:
                factor = _factor(element.get(f"{attribute}Unit", usual), unit)
                field = f"stored_{name}" if factor is None else name
                rows, values = self.columns.setdefault(field, (array("q"), array("d")))
                rows.append(row)
                values.append(_of_plane(text, attribute) * (factor or 1.0))

    def add_height(self, element: Element) -> None:
        """Note the position of a plane along z, if it is a length."""
        text = element.get("PositionZ")
        factor = None if text is None else _factor(element.get("PositionZUnit", ""), "m")
        if factor is not None and len(self.heights) < 4 * MAX_RUNS:
            self.heights.extend(_number(element.get(f"The{axis}", "0")) for axis in "TCZ")
            self.heights.append(_number(text) * factor)

    def planes(self) -> PlaneFacts:
        """Return the facts about planes."""
        order = [name for known in PLANE_FACTS for name in (known, f"stored_{known}")]
        kinds = [(name, "f8") for name in order if name in self.columns]
        facts = np.full(len(self.places) // 3, math.nan, kinds)
        for name, (rows, values) in self.columns.items():
            facts[name][np.frombuffer(rows, np.int64)] = np.frombuffer(values)
        return PlaneFacts(np.array(self.places, np.int64).reshape(-1, 3), facts)

    def add_image(self, element: Element) -> None:
        runs = np.array(self.runs, np.int64).reshape(-1, 6)
        heights, self.heights = np.frombuffer(self.heights).reshape(-1, 4), array("d")
        self.runs = []
        pixels = _child(element, "Pixels")
        if pixels is None:
            return
        order = pixels.get("DimensionOrder", "XYZCT")
        if sorted(order[2:]) != ["C", "T", "Z"] or order[:2] != "XY":
            raise ValueError(f"invalid DimensionOrder {order!r}")
        devices: dict[str, Any] = {}
        for one in element.iter():
            name, number = DEVICES.get(local_name(one)), one.get("ID")
            if name and number in self.devices:
                devices.setdefault(name, self.devices[number])
        channels = [child for child in pixels if local_name(child) == "Channel"]
        self.images.append(
            OmeImage(
                element.get("Name", ""),
                order[2:],
                {axis: whole(pixels.get(f"Size{axis}", ""), f"Size{axis}", 1) for axis in "XYZCT"},
                PlaneRuns(runs[:, 0], runs[:, 1], runs[:, 2], runs[:, 3:]),
                _scales(pixels),
                tuple(channel.get("Name", "") for channel in channels),
                of_channels([_colour(channel.get("Color")) for channel in channels]),
                tuple(c.get("ID", "") for c in element if local_name(c) == "AnnotationRef"),
                devices,
                plain_tree(element),
                heights,
            )
        )

    def add_device(self, element: Element) -> None:
        if len(self.devices) < MAX_DEVICES:
            self.devices[element.get("ID", "")] = plain_tree(element)

    def add_modulo(self, element: Element) -> None:
        names = {f"ModuloAlong{axis}": axis for axis in "ZCT"}
        inner = {local_name(along): along for along in element.iter()}
        axes = {axis: _modulo(inner[name]) for name, axis in names.items() if name in inner}
        if axes:
            self.modulo[element.get("ID", "")] = axes


def _child(element: Element, name: str) -> Element | None:
    return next((child for child in element if local_name(child) == name), None)


def _source(uuid: str | None, name: str | None) -> TiffDataFile:
    return TiffDataFile(plain_uuid(uuid), name or "")


def whole(text: str, name: str, least: int = 0) -> int:
    """Parse an integer below a safe limit."""
    number = int(text)
    if not least <= number < LARGEST:
        raise ValueError(f"{name} is {text[:40]}")
    return number


def _of_plane(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} of a Plane is {text[:40]!r}") from None


_factor = cache(partial(converted, 1.0))
_number = partial(number_in, default=math.nan)
"""Optional values may be wrong."""


def _colour(text: str | None) -> str:
    """Convert a signed 32-bit integer, 0xRRGGBBAA; empty if it is absent or invalid."""
    number = _number(text)
    return rgb(int(number) >> 8) if abs(number) < LARGEST else ""


def _scales(pixels: Element) -> dict[str, tuple[float, str]]:
    names = {axis: (f"PhysicalSize{axis}", "µm") for axis in "XYZ"} | {"T": ("TimeIncrement", "s")}
    return {
        axis: (_number(pixels.get(name)), pixels.get(f"{name}Unit", units))
        for axis, (name, units) in names.items()
    }


def _modulo(along: Element) -> Modulo:
    name, units = along.get("Type", "other").lower(), along.get("Unit", "")
    if "Start" not in along.attrib:
        labels = tuple(child.text or "" for child in along if local_name(child) == "Label")
        return Modulo(name, len(labels), 0.0, math.nan, units, labels)
    start, step = _number(along.get("Start")), _number(along.get("Step", "1"))
    count = (_number(along.get("End")) - start) / step if step else math.nan
    size = math.floor(count + 1.5) if 0 <= count < LARGEST else 0
    return Modulo(name, size, start, step, units, ())


def plain_uuid(text: str | None) -> str:
    """Normalise a UUID: lower case, without ``urn:uuid:``."""
    return (text or "").strip().lower().removeprefix("urn:uuid:")
