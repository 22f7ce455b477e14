"""Norpix StreamPix sequences, ``.seq``, also written by Direct Electron cameras.

Those of Direct Electron come with reference frames and maps of bad pixels. Layout and names as
public readers describe them, checked with real files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.formats import tools
from dask_tiled.formats.mrc.header import HEADER_BYTES, header_of
from dask_tiled.formats.tools.files import is_file, read_exactly
from dask_tiled.formats.tools.frames import count_frames
from dask_tiled.formats.tools.header import HeaderValue, Keys, parse_keys, whole
from dask_tiled.formats.tools.text import read_xml
from dask_tiled.model.doubts import unknown_scan
from dask_tiled.model.indexing import Array

MAGIC = b"\xed\xfe\0\0"
FIELDS: tools.Fields = {
    "magic": (0, "u4"), "name": (4, "12u2"), "version": (28, "i4"), "header_size": (32, "i4"),
    "description": (36, "256u2"), "width": (548, "u4"), "height": (552, "u4"),
    "bit_depth": (556, "u4"), "bit_depth_real": (560, "u4"), "image_size_bytes": (564, "u4"),
    "image_format": (568, "u4"), "allocated_frames": (572, "u4"), "origin": (576, "u4"),
    "true_image_size": (580, "u4"), "suggested_frame_rate": (584, "f8"),
    "description_format": (592, "i4"), "reference_frame": (596, "u4"), "fixed_size": (600, "u4"),
    "flags": (604, "u4"), "bayer_pattern": (608, "i4"), "time_offset_us": (612, "i4"),
    "extended_header_size": (616, "i4"), "compression_format": (620, "u4"),
    "reference_time_s": (624, "i4"), "reference_time_ms": (628, "u2"),
    "reference_time_us": (630, "u2"),
}  # fmt: skip
MONOCHROME = 100
ALLOWED = {"compression_format": (0,), "image_format": (MONOCHROME,), "bit_depth": (8, 16, 32, 64)}
SENSOR: tools.Fields = {
    "UnbinnedFrameSizeX": (8, "i4"), "UnbinnedFrameSizeY": (12, "i4"), "OffsetX": (16, "i4"),
    "OffsetY": (20, "i4"), "HardwareBinning": (24, "i4"),
}  # fmt: skip
STARTS = (272, 282)
"""Offsets of the first record in ``.metadata`` files."""


def _range(text: str) -> tuple[int, int]:
    """Parse a row or column, or a range of them."""
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", text)
    if match is None:
        raise ValueError(text)
    return int(match[1]), int(match[2] or match[1])


MAP: Keys = dict.fromkeys(("Rows", "Columns", "Binning"), whole(range(10**9), 0))
PLACES = HeaderValue(_range, "a whole number, or a range", ())
DEFECT: Keys = dict.fromkeys(("Rows", "Row", "Columns", "Column"), PLACES)


def sniff(path: str, head: bytes) -> str | None:
    """Check for the magic number and a plausible version."""
    known = head.startswith(MAGIC) and 0 < int.from_bytes(head[28:32], "little") < 100
    return None if known else "does not begin with the number 0xFEED and a version"


def describe(
    paths: Sequence[str], *, nav_shape: tuple[int, ...] | None = None
) -> tools.Description:
    """Describe a sequence, with the number of frames in the header, or all if it is 0.

    Preallocated space may follow, filled with zeros by StreamPix.
    """
    file = tools.File.only(paths, "seq")
    header = tools.read_fields(file.path, FIELDS)
    tools.check_fields(file.path, header, FIELDS, {"magic": (0xFEED,)}, "not a SEQ file")
    problem = "unsupported kind of frames"
    tools.check_fields(file.path, header, FIELDS, ALLOWED, problem, kind=tools.DatasetError)
    for name in ("name", "description"):
        units = np.array(header[name], "<u2").tobytes()
        header[name] = units.decode("utf-16-le", "replace").partition("\0")[0]
    shape = header["height"], header["width"]
    pixels = tools.Record(shape, tools.plain(np.dtype(f"<u{header['bit_depth'] // 8}")))
    sizes = dict.fromkeys(("width", "height"), tools.POSITIVE)
    sizes["true_image_size"] = range(min(pixels.frame_bytes, 1 << 62), 1 << 63)
    problem = f"no room for {shape[0]} x {shape[1]} pixels of {header['bit_depth']} bits"
    tools.check_fields(file.path, header, FIELDS, sizes, problem)
    # A time stamp and padding follow.
    record = replace(pixels, footer=header["true_image_size"] - pixels.frame_bytes)
    start = 8192 if header["version"] >= 5 else 1024
    promised, by = header["allocated_frames"], "the header field allocated_frames"
    settled = nav_shape is not None
    counts = count_frames([file], record, start, promised=promised, promised_by=by, settled=settled)
    if 0 < promised < counts[0] and _is_free(file, start + promised * record.nbytes):
        counts = [promised]
    layout = tools.record_layout([file], counts, record, start)
    # The frame rate of the header is a playback rate.
    desc = tools.Description.of("seq", layout, {"seq": {"header": header}})
    if settled:
        return desc
    if promised:
        desc = desc.with_scan((promised,), by)
    # A sequence of StreamPix is a movie; cameras of Direct Electron also record scans.
    is_scan = any(map(is_file, _beside(file.path)))
    return desc.with_doubts(*unknown_scan(desc.nav_shape[0])) if is_scan else desc


def _is_free(file: tools.File, at: int) -> bool:
    """Return whether a file has preallocated space at a place, filled with zeros."""
    return not file.read(4096, at).strip(b"\0")


STAMP: tools.Fields = {"seconds": (0, "u4"), "ms": (4, "u2"), "us": (6, "u2")}
UNITS = {"seconds": 1_000_000, "ms": 1000, "us": 1}


def read_headers(desc: tools.Description) -> tools.Headers:
    """Return the time stamps after each frame; version 5 includes microseconds."""
    header = desc.metadata["seq"]["header"]
    stamp = {name: STAMP[name] for name in list(STAMP)[: 3 if header["version"] >= 5 else 2]}
    pixels = header["width"] * header["height"] * header["bit_depth"] // 8
    kind = tools.record_dtype(stamp)
    if pixels + kind.itemsize > header["true_image_size"]:
        path, expected = desc.files[0].path, f"{kind.itemsize} bytes after the pixels"
        found = f"{header['true_image_size']} bytes, {pixels} of them pixels"
        raise tools.DatasetError("no time stamps", path=path, expected=expected, found=found)
    layout = tools.beside_frames(desc.layout, kind, pixels)
    return tools.stored_headers(layout, {}, {"time_utc": {name: UNITS[name] for name in stamp}})


def _beside(path: str) -> tuple[str, str, str, str]:
    """Return the paths of the files that Direct Electron cameras write beside a sequence."""
    root = re.sub(r"(\.seq){1,2}$", "", path, flags=re.IGNORECASE) + ".seq"
    dark, gain = f"{root}.dark.mrc", f"{root}.gain.mrc"
    return dark, gain, f"{root}.Config.Metadata.xml", f"{root}.metadata"


def read_corrections(desc: tools.Description) -> tools.Corrections:
    """Read dark frame, gain map and bad pixels beside a sequence.

    For ``scan.seq``, and for ``scan.seq.seq``, these are ``scan.seq.dark.mrc``,
    ``scan.seq.gain.mrc``, and ``scan.seq.Config.Metadata.xml`` together with ``scan.seq.metadata``.
    """
    path, shape = desc.files[0].path, desc.layout.sig_shape
    dark, gain, xml, metadata = _beside(path)
    mapped = is_file(xml) and is_file(metadata)
    corrections = tools.Corrections(
        _reference(dark, shape, "dark") if is_file(dark) else None,
        _reference(gain, shape, "gain") if is_file(gain) else None,
        _bad_pixels(xml, metadata, shape) if mapped else None,
    )
    if corrections == tools.Corrections():
        raise tools.DatasetError(
            "no corrections beside the file",
            path=path,
            expected="{}, {}, or {} and {}".format(*map(os.path.basename, _beside(path))),
        )
    return corrections


def _reference(path: str, shape: tuple[int, ...], part: str) -> Array:
    """Read the first section of an MRC file; the header may promise more sections than it holds."""
    header = header_of(tools.read_head(path, HEADER_BYTES), path)
    record = header.record
    if record.sig_shape != shape:
        raise tools.DatasetError(
            "the reference differs in shape from the frames",
            path=path,
            expected=shape,
            found=record.sig_shape,
        )
    pixels = read_exactly(path, record.frame_bytes, header.offset, "the reference")
    found = np.frombuffer(pixels, header.dtype).reshape(shape)
    given: dict[str, Any] = {part: found}
    try:
        tools.Corrections(**given)
    except tools.DatasetError as error:
        told = {"expected": error.expected, "found": error.found, "hint": error.hint}
        raise tools.CorruptFileError(error.problem, path=path, **told) from error
    return found


def _bad_pixels(xml: str, metadata: str, shape: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
    """Read the map of bad pixels of a sensor, and crop it to the frames.

    Of several maps, the largest one with matching binning is used. A defect is a range of rows, of
    columns, or their intersection; patterns inside a range are ignored, so that all of it is
    excluded.
    """
    maps = read_xml(xml).findall(".//BadPixelMap")
    if not maps:
        return None
    corner, binned = _sensor(metadata, shape)
    sizes = {node: [*parse_keys(xml, node.attrib, MAP).values()] for node in maps}
    suited = [node for node in maps if (sizes[node][2] > 1) == (binned > 1)]
    if not suited:
        raise tools.CorruptFileError(
            "no map of bad pixels matches the binning", path=xml, expected=binned
        )
    chosen = max(suited, key=lambda node: math.prod(sizes[node][:2]))
    *size, binning = sizes[chosen]
    first = [offset // max(1, binning) for offset in corner]
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
        told = parse_keys(xml, defect.attrib, DEFECT)
        if not any(told.values()):
            problem, expected = "a defect has no position", " or ".join(DEFECT)
            raise tools.CorruptFileError(
                problem, path=xml, where="Defect", expected=expected, found=defect.attrib
            )
        ranges = told["Rows"] or told["Row"], told["Columns"] or told["Column"]
        mask[tuple(map(_shown, ranges, first, shape))] = True
    return mask


def _shown(places: tuple[int, int] | tuple[()], start: int, count: int) -> slice:
    """Return the part of a range of rows or columns in the frame; all without a range."""
    first, last = places or (start, start + count - 1)
    return slice(max(0, first - start), max(0, last + 1 - start))


def _sensor(path: str, shape: tuple[int, ...]) -> tuple[tuple[int, int], int]:
    """Return the part of the sensor in the frames: corner (y, x), unbinned, and binning."""
    sizes = []
    for start in STARTS:
        fields = tools.read_fields(path, SENSOR, at=start)
        binning = max(1, fields["HardwareBinning"])
        size = fields["UnbinnedFrameSizeY"] // binning, fields["UnbinnedFrameSizeX"] // binning
        if size == shape:
            return (fields["OffsetY"], fields["OffsetX"]), binning
        sizes.append(size)
    raise tools.CorruptFileError(
        "the metadata do not match the frames",
        path=path,
        where=" or ".join(f"byte {start}" for start in STARTS),
        expected=f"frames of {shape}",
        found=" or ".join(map(str, sizes)),
    )


FORMAT = tools.Format(
    name="seq",
    extensions=(".seq",),
    summary="Norpix and Direct Electron sequences: 8 to 64 bits, uncompressed; correction files",
    nav_shape_from="the header, which gives one axis of frames",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    corrections=read_corrections,
    peers=("LiberTEM", "PIMS"),
    aliases=("norpix", "streampix"),
)
