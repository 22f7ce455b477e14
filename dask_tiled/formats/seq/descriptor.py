"""Norpix StreamPix sequences, ``.seq``, as Direct Electron cameras write them, too.

Layout as public readers describe it, and real files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.seq.corrections import corrections

MAGIC = b"\xed\xfe\0\0"
FIELDS: tools.Fields = {
    "magic": (0, "u4"),
    "name": (4, "12u2"),
    "version": (28, "i4"),
    "header_size": (32, "i4"),
    "description": (36, "256u2"),
    "width": (548, "u4"),
    "height": (552, "u4"),
    "bit_depth": (556, "u4"),
    "bit_depth_real": (560, "u4"),
    "image_size_bytes": (564, "u4"),
    "image_format": (568, "u4"),
    "allocated_frames": (572, "u4"),
    "origin": (576, "u4"),
    "true_image_size": (580, "u4"),
    "suggested_frame_rate": (584, "f8"),
    "description_format": (592, "i4"),
    "reference_frame": (596, "u4"),
    "fixed_size": (600, "u4"),
    "flags": (604, "u4"),
    "bayer_pattern": (608, "i4"),
    "time_offset_us": (612, "i4"),
    "extended_header_size": (616, "i4"),
    "compression_format": (620, "u4"),
    "reference_time_s": (624, "i4"),
    "reference_time_ms": (628, "u2"),
    "reference_time_us": (630, "u2"),
}
MONOCHROME = 100
ALLOWED = {
    "compression_format": (0,),
    "image_format": (MONOCHROME,),
    "bit_depth": (8, 16, 32, 64),
}


def sniff(path: str, head: bytes) -> str | None:
    """Look for the magic number, and a version that makes sense."""
    if head.startswith(MAGIC) and 0 < int.from_bytes(head[28:32], "little") < 100:
        return None
    return "does not begin with the number 0xFEED and a version"


def describe(
    paths: Sequence[str], *, nav_shape: tuple[int, ...] | None = None
) -> tools.Description:
    """Describe a sequence.

    Parameters
    ----------
    paths : sequence of str
        One file.
    nav_shape : tuple of int, optional
        Shape of the scan, by default one axis of as many frames as the header says, or of all in
        the file where it says nothing. Space for more can follow, which StreamPix fills with zeros.
    """
    file = tools.File.only(paths, "seq")
    header = tools.read_fields(file.path, FIELDS)
    tools.check_fields(file.path, header, FIELDS, {"magic": (0xFEED,)}, "not a SEQ file")
    problem = "frames of this kind are not read"
    tools.check_fields(file.path, header, FIELDS, ALLOWED, problem, kind=tools.DatasetError)
    for name in ("name", "description"):
        units = np.array(header[name], "<u2").tobytes()
        header[name] = units.decode("utf-16-le", "replace").partition("\0")[0]
    shape = header["height"], header["width"]
    pixels = tools.Record(shape, tools.plain(np.dtype(f"<u{header['bit_depth'] // 8}")))
    # A time stamp follows them, and what fills it up.
    footer = header["true_image_size"] - pixels.frame_bytes
    if not pixels.frame_bytes or footer < 0:
        raise tools.CorruptFileError(
            "the header makes no sense",
            path=file.path,
            where="byte 580 (true_image_size)",
            expected=f"room for {shape[0]} x {shape[1]} pixels of {header['bit_depth']} bits",
            found=f"{header['true_image_size']} bytes",
        )
    record = replace(pixels, footer=footer)
    start = 8192 if header["version"] >= 5 else 1024
    promised = header["allocated_frames"]
    by, settled = "the header field allocated_frames", nav_shape is not None
    layout = tools.lay_out(
        [file], record, start, promised=promised, promised_by=by, settled=settled
    )
    # The frame rate of the header is that of playing.
    desc = tools.Description.of("seq", layout, {"seq": {"header": header}})
    if nav_shape is not None or not promised:
        return desc
    return desc.with_scan((promised,), by)


FORMAT = tools.Format(
    name="seq",
    extensions=(".seq",),
    summary="Norpix and Direct Electron sequences: 8 to 64 bits, uncompressed; corrections beside",
    nav_shape_from="the header, which gives one axis of frames",
    sniff=sniff,
    describe=describe,
    corrections=corrections,
    peers=("LiberTEM", "PIMS"),
)
