"""FEI and Thermo Fisher TIA series: ``.ser`` files of images or spectra, and their ``.emi`` files.

Layout after C. Boothroyd's description of the TIA file format, checked with real files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dask_tiled.files.file import is_filling
from dask_tiled.formats import tools
from dask_tiled.formats.ser import emi
from dask_tiled.formats.tools.files import read_exactly
from dask_tiled.model.axes import nav_axes
from dask_tiled.model.doubts import Doubt, unknown_scan
from dask_tiled.model.indexing import Index
from dask_tiled.model.instrument import entries
from dask_tiled.model.runs import run_table

# fmt: off
START: tools.Fields = {
    "byte_order": (0, "u2"), "series_id": (2, "u2"), "version": (4, "u2"),
    "data_type_id": (6, "u4"), "tag_type_id": (10, "u4"),
    "total_elements": (14, "u4"), "valid_elements": (18, "u4"),
}
VERSIONS: Mapping[int, tools.Fields] = {
    0x0210: {"offset_array": (22, "u4"), "dimensions": (26, "u4")},
    0x0220: {"offset_array": (22, "u8"), "dimensions": (30, "u4")},
}
DIMENSION: tools.Fields = {
    "size": (0, "u4"), "offset": (4, "f8"), "delta": (12, "f8"), "element": (20, "i4"),
}
SPECTRUM: tools.Fields = {
    "offset": (0, "f8"), "delta": (8, "f8"), "element": (16, "i4"),
    "data_type": (20, "u2"), "size": (22, "u4"),
}
IMAGE: tools.Fields = {
    "offset_x": (0, "f8"), "delta_x": (8, "f8"), "element_x": (16, "i4"),
    "offset_y": (20, "f8"), "delta_y": (28, "f8"), "element_y": (36, "i4"),
    "data_type": (40, "u2"), "size_x": (42, "u4"), "size_y": (46, "u4"),
}
# fmt: on
ELEMENTS = {0x4120: SPECTRUM, 0x4122: IMAGE}
DTYPES = ("<u1", "<u2", "<u4", "<i1", "<i2", "<i4", "<f4", "<f8", "<c8", "<c16")
MAX_DIMENSIONS = 16
MAX_TEXT = 4096
BOTTOM_UP = (
    "the file holds the bottom row first; the top row is shown first, with a y axis to match"
)


def sniff(path: str, head: bytes) -> str | None:
    """Check for the first fields of a ``.ser`` file, or the magic of an ``.emi`` file."""
    return None if head.startswith(emi.MAGIC) else _problem_of(head)


def _problem_of(head: bytes) -> str | None:
    """Return why a file does not begin like a ``.ser`` file, or None."""
    if len(head) < tools.size_of(START):
        return "shorter than the header of a .ser file"
    start = tools.parse_fields(head, START)
    if (start["byte_order"], start["series_id"]) != (0x4949, 0x0197):
        return "begins like neither a .ser nor an .emi file"
    if start["version"] not in VERSIONS or start["data_type_id"] not in ELEMENTS:
        return f"version {start['version']:#x}, type {start['data_type_id']:#x} of elements"
    return None


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    dataset: int | str | None = None,
) -> tools.Description:
    """Describe a ``.ser`` file, or one of those of an ``.emi`` file.

    Parameters
    ----------
    paths : sequence of str
        One file.
    nav_shape : tuple of int, optional
        Shape of the scan, by default from the header. If given, the file may end early.
    dataset : int or str, optional
        The ``.ser`` file of an ``.emi`` file, by position or name. By default the
        first.
    """
    file, doubts = tools.File.only(paths, "ser"), tuple[Doubt, ...]()
    listed = dict[str, Any]()
    if tools.read_head(file.path, len(emi.MAGIC)) == emi.MAGIC:
        file, number, names, doubts = emi.ser_of(file.path, dataset)
        listed = {"dataset": number, "datasets": names}
    elif dataset is not None:
        problem = "a .ser file has one dataset: open the .emi file to choose"
        raise tools.DatasetError(problem, path=file.path)
    header, dimensions = _read_header(file)
    settled = nav_shape is not None or file.grows or is_filling()
    element, record, offsets = _read_elements(file, header, settled=settled)
    first = offsets + tools.size_of(ELEMENTS[header["data_type_id"]])
    strides = record.sig_strides
    image = len(strides) == 2
    if image:  # the last stored row is the top one
        first += record.frame_bytes - strides[0]
        strides = -strides[0], *strides[1:]
    table = run_table(first, record.sig_shape, strides)
    count = len(offsets)
    valid = max(count, header["valid_elements"]) if is_filling() else count
    scan, told_by, axes, in_doubt = _scan(header, dimensions, valid)
    layout = tools.Layout([file], (count,), record.sig_shape, table, [record.decoder]).show(scan)
    facts = header | listed | {"element": element}
    facts |= {f"dimension_{k}": dimension for k, dimension in enumerate(dimensions, 1)}
    facts["nav_shape_from"] = told_by
    if image:
        facts["orientation"] = BOTTOM_UP
    metadata = {"ser": facts}
    sidecar = emi.emi_of(file.path)
    if sidecar is not None:
        objects = emi.read_objects(sidecar)
        own = emi.object_of(objects, file.path)
        metadata["emi"] = objects | ({"of_this_file": own} if own else {})
    desc = tools.Description.of("ser", layout, metadata, axes + _sig_axes(element))
    return desc.with_doubts(*doubts, *in_doubt)


def _read_header(file: tools.File) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the header of a file, and its dimensions, fastest first."""
    header = tools.read_fields(file.path, START)
    problem = _problem_of(tools.read_head(file.path, tools.size_of(START)))
    if problem is not None:
        raise tools.CorruptFileError(f"invalid header of a .ser file: {problem}", path=file.path)
    fields = {**START, **VERSIONS[header["version"]]}
    header = tools.read_fields(file.path, fields)
    allowed = {
        "total_elements": tools.POSITIVE,
        "valid_elements": range(1, header["total_elements"] + 1),
        "dimensions": range(MAX_DIMENSIONS + 1),
    }
    holds = header["valid_elements"] > 0
    problem = "the header contradicts itself" if holds else "the file holds no elements"
    tools.check_fields(file.path, header, fields, allowed, problem)
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


def _read_offsets(file: tools.File, header: Mapping[str, Any]) -> Index:
    """Read the offsets of the valid elements; the table also has entries for invalid ones."""
    kind = np.dtype("<u4" if header["version"] == 0x0210 else "<u8")
    at, total = header["offset_array"], header["total_elements"]
    if at + kind.itemsize * total > file.size:
        problem, where = "the table of elements reaches beyond the file", f"byte {at}"
        expected, found = f"{total} offsets of {kind.itemsize} bytes", f"{file.size} bytes"
        raise tools.TruncatedFileError(
            problem, path=file.path, where=where, expected=expected, found=found
        )
    stop = kind.itemsize * header["valid_elements"]
    offsets = np.frombuffer(tools.read_head(file.path, stop, at), kind)
    return np.minimum(offsets, file.size).astype(np.int64)  # clipped to fit an int64


def _read_elements(
    file: tools.File, header: Mapping[str, Any], *, settled: bool
) -> tuple[dict[str, Any], tools.Record, Index]:
    """Read the header of the first element, and locate the elements in the file."""
    offsets, fields = _read_offsets(file, header), ELEMENTS[header["data_type_id"]]
    at = int(offsets[0])
    element = tools.read_fields(file.path, fields, at=at)
    sizes = [key for key in ("size_y", "size_x", "size") if key in fields]
    allowed = {"data_type": range(1, len(DTYPES) + 1), **dict.fromkeys(sizes, tools.POSITIVE)}
    tools.check_fields(file.path, element, fields, allowed, "an element cannot be read", at=at)
    dtype = np.dtype(DTYPES[element["data_type"] - 1])
    record = tools.Record(tuple(element[key] for key in sizes), tools.plain(dtype))
    nbytes = tools.size_of(fields) + record.frame_bytes
    beyond = offsets > file.size - nbytes
    there = int(beyond.argmax()) if beyond.any() else len(offsets)
    if there < len(offsets) and not (settled and there):
        raise tools.TruncatedFileError(
            "an element reaches beyond the file",
            path=file.path,
            where=f"element {there}, byte {int(offsets[there])}",
            expected=f"{nbytes} bytes",
            found=f"{file.size} bytes in the file",
            hint=f"Pass nav_shape=({there},) to read the elements before." if there else None,
        )
    offsets = offsets[:there]
    last = tools.read_fields(file.path, fields, at=int(offsets[-1]))
    gaps = np.diff(np.sort(offsets))
    if any(last[key] != element[key] for key in allowed) or (gaps < nbytes).any():
        raise tools.CorruptFileError(
            "the elements differ, or overlap",
            path=file.path,
            where=f"the elements at bytes {at} to {int(offsets[-1])}",
            expected=f"elements of {nbytes} bytes, all like {element}",
            found=f"{last} as the last, {int(gaps.min(initial=nbytes))} bytes between two",
        )
    return element, record, offsets


def _scan(
    header: Mapping[str, Any], dimensions: Sequence[Mapping[str, Any]], count: int
) -> tuple[tuple[int, ...], str, tuple[tools.Axis, ...], tuple[Doubt, ...]]:
    """Return the shape of the scan, its source, its axes, and doubts about it."""
    slowest_first = dimensions[::-1]
    shape = tuple(dimension["size"] for dimension in slowest_first)
    told_by = "the sizes of the dimensions"
    if len(shape) == 1 and dimensions[0]["description"] == "Number":
        shape = (count,)
        told_by = "the number of valid elements: a stopped series is shorter"
    elif math.prod(shape) != header["total_elements"]:
        told_by = "the number of valid elements: the dimensions do not match the total"
        return (count,), told_by, nav_axes(1), unknown_scan(count)
    if math.prod(shape) == 1:
        return (), "one element has no navigation axes", (), ()
    names = nav_axes(len(shape))
    if len(shape) == 1 and dimensions[0]["description"] == "Position":
        names = (tools.Axis("position"),)
    axes = tuple(
        _axis(name.name, "m" if dim["units"] == "meters" else dim["units"], dim)
        for name, dim in zip(names, slowest_first, strict=True)
    )
    return shape, told_by, axes, ()


def _sig_axes(element: Mapping[str, Any]) -> tuple[tools.Axis, ...]:
    """Return the signal axes. Files have no units: TIA always uses eV, m and 1/m."""
    if "size" in element:
        axis = _axis("energy", "eV", element)
        is_told = axis.units and axis != tools.Axis("energy", "eV")
        return (axis if is_told else tools.Axis("channel"),)
    y, x = (_axis(name, None, element, f"_{name}") for name in "yx")
    return (y.cut(element["size_y"] - 1, -1) if y.units else y), x


def _axis(
    name: str, units: str | None, calibration: Mapping[str, Any], suffix: str = ""
) -> tools.Axis:
    offset, delta, element = (calibration[key + suffix] for key in ("offset", "delta", "element"))
    if units is None:  # pixels are below 1 m, and reciprocal steps above 1/m
        units = "m" if abs(delta) < 1 else "1/m" if abs(delta) > 1 else ""
    return tools.Axis.calibrated(name, units, delta, offset - element * delta, signed=True)


TAGS: Mapping[int, tools.Fields] = {
    0x4152: {"kind": (0, "u2"), "time": (4, "u4")},
    0x4142: {
        "kind": (0, "u2"), "time": (4, "u4"), "position_x": (8, "f8"), "position_y": (16, "f8"),
    },
}  # fmt: skip


def read_headers(desc: tools.Description) -> tools.Headers:
    """Return the tags of all elements: times and scan positions."""
    file, header = desc.files[0], desc.metadata["ser"]
    kind, fields = header["tag_type_id"], TAGS.get(header["tag_type_id"])
    if fields is None:
        problem, expected = "unsupported tag type", "0x4152 or 0x4142"
        raise tools.DatasetError(problem, path=file.path, expected=expected, found=hex(kind))
    word = np.dtype("<u4" if header["version"] == 0x0210 else "<u8")
    count, record = desc.layout.n_frames, tools.record_dtype(fields)
    at = header["offset_array"] + word.itemsize * header["total_elements"]
    offsets = np.frombuffer(read_exactly(file.path, word.itemsize * count, at, "tags"), word)
    there = np.flatnonzero((offsets > 0) & (offsets <= file.size - record.itemsize))
    if not len(there) or record.itemsize > file.size:
        raise tools.DatasetError(
            "no element has a tag", path=file.path, expected=f"{count} tags", found="none"
        )
    first = offsets[there].astype(np.int64)
    table = run_table(first, (1,), (record.itemsize,), numbers=there)
    layout = tools.Layout(
        [file], (count,), (1,), table, [tools.plain(record)], partial=len(there) < count
    )
    dtype = np.dtype(
        [("time_utc", "M8[s]"), *((name, "f8") for name in fields if name.startswith("position"))]
    )
    return tools.Headers(layout, dtype, partial(_decode_tags, kind=kind))


def _decode_tags(records: Any, facts: Any, kind: int) -> None:
    """Decode tags; other records are missing, as at the end of a stopped series."""
    there = records["kind"] == kind
    times = records["time"].astype("i8").view("M8[s]")
    facts["time_utc"][there] = times[there]
    for name in facts.dtype.names[1:]:
        facts[name][there] = records[name][there]


FORMAT = tools.Format(
    name="ser",
    extensions=(".ser", ".emi"),
    summary="TIA series: images, spectra, stacks and maps, versions 0x210 and 0x220",
    nav_shape_from="the header; a single image or spectrum has no scan",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    instrument=entries({"emi/of_this_file": emi.ROWS}),
    peers=("LiberTEM", "RosettaSciIO", "ncempy"),
    aliases=("tia", "fei"),
)
