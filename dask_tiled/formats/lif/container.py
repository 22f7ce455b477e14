"""The structure of LIF and LOF files: XML, images, and memory blocks of pixels.

Layout according to public readers, and real files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.files import read_exactly
from dask_tiled.formats.tools.text import parse_xml
from dask_tiled.model.indexing import Array

MARK, BETWEEN = 0x70, 0x2A
TEXT: tools.Fields = {"mark": (0, "u4"), "between": (8, "u1"), "characters": (9, "u4")}
BLOCKS: dict[str, tools.Fields] = {
    "1": {"mark": (0, "u4"), "between": (8, "u1"), "size": (9, "u4"), "before_name": (13, "u1"),
          "characters": (14, "u4")},
    "2": {"mark": (0, "u4"), "between": (8, "u1"), "size": (9, "u8"), "before_name": (17, "u1"),
          "characters": (18, "u4")},
}  # fmt: skip
"""Header of a memory block by file version, followed by the name of the block."""
OBJECT: tools.Fields = {
    "before_major": (0, "u1"), "before_minor": (5, "u1"), "between": (10, "u1"), "size": (11, "u8"),
}  # fmt: skip
"""Header of the block of a LOF file, after the text at its start; the XML follows the block."""
MARKS = dict.fromkeys(("between", "before_name", "before_major", "before_minor"), (BETWEEN,))
MARKS |= {"mark": (MARK,)}
LOF = "LMS_Object_File"
MOST_BYTES, MOST_COUNT, MOST_BLOCKS = 1 << 27, 1 << 20, 100_000
"""Limits: bytes of the XML, its elements and attributes, and memory blocks of a file."""


class LifImage(NamedTuple):
    """An image: its path in the tree, the name of its memory block, and its XML element."""

    name: str
    block: str
    xml: ET.Element

    def found(self, path: str) -> list[ET.Element]:
        """Return the elements of the image at a path."""
        return self.xml.findall(path)


def is_project(head: bytes) -> bool:
    """Return whether a file begins like XLEF and XLIF files, which hold only XML."""
    text = head.replace(b"\0", b"").lstrip(b"\xff\xfe\xef\xbb\xbf \r\n")
    return text.startswith(b"<") and b"<LMSDataContainerHeader" in text[:500]


def read_file(file: tools.File) -> tuple[ET.Element, dict[str, tuple[int, int]]]:
    """Read the XML, and the offset and length of each memory block by name."""
    if is_project(tools.read_head(file.path, 1 << 10)):
        what, hint = "XLEF and XLIF files are not supported", "Open the LOF files that they name."
        raise tools.DatasetError(what, path=file.path, expected="LIF or LOF", hint=hint)
    text, at = _read_text(file, 0)
    if text == LOF:
        values = _read_marked(file, OBJECT, at, "not a LOF file")
        at += tools.size_of(OBJECT)
        return _parsed(file, _read_text(file, at + values["size"])[0]), {LOF: (at, values["size"])}
    root = _parsed(file, text)
    version = root.get("Version", "")
    if version not in BLOCKS:
        what, expected = "unsupported LIF version", " or ".join(BLOCKS)
        raise tools.DatasetError(what, path=file.path, expected=expected, found=version)
    fields, found = BLOCKS[version], dict[str, tuple[int, int]]()
    size = tools.size_of(fields)
    while at < file.size and len(found) < MOST_BLOCKS:
        values = _read_marked(file, fields, at, "no memory block begins here")
        name = read_exactly(file.path, 2 * values["characters"], at + size, "the name of a block")
        at += size + len(name)
        found[name.decode("utf-16-le", "replace")] = at, values["size"]
        at += values["size"]
    return root, found


def _read_marked(file: tools.File, fields: tools.Fields, at: int, problem: str) -> dict[str, Any]:
    """Read a header, and check its markers."""
    values = tools.read_fields(file.path, fields, at=at)
    allowed = {name: MARKS[name] for name in values if name in MARKS}
    tools.check_fields(file.path, values, fields, allowed, problem, at=at)
    return values


def _read_text(file: tools.File, at: int) -> tuple[str, int]:
    """Read a text with its markers; return the text and the offset of its end."""
    values = _read_marked(file, TEXT, at, "no Leica text")
    start, nbytes = at + tools.size_of(TEXT), 2 * values["characters"]
    if nbytes > MOST_BYTES:
        what, expected = "the XML is too long", f"{MOST_BYTES} bytes at most"
        raise tools.CorruptFileError(what, path=file.path, expected=expected, found=nbytes)
    data = read_exactly(file.path, nbytes, start, "the XML")
    return data.decode("utf-16-le", "replace"), start + nbytes


def _parsed(file: tools.File, text: str) -> ET.Element:
    """Parse the XML, dropping attachments that are not used."""
    limits = {"max_bytes": 2 * MOST_BYTES, "max_count": MOST_COUNT}
    take = {"Attachment": _attachment, "TimeStampList": _stamp_list}
    return parse_xml(text.encode("utf8", "replace"), file.path, take=take, **limits)


def _attachment(element: ET.Element) -> ET.Element | None:
    """Keep attributes of hardware settings and of tiles; drop other attachments."""
    name = element.get("Name")
    if name not in {"HardwareSetting", "TileScanInfo"}:
        return None
    kept = ET.Element("Attachment", element.attrib)
    inner = element[:1] if name == "HardwareSetting" else element[:]
    kept.extend(ET.Element(one.tag, one.attrib) for one in inner)
    return kept


def _stamp_list(element: ET.Element) -> ET.Element:
    """Convert the time stamps of older files, one element each, to the text of newer ones."""
    kept = ET.Element("TimeStampList")
    halves = [(one.get("HighInteger", ""), one.get("LowInteger", "")) for one in element]
    old = (f"{int(high) << 32 | int(low):x}" for high, low in halves)
    kept.text = " ".join(old) if halves else element.text
    return kept


def images_of(root: ET.Element) -> Iterator[LifImage]:
    """Yield the images of the tree, named by their paths in its folders."""
    projects = root.findall("Element")
    waiting = [("", one) for one in projects]
    while waiting:
        above, element = waiting.pop(0)
        name = f"{above}/{element.get('Name', '')}".lstrip("/")
        xml, memory = element.find("Data/Image"), element.find("Memory")
        if xml is not None:
            yield LifImage(name, "" if memory is None else memory.get("MemoryBlockID", ""), xml)
        inside = name if xml is not None or element not in projects else ""
        waiting[:0] = [(inside, one) for one in element.findall("Children/Element")]


def stamps_of(image: LifImage) -> Array:
    """Read the time stamps of all frames, in ticks of 100 ns."""
    text = next((one.text or "" for one in image.found("TimeStampList")), "")
    try:
        return np.array([int(one, 16) for one in text.split()], "u8")
    except (ValueError, OverflowError):
        return np.empty(0, "u8")
