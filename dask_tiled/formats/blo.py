"""NanoMegas blockfiles of ASTAR and DigiSTAR, ``.blo``: a scan of square diffraction patterns.

Layout as public readers describe it, checked with real files. Newer files have the magic number 259
and record the bit depth in the note.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.header import Order
from dask_tiled.formats.tools.text import serial_date
from dask_tiled.model.axes import nav_axes
from dask_tiled.model.instrument import entries

ID = b"IMGBLO"
ORDERS: dict[bytes, Order] = {b"\2\1": "<", b"\3\1": "<", b"\1\2": ">", b"\1\3": ">"}
"""Byte order by magic number, 258 or 259."""
FIELDS: tools.Fields = {
    "MAGIC": (6, "u2"), "Data_offset_1": (8, "u4"), "Data_offset_2": (12, "u4"),
    "flags": (16, "u4"), "DP_SZ": (20, "u2"), "DP_rotation": (22, "u2"), "NX": (24, "u2"),
    "NY": (26, "u2"), "Scan_rotation": (28, "u2"), "SX": (30, "f8"), "SY": (38, "f8"),
    "Beam_energy": (46, "u4"), "SDP": (50, "u2"), "Camera_length": (52, "u4"),
    "Acquisition_time": (56, "f8"), "Centering": (64, "8f8"), "Distortion": (128, "14f8"),
}  # fmt: skip
NOTE = 240
MAX_NOTE = 1 << 16
SIZES = ("NX", "NY", "DP_SZ")
ALLOWED = {**dict.fromkeys(SIZES, tools.POSITIVE), "Data_offset_2": range(NOTE, 1 << 32)}
BIT_DEPTH = re.compile(r"^[ \t]*blo bit depth\s*:\s*(\d+)", re.IGNORECASE | re.MULTILINE)
FRAME_HEADER = 6
"""The bytes 170 and 85, then the frame number."""


def sniff(path: str, head: bytes) -> str | None:
    """Check for the identifier and the magic number, in either byte order."""
    known = head.startswith(ID) and head[6:8] in ORDERS
    return None if known else "does not begin with 'IMGBLO' and the number 258 or 259"


def describe(
    paths: Sequence[str], *, nav_shape: tuple[int, ...] | None = None
) -> tools.Description:
    """Describe a blockfile, by default as a scan of (NY, NX)."""
    file = tools.File.only(paths, "blo")
    head = tools.read_head(file.path, 8)
    reason = sniff(file.path, head)
    if reason is not None:
        where = "byte 0"
        raise tools.CorruptFileError("not a blockfile", path=file.path, where=where, found=reason)
    order = ORDERS[head[6:8]]
    header = tools.read_fields(file.path, FIELDS, order)
    tools.check_fields(file.path, header, FIELDS, ALLOWED, "invalid header")
    scan, size = (header["NY"], header["NX"]), header["DP_SZ"]
    first, data = header["Data_offset_1"], header["Data_offset_2"]
    frames = math.prod(scan)
    note = tools.read_head(file.path, max(0, min(first, data, MAX_NOTE) - NOTE), NOTE)
    header["Note"] = note.decode("latin1").strip("\0\r\n ")
    dtype = _dtype(header, file.path).newbyteorder(order)
    record = tools.Record((size, size), tools.plain(dtype), FRAME_HEADER)
    layout = tools.lay_out([file], record, data, promised=frames, settled=nav_shape is not None)
    metadata: dict[str, Any] = {"header": header, "byte_order": order}
    if NOTE <= first <= data - frames:
        metadata["virtual_bright_field"] = {"offset": first, "shape": scan, "dtype": "|u1"}
    # SDP is pixels per centimetre of the screen, times 100.
    pixel = 100 / header["SDP"] if header["SDP"] else 0.0
    axes = (*nav_axes(1), *(tools.Axis.calibrated(name, "cm", pixel) for name in "yx"))
    desc = tools.Description.of("blo", layout, {"blo": metadata}, axes)
    if nav_shape is not None:
        return desc
    nav = (tools.Axis.calibrated(f"scan_{name}", "nm", header[f"S{name.upper()}"]) for name in "yx")
    return desc.with_scan(scan, "the header fields NY and NX", tuple(nav))


def _dtype(header: dict[str, Any], path: str) -> np.dtype:
    """Return the dtype of the pixels; old files always have 8 bits."""
    found = BIT_DEPTH.search(header["Note"]) if header["MAGIC"] == 259 else None
    bits = "8" if found is None else found[1]
    if bits not in {"8", "16"}:
        raise tools.CorruptFileError(
            "invalid bit depth", path=path, where="the note", expected="8 or 16", found=bits
        )
    return np.dtype("u1" if bits == "8" else "u2")


def read_headers(desc: tools.Description) -> tools.Headers:
    """Return the frame numbers that precede the frames."""
    fields, order = {"number": (2, "u4")}, desc.metadata["blo"]["byte_order"]
    kind = tools.record_dtype(fields, order)
    return tools.stored_headers(
        tools.beside_frames(desc.layout, kind, -FRAME_HEADER), {"number": "number"}
    )


ROWS = (
    ("beam_energy", "Beam_energy", "V"),
    ("camera_length", "Camera_length", "mm", lambda tenths: tenths / 10),
    ("date", "Acquisition_time", "", serial_date),
)

FORMAT = tools.Format(
    name="blo",
    extensions=(".blo",),
    summary="NanoMegas blockfiles: magic numbers 258 and 259, 8 and 16 bits, both byte orders",
    nav_shape_from="the header",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    instrument=entries({"blo/header": ROWS}),
    peers=("LiberTEM", "RosettaSciIO"),
    aliases=("blockfile", "nanomegas"),
)
