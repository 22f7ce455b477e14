"""Princeton Instruments SPE files: a header, then the frames; all numbers are little-endian.

Source: "SPE 3.0 File Format Specification", Princeton Instruments.
"""

import numpy as np

from dask_tiled.formats import tools

HEADER_BYTES = 4100
FIELDS = {
    "xdim": (42, "u2"),
    "datatype": (108, "i2"),
    "ydim": (656, "u2"),
    "NumFrames": (1446, "i4"),
    "file_header_ver": (1992, "f4"),
}
DTYPES = {0: "<f4", 1: "<i4", 2: "<i2", 3: "<u2", 8: "<u4"}
SIZES = ("xdim", "ydim", "NumFrames")
ALLOWED = {**dict.fromkeys(SIZES, tools.POSITIVE), "datatype": tuple(DTYPES)}


def sniff(path: str, head: bytes) -> str | None:
    """Check that header fields are plausible; there is no magic number."""
    if len(head) < tools.size_of(FIELDS):
        return "is shorter than an SPE header"
    header = tools.parse_fields(head, FIELDS)
    sure = tools.wrong_field(header, ALLOWED) is None and 1 <= header["file_header_ver"] < 4
    return None if sure else "has no SPE header"


def describe(paths: list[str]) -> tools.Description:
    """Read the header, and return the layout of the frames."""
    file = tools.File.only(paths, "spe")
    header = tools.read_fields(file.path, FIELDS)
    tools.check_fields(file.path, header, FIELDS, ALLOWED, "not an SPE header")
    pixels = tools.plain(np.dtype(DTYPES[header["datatype"]]))
    record = tools.Record((header["ydim"], header["xdim"]), pixels)
    layout = tools.record_layout([file], [header["NumFrames"]], record, HEADER_BYTES)
    return tools.Description.of("spe", layout, {"spe": {"header": header}})


FORMAT = tools.Format(
    name="spe",
    extensions=(".spe",),
    summary="Princeton Instruments, versions 1 to 3",
    nav_shape_from="the header: one axis of frames",
    sniff=sniff,
    describe=describe,
)
