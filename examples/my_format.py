"""Princeton Instruments SPE files: a format added from outside of dask-tiled.

A file is a header of 4100 bytes and then the frames, one after the other, all little-endian.
Version 3 has XML after the frames, which is not read.

Source: "SPE 3.0 File Format Specification", Princeton Instruments.
"""

import struct
from collections.abc import Sequence

import numpy as np

from dask_tiled import CorruptFileError, DatasetError, Description, Format
from dask_tiled.formats.tools.records import Record, record_layout
from dask_tiled.model.decoders import plain
from dask_tiled.model.files import File, read_head

HEADER_BYTES = 4100
FIELDS = {
    "width": (42, "<H"),
    "type": (108, "<h"),
    "height": (656, "<H"),
    "frames": (1446, "<i"),
    "version": (1992, "<f"),
}
DTYPES = {0: "<f4", 1: "<i4", 2: "<i2", 3: "<u2", 8: "<u4"}


def sniff(path: str, head: bytes) -> str | None:
    """Look for fields that make sense together; there is no magic number."""
    if len(head) < 2000:
        return "shorter than an SPE header"
    fields = parse(head)
    if not 1 <= fields["version"] < 4 or fields["type"] not in DTYPES:
        return f"no SPE header: version {fields['version']:g}, type {fields['type']}"
    if min(fields["width"], fields["height"], fields["frames"]) < 1:
        return "an SPE header without frames"
    return None


def parse(head: bytes) -> dict[str, float]:
    """Read the fields of a header."""
    return {key: struct.unpack_from(code, head, at)[0] for key, (at, code) in FIELDS.items()}


def describe(paths: Sequence[str]) -> Description:
    """Read the header, and say where the frames lie."""
    if len(paths) != 1:
        raise DatasetError("spe opens one file at a time", path=paths[0], found=len(paths))
    file = File.at(paths[0])
    head = read_head(file.path, HEADER_BYTES)
    problem = sniff(file.path, head)
    if problem is not None:
        raise CorruptFileError(problem, path=file.path, where="byte 0")
    fields = parse(head)
    pixels = plain(np.dtype(DTYPES[fields["type"]]))
    record = Record((fields["height"], fields["width"]), pixels)
    layout = record_layout([file], [fields["frames"]], record, HEADER_BYTES)
    return Description.of("spe", layout, {"spe": fields})


FORMAT = Format(
    name="spe",
    extensions=(".spe",),
    summary="Princeton Instruments, versions 1 to 3",
    nav_shape_from="the header, which gives one axis of frames",
    sniff=sniff,
    describe=describe,
)
