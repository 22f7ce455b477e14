"""MRC headers: the main header, and the extended headers of FEI microscopes.

Layout after the MRC2014 standard (CCP-EM), the description of IMOD's variant of it, and the EPU
manual for the extended headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import numpy as np

from dask_tiled.codecs.packed_files import read_start
from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.formats.tools.frames import Record
from dask_tiled.formats.tools.header import Fields, Order, parse_fields, size_of
from dask_tiled.model.axes import Axis
from dask_tiled.model.decoders import plain

HEADER_BYTES = 1024
# fmt: off
FIELDS: Fields = {
    "nx": (0, "i4"), "ny": (4, "i4"), "nz": (8, "i4"), "mode": (12, "i4"), "nstart": (16, "3i4"),
    "m": (28, "3i4"), "cella": (40, "3f4"), "cellb": (52, "3f4"), "mapcrs": (64, "3i4"),
    "dmin": (76, "f4"), "dmax": (80, "f4"), "dmean": (84, "f4"), "ispg": (88, "i4"),
    "nsymbt": (92, "i4"), "exttyp": (104, "S4"), "nversion": (108, "i4"),
    "nint": (128, "i2"), "nreal": (130, "i2"), "imodStamp": (152, "i4"),
    "imodFlags": (156, "i4"), "origin": (196, "3f4"), "map": (208, "S4"), "machst": (212, "4u1"),
    "rms": (216, "f4"), "nlabl": (220, "i4"),
    **{f"label{k}": (224 + 80 * k, "S80") for k in range(10)},
}
# NumPy has no complex int16 (mode 3): it gets an axis of its own.
TYPES = {0: "i1", 1: "i2", 2: "f4", 3: "i2", 4: "c8", 6: "u2", 12: "f2"}
UNREADABLE = {16: "RGB pixels", 101: "4-bit pixels"}
STAMPS: dict[tuple[int, int], Order] = {(0x44, 0x44): "<", (0x44, 0x41): "<", (0x11, 0x11): ">"}
MRC2014 = 20140
"""Least NVERSION of files for which the standard of 2014 holds."""
UNTOLD = "nothing: bytes of older files may be unsigned"
IMOD_STAMP = 1146047817
FEI: Fields = {
    "Metadata size": (0, "i4"), "Metadata version": (4, "i4"), "Timestamp": (12, "f8"),
    "Microscope type": (20, "S16"), "D-Number": (36, "S16"), "Application": (52, "S16"),
    "Application version": (68, "S16"), "HT": (84, "f8"), "Dose": (92, "f8"),
    "Alpha tilt": (100, "f8"), "Beta tilt": (108, "f8"), "X-Stage": (116, "f8"),
    "Y-Stage": (124, "f8"), "Z-Stage": (132, "f8"), "Tilt axis angle": (140, "f8"),
    "Pixel size X": (156, "f8"), "Pixel size Y": (164, "f8"), "Defocus": (220, "f8"),
    "Magnification": (289, "f8"), "Camera length": (301, "f8"), "Convergence angle": (329, "f8"),
    "Integration time": (419, "f8"), "Binning Width": (427, "i4"), "Binning Height": (431, "i4"),
    "Camera name": (435, "S16"), "Dwell time": (571, "f8"), "Frame time": (579, "f8"),
}
# Before FEI1: 1024 sections of 128 bytes, even if fewer are used.
OLD_FEI_BYTES = 1024 * 128
OLD_FEI: Fields = {
    "Alpha tilt": (0, "f4"), "Beta tilt": (4, "f4"), "X-Stage": (8, "f4"), "Y-Stage": (12, "f4"),
    "Z-Stage": (16, "f4"), "Shift X": (20, "f4"), "Shift Y": (24, "f4"), "Defocus": (28, "f4"),
    "Exposure time": (32, "f4"), "Mean intensity": (36, "f4"), "Tilt axis angle": (40, "f4"),
    "Pixel size": (44, "f4"), "Magnification": (48, "f4"),
}
# fmt: on
SERIAL_EM: Mapping[int, tuple[tuple[str, ...], float]] = {
    1: (("tilt_angle",), 1e-2),
    2: (("piece_x", "piece_y", "piece_z"), 1.0),
    4: (("stage_x", "stage_y"), 1e-6 / 25),
    8: (("magnification",), 100.0),
    16: (("intensity",), 1 / 25000),
}
"""SerialEM fields of 2 bytes, by the bits of NREAL, with their units."""


class MrcHeader(NamedTuple):
    """The main header, with the dtype of the pixels and its source.

    The field ``m`` is (MX, MY, MZ), and ``mapcrs`` is (MAPC, MAPR, MAPS).
    """

    fields: dict[str, Any]
    order: Order
    dtype: np.dtype
    dtype_from: str

    @property
    def record(self) -> Record:
        """A section: a frame of shape (ny, nx), or (ny, nx, 2) for mode 3."""
        parts = (2,) if self.fields["mode"] == 3 else ()
        return Record((self.fields["ny"], self.fields["nx"], *parts), plain(self.dtype))

    @property
    def offset(self) -> int:
        """Offset of the first section."""
        return HEADER_BYTES + int(self.fields["nsymbt"])


def header_of(head: bytes, path: str, *, unfinished: bool = False) -> MrcHeader:
    """Parse the main header, in the byte order in which it is plausible.

    If ``unfinished``, the number of sections may be 0, as it may not have been written yet.
    """
    if len(head) < HEADER_BYTES:
        expected, found = f"{HEADER_BYTES} bytes", f"{len(head)} bytes"
        raise CorruptFileError(
            "too short for an MRC header", path=path, expected=expected, found=found
        )
    # Old files lack a valid machine stamp; then one order is plausible, or has smaller sizes.
    stamped = STAMPS.get((head[212], head[213]))
    parsed = {order: parse_fields(head, FIELDS, order) for order in get_args(Order)}
    order = min(
        (one for one in parsed if _is_plausible(parsed[one], int(not unfinished))),
        key=lambda one: (one != stamped, parsed[one]["nx"] * parsed[one]["ny"]),
        default=None,
    )
    if order is None:
        names = ("nx", "ny", "nz", "mode", "mapcrs", "nsymbt")
        read = parsed[stamped or "<"]
        found = ", ".join(f"{name} {read[name]}" for name in names)
        expected = f"sizes above 0, a mode of {sorted(TYPES)} and axes 1, 2, 3"
        problem = "invalid MRC header"
        raise CorruptFileError(problem, path=path, where="byte 0", expected=expected, found=found)
    fields = parsed[order]
    mode = fields["mode"]
    if mode in UNREADABLE:
        problem, known = f"{UNREADABLE[mode]} are not supported", ", ".join(map(str, sorted(TYPES)))
        raise DatasetError(problem, path=path, where="byte 12 (mode)", expected=known, found=mode)
    fields["labels"] = tuple(filter(None, (fields.pop(f"label{k}") for k in range(10))))
    kind, reason = _byte_type(fields) if mode == 0 else (TYPES[mode], "mode")
    return MrcHeader(fields, order, np.dtype(kind).newbyteorder(order), reason)


def _is_plausible(fields: dict[str, Any], least: int) -> bool:
    sizes = min(fields["nx"], fields["ny"]) > 0 and fields["nz"] >= least
    sizes = sizes and fields["nsymbt"] >= 0
    axes = sorted(fields["mapcrs"]) == [1, 2, 3] or not any(fields["mapcrs"])
    return sizes and axes and fields["mode"] in {*TYPES, *UNREADABLE}


def _byte_type(fields: dict[str, Any]) -> tuple[str, str]:
    """Return whether bytes are signed, with the reason; files before MRC2014 leave this open."""
    if fields["imodStamp"] == IMOD_STAMP:
        return ("i1" if fields["imodFlags"] & 1 else "u1"), "imodFlags"
    if fields["dmin"] >= 0 and 127 < fields["dmax"] <= 255:
        return "u1", "DMAX, which is too large for signed bytes"
    told = fields["dmin"] < 0 or 0 <= fields["dmin"] < fields["dmax"] <= 127  # or no difference
    if fields["nversion"] < MRC2014 and not told:
        return "i1", UNTOLD
    return "i1", "MRC2014, where bytes are signed"


def extended_fields(header: MrcHeader) -> Fields:
    """Return the fields of a section's extended header; empty for unknown kinds."""
    size, kind = header.fields["nsymbt"], header.fields["exttyp"]
    fields = {"FEI1": FEI, "FEI2": FEI, "": OLD_FEI}.get(kind, {})
    known = size >= size_of(fields) if fields else False
    return fields if known and (kind or size == OLD_FEI_BYTES) else {}


def read_extended(path: str, header: MrcHeader) -> dict[str, Any]:
    """Read the extended header of the first section, if its kind is known: degrees and metres."""
    fields = extended_fields(header)
    if not fields:
        return {}
    data = read_start(path, HEADER_BYTES + size_of(fields))[HEADER_BYTES:]
    return parse_fields(data, fields, header.order) if len(data) == size_of(fields) else {}


def cell_axes(header: MrcHeader, extended: dict[str, Any]) -> list[Axis]:
    """Name and calibrate columns, rows and sections by the cell axes along which they run.

    Fourier transforms are not in the space of the cell.
    """
    fields = header.fields
    axes = fields["mapcrs"] if any(fields["mapcrs"]) else (1, 2, 3)
    size = extended.get("Pixel size", 0.0)
    metres = extended.get("Pixel size X", size), extended.get("Pixel size Y", size), 0.0
    calibrated = []
    for k, axis in enumerate(a - 1 for a in axes):
        cell, steps = fields["cella"][axis], fields["m"][axis]
        scale = cell / steps if steps > 0 and cell > 0 else 1e10 * metres[axis]
        if header.dtype.kind == "c" or fields["mode"] == 3:
            scale = 0.0
        origin = fields["origin"]
        offset = origin[axis] if any(origin) else fields["nstart"][k] * scale
        calibrated.append(Axis.calibrated("xyz"[axis], "Å", scale, offset))
    return calibrated
