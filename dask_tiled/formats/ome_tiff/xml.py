"""OME-XML: the images of a set of files, and which page of which file holds which plane.

It stands in the first ImageDescription of a TIFF file, or in a file of its own.

Layout facts: TIFF, revision 6.0; the OME-TIFF specification and the OME data model, 2016-06; older
names where they differ.
"""

from __future__ import annotations

import math
import os
import re
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tiff.ifd import find_description, is_tiff
from dask_tiled.model.indexing import Index

MAX_BYTES = 1 << 28  # a plane takes some 200 bytes of the text
HEAD_BYTES = 1 << 12  # what comes before the UUID of the document fits into them
LARGEST = 1 << 48
"""Whole numbers in the XML are smaller: products of two pass for sizes, and overflow nothing."""
MAX_RUNS = 2_000_000
MAX_DEVICES = 1000
DEVICES = {
    "InstrumentRef": "instrument",
    "ObjectiveSettings": "objective",
    "ObjectiveRef": "objective",
    "DetectorSettings": "detector",
}
"""What leads from an image to devices, which stand before all images."""
WHOLE_FILE = -1  # as the planes of a run: all pages of its file

_SPACE = b"\0 \t\r\n"
# Possessive and atomic: comments after comments could be told apart in too many ways.
_PROLOG = rb"(?:\xef\xbb\xbf)?\s*+(?>(?:<\?.*?\?>|<!--.*?-->)\s*)*+"
_ROOT = re.compile(_PROLOG + rb"<(?:[\w.-]+:)?OME(?=[\s/>])([^>]*)", re.DOTALL)
_UUID = re.compile(rb"""\sUUID\s*=\s*["']([^"']*)["']""")


class Source(NamedTuple):
    """What a TiffData element calls a file; both are empty for the one that holds the XML."""

    uuid: str
    name: str


class Runs(NamedTuple):
    """Planes that stand one after the other in a file, in columns: a row for each run."""

    source: Index  # number of the file among the sources of the document
    page: Index  # the first one
    planes: Index  # how many, or WHOLE_FILE
    first: Index  # where the first one stands along Z, C and T


class Image(NamedTuple):
    """An Image element."""

    name: str
    order: str  # of Z, C and T, the one that changes fastest first
    sizes: dict[str, int]  # that along C counts the samples of a pixel
    runs: Runs
    scales: dict[str, tuple[float, str]]  # distances of two positions, where there are any
    channels: tuple[str, ...]
    annotations: tuple[str, ...]  # their identifiers
    devices: dict[str, Any]  # its instrument, and the first objective and detector
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
    """What the OME-XML of a file says."""

    path: str
    uuid: str
    elsewhere: Source | None  # the file with the metadata, where this is binary only
    sources: tuple[Source, ...]
    images: tuple[Image, ...]
    modulo: dict[str, dict[str, Modulo]]  # by identifier of an annotation, and Z, C or T
    creator: str

    @classmethod
    def read(cls, path: str) -> Document:
        """Read the OME-XML of a TIFF file, or of a file of its own."""
        reader = _Reader()
        root = tools.parse_xml(read_text(path), path, take=reader.take, max_bytes=MAX_BYTES)
        name, problem = tools.local_name(root), "the XML is no OME-XML"
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
        self.devices: dict[str, Any] = {}  # by their identifiers
        kinds = "Boolean Comment Double File List Long Map Tag Term Timestamp"
        ignored = ["Plane", "ROI", *(f"{kind}Annotation" for kind in kinds.split())]
        self.take: dict[str, Any] = dict.fromkeys(ignored, lambda _: None)
        self.take |= {"TiffData": self.add_run, "Image": self.add_image}
        self.take["XMLAnnotation"] = self.add_modulo
        self.take |= dict.fromkeys(["Instrument", "Objective", "Detector"], self.add_device)

    def add_run(self, element: Element) -> None:
        if len(self.runs) == MAX_RUNS:
            raise ValueError(f"more than {MAX_RUNS} TiffData elements")
        uuid = _child(element, "UUID")
        source = Source("", "") if uuid is None else _source(uuid.text, uuid.get("FileName"))
        page, count = element.get("IFD"), element.get("PlaneCount", element.get("NumPlanes"))
        usual = WHOLE_FILE if page is None else 1
        planes = usual if count is None else whole(count, "PlaneCount")
        first = (whole(element.get(f"First{axis}", "0"), f"First{axis}") for axis in "ZCT")
        number = self.sources.setdefault(source, len(self.sources))
        self.runs.append((number, whole(page or "0", "IFD"), planes, *first))

    def add_image(self, element: Element) -> None:
        runs = np.array(self.runs, np.int64).reshape(-1, 6)
        self.runs = []
        pixels = _child(element, "Pixels")
        if pixels is None:
            return
        order = pixels.get("DimensionOrder", "XYZCT")
        if sorted(order[2:]) != ["C", "T", "Z"] or order[:2] != "XY":
            raise ValueError(f"the DimensionOrder {order!r}")
        devices: dict[str, Any] = {}
        for one in element.iter():
            name, number = DEVICES.get(tools.local_name(one)), one.get("ID")
            if name and number in self.devices:
                devices.setdefault(name, self.devices[number])
        channels = [child for child in pixels if tools.local_name(child) == "Channel"]
        self.images.append(
            Image(
                element.get("Name", ""),
                order[2:],
                {axis: whole(pixels.get(f"Size{axis}", ""), f"Size{axis}", 1) for axis in "XYZCT"},
                Runs(runs[:, 0], runs[:, 1], runs[:, 2], runs[:, 3:]),
                _scales(pixels),
                tuple(channel.get("Name", "") for channel in channels),
                tuple(c.get("ID", "") for c in element if tools.local_name(c) == "AnnotationRef"),
                devices,
                tools.plain_tree(element),
            )
        )

    def add_device(self, element: Element) -> None:
        if len(self.devices) < MAX_DEVICES:
            self.devices[element.get("ID", "")] = tools.plain_tree(element)

    def add_modulo(self, element: Element) -> None:
        names = {f"ModuloAlong{axis}": axis for axis in "ZCT"}
        inner = {tools.local_name(along): along for along in element.iter()}
        axes = {axis: _modulo(inner[name]) for name, axis in names.items() if name in inner}
        if axes:
            self.modulo[element.get("ID", "")] = axes


def _child(element: Element, name: str) -> Element | None:
    return next((child for child in element if tools.local_name(child) == name), None)


def _source(uuid: str | None, name: str | None) -> Source:
    return Source(plain_uuid(uuid), name or "")


def whole(text: str, name: str, least: int = 0) -> int:
    """Read a whole number that is not too large to count with."""
    number = int(text)
    if not least <= number < LARGEST:
        raise ValueError(f"{name} is {text[:40]}")
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
        labels = tuple(child.text or "" for child in along if tools.local_name(child) == "Label")
        return Modulo(name, len(labels), 0.0, math.nan, units, labels)
    start, step = _number(along.get("Start")), _number(along.get("Step", "1"))
    count = (_number(along.get("End")) - start) / step if step else math.nan
    size = math.floor(count + 1.5) if 0 <= count < LARGEST else 0
    return Modulo(name, size, start, step, units, ())


def is_document(head: bytes) -> bool:
    """Return whether a file begins as an XML document whose root is OME."""
    return _ROOT.match(head) is not None


def read_text(path: str) -> bytes:
    """Read the OME-XML of a file, as UTF-8 if it says nothing else."""
    start, nbytes = 0, tools.file_size(path)
    if not is_document(tools.read_head(path, HEAD_BYTES)):
        start, nbytes = find_description(path)
    if not 0 < nbytes <= MAX_BYTES:
        problem, most = "no OME-XML in the file, or too much", f"at most {MAX_BYTES} bytes"
        where = f"byte {start}"
        raise tools.CorruptFileError(problem, path=path, where=where, expected=most, found=nbytes)
    text = tools.read_exactly(path, nbytes, start, "the OME-XML").strip(_SPACE)
    try:
        text.decode()
    except UnicodeDecodeError:  # some writers promise UTF-8, and write a micron in Latin 1
        if b"UTF-8" in text[:64].upper() or not text.startswith(b"<?xml"):
            return text.decode("latin-1").encode()
    return text


def read_uuid(path: str) -> str:
    """Read the UUID of the OME-XML in a file, and no more of it; empty where there is none."""
    head = tools.read_head(path, HEAD_BYTES)
    if is_tiff(head):
        start, nbytes = find_description(path)
        head = tools.read_head(path, min(nbytes, HEAD_BYTES), start).lstrip(_SPACE)
    root = _ROOT.match(head)
    uuid = root and _UUID.search(root[1])
    return plain_uuid(uuid[1].decode(errors="replace")) if uuid else ""


def plain_uuid(text: str | None) -> str:
    """Write a UUID in one way: in lower case, without what says that it is one."""
    return (text or "").strip().lower().removeprefix("urn:uuid:")
