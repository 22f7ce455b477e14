"""What lies beside sequences of Direct Electron cameras: reference frames and maps of bad pixels.

Names and layout after what public readers take from such files, and real ones.
"""

from __future__ import annotations

import math
import os
import re
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from dask_tiled.formats import tools
from dask_tiled.formats.tools.mrc_header import HEADER_BYTES, header_of

FIELDS: tools.Fields = {
    "UnbinnedFrameSizeX": (8, "i4"),
    "UnbinnedFrameSizeY": (12, "i4"),
    "OffsetX": (16, "i4"),
    "OffsetY": (20, "i4"),
    "HardwareBinning": (24, "i4"),
}
STARTS = (272, 282)
"""Where the first record of a ``.metadata`` file was found to begin."""
PLACES = {"Row", "Rows", "Column", "Columns"}


class Sensor(NamedTuple):
    """Which part of the sensor the frames show, in its own pixels, and how it is binned."""

    offset: tuple[int, int]
    binning: int


def corrections(desc: tools.Description) -> tools.Corrections:
    """Read dark frame, gain map and bad pixels that lie beside a sequence.

    For ``scan.seq``, and for ``scan.seq.seq``, these are ``scan.seq.dark.mrc``,
    ``scan.seq.gain.mrc``, and ``scan.seq.Config.Metadata.xml`` together with ``scan.seq.metadata``.
    """
    path, shape = desc.files[0].path, desc.layout.sig_shape
    root = re.sub(r"(\.seq){1,2}$", "", path, flags=re.IGNORECASE) + ".seq"
    names = ("dark.mrc", "gain.mrc", "Config.Metadata.xml", "metadata")
    dark, gain, xml, metadata = (f"{root}.{name}" for name in names)
    found = tools.Corrections(
        reference(dark, shape) if os.path.exists(dark) else None,
        reference(gain, shape) if os.path.exists(gain) else None,
        bad_pixels(xml, metadata, shape)
        if os.path.exists(xml) and os.path.exists(metadata)
        else None,
    )
    if found == tools.Corrections():
        raise tools.DatasetError(
            "no corrections beside the file",
            path=path,
            expected=f"{dark}, {gain}, or {xml} and {metadata}",
        )
    return found


def reference(path: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Read the first section of an MRC file; real ones announce more sections than they hold."""
    header = header_of(tools.read_head(path, HEADER_BYTES), path)
    record = header.record
    if record.sig_shape != shape:
        raise tools.DatasetError(
            "the reference has another shape than the frames",
            path=path,
            expected=shape,
            found=record.sig_shape,
        )
    data = tools.read_exactly(path, record.frame_bytes, header.offset, "the reference")
    return np.frombuffer(data, header.dtype).reshape(shape)


def bad_pixels(xml: str, metadata: str, shape: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
    """Read the map of bad pixels of a sensor, and cut out what the frames show.

    Of several maps the largest is taken among the binned ones, if frames are binned, or among the
    others. A defect is a range of rows, of columns, or where both cross.
    """
    maps = tools.read_xml(xml).findall(".//BadPixelMap")
    if not maps:
        return None
    sensor = _sensor(metadata, shape)
    numbers = {node: _whole(node, xml, "Rows", "Columns", "Binning") for node in maps}
    suited = [n for n in maps if (numbers[n][2] > 1) == (sensor.binning > 1)]
    if not suited:
        raise tools.CorruptFileError(
            "no map of bad pixels suits the binning", path=xml, expected=sensor.binning
        )
    chosen = max(suited, key=lambda node: math.prod(numbers[node][:2]))
    *size, binning = numbers[chosen]
    first = [offset // max(1, binning) for offset in sensor.offset]
    if any(o < 0 or o + n > m for o, n, m in zip(first, shape, size, strict=True)):
        raise tools.CorruptFileError(
            "the map of bad pixels does not cover the frames",
            path=xml,
            where="BadPixelMap",
            expected=f"{shape} pixels from {tuple(first)} on",
            found=f"{tuple(size)} pixels",
        )
    mask = np.zeros(shape, dtype=bool)
    for defect in chosen.iterfind("Defect"):
        if not PLACES & set(defect.keys()):
            raise _bad(defect, xml)
        rows, columns = (
            _range(defect, name, xml, start, count)
            for name, start, count in zip(("Row", "Column"), first, shape, strict=True)
        )
        mask[rows, columns] = True
    return mask


def _sensor(path: str, shape: tuple[int, ...]) -> Sensor:
    """Read the first record that tells of frames of this shape."""
    found = []
    for start in STARTS:
        fields = tools.read_fields(path, FIELDS, at=start)
        binning = max(1, fields["HardwareBinning"])
        size = fields["UnbinnedFrameSizeY"] // binning, fields["UnbinnedFrameSizeX"] // binning
        if size == shape:
            return Sensor((fields["OffsetY"], fields["OffsetX"]), binning)
        found.append(size)
    raise tools.CorruptFileError(
        "the metadata does not tell of these frames",
        path=path,
        where=" or ".join(f"byte {start}" for start in STARTS),
        expected=f"frames of {shape}",
        found=" or ".join(map(str, found)),
    )


def _whole(node: Element, path: str, *names: str) -> list[int]:
    texts = [node.get(name, "0") for name in names]
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", text) for text in texts):
        raise _bad(node, path)
    return [int(text) for text in texts]


def _range(node: Element, name: str, path: str, start: int, count: int) -> slice:
    """Give the rows or columns of a defect, counted from the first one that frames show."""
    text = node.get(f"{name}s", node.get(name, f"{start}-{start + count - 1}"))
    found = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", text)
    if found is None:
        raise _bad(node, path)
    first, last = int(found[1]), int(found[2] or found[1])
    return slice(max(0, first - start), max(0, last + 1 - start))


def _bad(node: Element, path: str) -> tools.CorruptFileError:
    return tools.CorruptFileError(
        "an element cannot be read",
        path=path,
        where=node.tag,
        expected="whole numbers, or ranges of them",
        found=node.attrib,
    )
