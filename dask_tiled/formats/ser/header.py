"""What ``.ser`` files say of themselves: the header, the table of elements, an element's header."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.model.indexing import Index

START: tools.Fields = {
    "byte_order": (0, "u2"),
    "series_id": (2, "u2"),
    "version": (4, "u2"),
    "data_type_id": (6, "u4"),
    "tag_type_id": (10, "u4"),
    "total_elements": (14, "u4"),
    "valid_elements": (18, "u4"),
}
VERSIONS: Mapping[int, tools.Fields] = {
    0x0210: {"offset_array": (22, "u4"), "dimensions": (26, "u4")},
    0x0220: {"offset_array": (22, "u8"), "dimensions": (30, "u4")},
}
DIMENSION: tools.Fields = {
    "size": (0, "u4"),
    "offset": (4, "f8"),
    "delta": (12, "f8"),
    "element": (20, "i4"),
}
SPECTRUM: tools.Fields = {
    "offset": (0, "f8"),
    "delta": (8, "f8"),
    "element": (16, "i4"),
    "data_type": (20, "u2"),
    "size": (22, "u4"),
}
IMAGE: tools.Fields = {
    "offset_x": (0, "f8"),
    "delta_x": (8, "f8"),
    "element_x": (16, "i4"),
    "offset_y": (20, "f8"),
    "delta_y": (28, "f8"),
    "element_y": (36, "i4"),
    "data_type": (40, "u2"),
    "size_x": (42, "u4"),
    "size_y": (46, "u4"),
}
ELEMENTS = {0x4120: SPECTRUM, 0x4122: IMAGE}
DTYPES = ("<u1", "<u2", "<u4", "<i1", "<i2", "<i4", "<f4", "<f8", "<c8", "<c16")
MAX_DIMENSIONS = 16
MAX_TEXT = 4096


def recognise(head: bytes) -> str | None:
    """Say why a file does not begin with the header of a ``.ser`` file, or None."""
    if len(head) < tools.size_of(START):
        return "shorter than the header of a .ser file"
    start = tools.parse_fields(head, START)
    if (start["byte_order"], start["series_id"]) != (0x4949, 0x0197):
        return "begins like neither a .ser nor an .emi file"
    if start["version"] not in VERSIONS or start["data_type_id"] not in ELEMENTS:
        return f"version {start['version']:#x}, type {start['data_type_id']:#x} of elements"
    return None


def read_header(file: tools.File) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the header of a file, and its dimensions, of which the first is the fastest."""
    header = tools.read_fields(file.path, START)
    problem = recognise(tools.read_head(file.path, tools.size_of(START)))
    if problem is not None:
        raise tools.CorruptFileError(f"no header of a .ser file: {problem}", path=file.path)
    fields = VERSIONS[header["version"]]
    header |= tools.read_fields(file.path, fields)
    total, valid = header["total_elements"], header["valid_elements"]
    if not 1 <= valid <= total or header["dimensions"] > MAX_DIMENSIONS:
        raise tools.CorruptFileError(
            "the file holds no elements" if not valid else "the header contradicts itself",
            path=file.path,
            where="the fields total_elements, valid_elements and dimensions",
            expected=f"1 element or more, not more than {total}; up to {MAX_DIMENSIONS} dimensions",
            found=f"{valid} elements, {header['dimensions']} dimensions",
        )
    at = tools.size_of(fields)
    dimensions = []
    for _ in range(header["dimensions"]):
        dimension = tools.read_fields(file.path, DIMENSION, at=at)
        at += tools.size_of(DIMENSION)
        for name in ("description", "units"):
            dimension[name], at = _read_text(file.path, at)
        dimensions.append(dimension)
    return header, dimensions


def _read_text(path: str, at: int) -> tuple[str, int]:
    length = tools.read_fields(path, {"length": (0, "u4")}, at=at)["length"]
    if length > MAX_TEXT:
        raise tools.CorruptFileError(
            "a text is too long", path=path, where=f"byte {at}", expected=MAX_TEXT, found=length
        )
    text = tools.read_fields(path, {"text": (4, f"S{length}")}, at=at)["text"] if length else ""
    return text, at + 4 + length


def read_offsets(file: tools.File, header: Mapping[str, Any]) -> Index:
    """Read where the valid elements begin; the table has a place for those that are not, too."""
    kind = np.dtype("<u4" if header["version"] == 0x0210 else "<u8")
    at, stop = header["offset_array"], kind.itemsize * header["valid_elements"]
    if at + kind.itemsize * header["total_elements"] > file.size:
        raise tools.TruncatedFileError(
            "the table of elements reaches beyond the file",
            path=file.path,
            where=f"byte {at}",
            expected=f"{header['total_elements']} offsets of {kind.itemsize} bytes",
            found=f"{file.size} bytes",
        )
    offsets = np.frombuffer(tools.read_head(file.path, stop, at), kind)
    return np.minimum(offsets, file.size).astype(np.int64)  # beyond is beyond, and fits an int64


def read_elements(
    file: tools.File, header: Mapping[str, Any], offsets: Index, *, settled: bool
) -> tuple[dict[str, Any], tuple[int, ...], Index]:
    """Read the first element's own header, and find the elements that are there."""
    fields = ELEMENTS[header["data_type_id"]]
    element = tools.read_fields(file.path, fields, at=int(offsets[0]))
    kind = element["data_type"]
    sig_shape = tuple(element[key] for key in ("size_y", "size_x", "size") if key in element)
    if not 1 <= kind <= len(DTYPES) or 0 in sig_shape:
        raise tools.CorruptFileError(
            "an element cannot be read",
            path=file.path,
            where=f"byte {int(offsets[0])}",
            expected=f"pixels of a type from 1 to {len(DTYPES)}",
            found=f"type {kind}, shape {sig_shape}",
        )
    nbytes = tools.size_of(fields) + np.dtype(DTYPES[kind - 1]).itemsize * math.prod(sig_shape)
    beyond = np.flatnonzero(offsets > file.size - nbytes)
    if len(beyond) and not (settled and beyond[0]):
        raise tools.TruncatedFileError(
            "an element reaches beyond the file",
            path=file.path,
            where=f"element {int(beyond[0])}, byte {int(offsets[beyond[0]])}",
            expected=f"{nbytes} bytes",
            found=f"{file.size} bytes in the file",
            hint=f"Pass a nav_shape to read the {int(beyond[0])} before it." if beyond[0] else None,
        )
    offsets = offsets[: beyond[0]] if len(beyond) else offsets
    last = tools.read_fields(file.path, fields, at=int(offsets[-1]))
    same = ("data_type", "size", "size_x", "size_y")
    gaps = np.diff(np.sort(offsets))
    if any(last.get(key) != element.get(key) for key in same) or (gaps < nbytes).any():
        raise tools.CorruptFileError(
            "the elements differ, or overlap",
            path=file.path,
            where=f"the elements at bytes {int(offsets[0])} to {int(offsets[-1])}",
            expected=f"elements of {nbytes} bytes, all like {element}",
            found=f"{last} as the last, {int(gaps.min(initial=nbytes))} bytes between two",
        )
    return element, sig_shape, offsets
