"""OME-XML: the images of a set of files, and which page of which file holds which plane.

Layout facts: the OME-TIFF specification and the OME data model, 2016-06; older names where they
differ.
"""

from __future__ import annotations

import math
import os
import re
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from dask_tiled.errors import CorruptFileError
from dask_tiled.formats.ome_tiff.text import MAX_BYTES, plain_uuid, read_text
from dask_tiled.formats.tools.markup import local_name, parse_xml, plain_tree
from dask_tiled.model.indexing import Index

LARGEST = 1 << 48
"""Whole numbers in the XML are smaller: products of two pass for sizes, and overflow nothing."""
MAX_RUNS = 2_000_000
WHOLE_FILE = -1
"""As the planes of a run: all pages of its file."""


class Source(NamedTuple):
    """What a TiffData element calls a file; both are empty for the one that holds the XML."""

    uuid: str
    name: str


class Runs(NamedTuple):
    """Planes that stand one after the other in a file, in columns: a row for each run.

    Attributes
    ----------
    source : int64 array
        Number of the file among the sources of the document.
    page, planes : int64 array
        The first page, and how many; or ``WHOLE_FILE``.
    first : int64 array of shape (runs, 3)
        Where the first one stands along Z, C and T.
    """

    source: Index
    page: Index
    planes: Index
    first: Index


class Image(NamedTuple):
    """An Image element.

    `order` has Z, C and T, the one that changes fastest first. `sizes` along C count the samples of
    a pixel. `scales` are distances of two positions, where there are any, and their units.
    `annotations` are identifiers, and `facts` all the rest as a plain tree.
    """

    name: str
    order: str
    sizes: dict[str, int]
    runs: Runs
    scales: dict[str, tuple[float, str]]
    channels: tuple[str, ...]
    annotations: tuple[str, ...]
    facts: dict[str, Any]


class Modulo(NamedTuple):
    """An axis inside of Z, C or T: equally spaced, or a step of NaN and labels of its positions."""

    name: str
    size: int
    start: float
    step: float
    units: str
    labels: tuple[str, ...]


class Document(NamedTuple):
    """What the OME-XML of a file says.

    `uuid` is that of the file; `elsewhere` the one that holds the metadata, where this is binary
    only; `modulo` is by identifier of an annotation, and Z, C or T.
    """

    path: str
    uuid: str
    elsewhere: Source | None
    sources: tuple[Source, ...]
    images: tuple[Image, ...]
    modulo: dict[str, dict[str, Modulo]]
    creator: str

    @classmethod
    def read(cls, path: str) -> Document:
        """Read the OME-XML of a TIFF file, or of a file of its own."""
        reader = _Reader()
        root = parse_xml(read_text(path), path, take=reader.take(), max_bytes=MAX_BYTES)
        if local_name(root) != "OME":
            raise CorruptFileError(
                "the XML is no OME-XML", path=path, expected="OME", found=local_name(root)
            )
        other = _child(root, "BinaryOnly")
        return cls(
            path,
            plain_uuid(root.get("UUID")),
            None if other is None else _source(other.get("UUID"), other.get("MetadataFile")),
            tuple(reader.sources),
            tuple(reader.images),
            reader.modulo,
            root.get("Creator", ""),
        )

    def name_of(self, source: int) -> str:
        """Name a file as the XML does."""
        uuid, name = self.sources[source]
        return name or uuid or os.path.basename(self.path)


class _Reader:
    """Gathers what is worth keeping while the XML is read."""

    def __init__(self) -> None:
        self.sources: dict[Source, int] = {}
        self.runs: list[tuple[int, ...]] = []
        self.images: list[Image] = []
        self.modulo: dict[str, dict[str, Modulo]] = {}

    def take(self) -> dict[str, Any]:
        kinds = "Boolean Comment Double File List Long Map Tag Term Timestamp"
        ignored = ["Plane", "ROI", *(f"{kind}Annotation" for kind in kinds.split())]
        return {
            **dict.fromkeys(ignored, lambda _: None),
            "TiffData": self.add_run,
            "Image": self.add_image,
            "XMLAnnotation": self.add_modulo,
        }

    def add_run(self, element: Element) -> None:
        if len(self.runs) == MAX_RUNS:
            raise ValueError(f"more than {MAX_RUNS} TiffData elements")
        uuid = _child(element, "UUID")
        source = Source("", "") if uuid is None else _source(uuid.text, uuid.get("FileName"))
        page, count = element.get("IFD"), element.get("PlaneCount", element.get("NumPlanes"))
        if count is None:
            planes = WHOLE_FILE if page is None else 1
        else:
            planes = _whole(count, "PlaneCount")
        first = (_whole(element.get(f"First{axis}", "0"), f"First{axis}") for axis in "ZCT")
        number = self.sources.setdefault(source, len(self.sources))
        self.runs.append((number, _whole(page or "0", "IFD"), planes, *first))

    def add_image(self, element: Element) -> None:
        runs = np.array(self.runs, np.int64).reshape(-1, 6)
        self.runs = []
        pixels = _child(element, "Pixels")
        if pixels is None:
            return
        order = pixels.get("DimensionOrder", "XYZCT")
        if sorted(order[2:]) != ["C", "T", "Z"] or order[:2] != "XY":
            raise ValueError(f"the DimensionOrder {order!r}")
        channels = [child for child in pixels if local_name(child) == "Channel"]
        self.images.append(
            Image(
                element.get("Name", ""),
                order[2:],
                {axis: _size(pixels, axis) for axis in "XYZCT"},
                Runs(runs[:, 0], runs[:, 1], runs[:, 2], runs[:, 3:]),
                _scales(pixels),
                tuple(channel.get("Name", "") for channel in channels),
                tuple(c.get("ID", "") for c in element if local_name(c) == "AnnotationRef"),
                plain_tree(element),
            )
        )

    def add_modulo(self, element: Element) -> None:
        found = {}
        for along in element.iter():
            match = re.fullmatch("ModuloAlong([ZCT])", local_name(along))
            if match is not None:
                found[match[1]] = _modulo(along)
        if found:
            self.modulo[element.get("ID", "")] = found


def _child(element: Element, name: str) -> Element | None:
    return next((child for child in element if local_name(child) == name), None)


def _source(uuid: str | None, name: str | None) -> Source:
    return Source(plain_uuid(uuid), name or "")


def _whole(text: str, name: str) -> int:
    number = int(text)
    if not 0 <= number < LARGEST:
        raise ValueError(f"{name} is {text[:40]}")
    return number


def _size(pixels: Element, axis: str) -> int:
    number = _whole(pixels.get(f"Size{axis}", ""), f"Size{axis}")
    if not number:
        raise ValueError(f"Size{axis} is 0")
    return number


def _number(text: str | None) -> float:
    """Read a number, or give NaN: what is said in addition need not be right."""
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


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
