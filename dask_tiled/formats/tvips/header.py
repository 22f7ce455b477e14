"""Headers of TVIPS image series: one for the series, and one for each frame.

Layout after TVIPS' description of the format, as LiberTEM and RosettaSciIO quote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.formats.tools.headers import (
    POSITIVE,
    Allowed,
    Fields,
    check_fields,
    parse_fields,
    read_table,
    wrong_field,
)
from dask_tiled.formats.tools.records import Record
from dask_tiled.model.decoders import plain
from dask_tiled.model.files import File, read_head

HEADER_BYTES = 256
MAX_FRAME_HEADER = 1 << 16
SERIES: Fields = {
    "ISize": (0, "i4"),
    "IVersion": (4, "i4"),
    "IXDim": (8, "i4"),
    "IYDim": (12, "i4"),
    "IBPP": (16, "i4"),
    "IXOff": (20, "i4"),
    "IYOff": (24, "i4"),
    "IXBin": (28, "i4"),
    "IYBin": (32, "i4"),
    "IPixelSize": (36, "i4"),
    "IHT": (40, "i4"),
    "IMagTotal": (44, "i4"),
    "IImgHeaderBytes": (48, "i4"),
}
# Headers of version 1 end after the third field, those of version 2 where the series says.
FRAME: Fields = {
    "ICounter": (0, "u4"),
    "ITime": (4, "u4"),
    "IMS": (8, "u4"),
    "LUT_Index": (12, "u4"),
    "Faraday": (16, "f4"),
    "TEM_Mag": (20, "u4"),
    "TEM_Mag_mode": (24, "u4"),
    "TEM_Stage_x": (28, "f4"),
    "TEM_Stage_y": (32, "f4"),
    "TEM_Stage_z": (36, "f4"),
    "TEM_Stage_alpha": (40, "f4"),
    "TEM_Stage_beta": (44, "f4"),
    "Index_of_rotator": (48, "u4"),
    "DENS_T_measure": (52, "f4"),
    "DENS_T_setpoint": (56, "f4"),
    "DENS_Power": (60, "f4"),
    "TEM_Obj_current": (64, "f4"),
    "Scan_x": (68, "f4"),
    "Scan_y": (72, "f4"),
}
ALLOWED: Allowed = {
    "ISize": (HEADER_BYTES,),
    "IVersion": (1, 2),
    "IXDim": POSITIVE,
    "IYDim": POSITIVE,
    "IBPP": (8, 16),
}
ALLOWED_OF_2 = {**ALLOWED, "IImgHeaderBytes": range(12, MAX_FRAME_HEADER + 1)}


def _allowed(fields: dict[str, Any]) -> Allowed:
    return ALLOWED if fields["IVersion"] == 1 else ALLOWED_OF_2


def sniff(path: str, head: bytes) -> str | None:
    """Look for a series header that makes sense; only the first file of a series has one."""
    if len(head) < HEADER_BYTES:
        return "shorter than a TVIPS header"
    fields = parse_fields(head, SERIES)
    wrong = wrong_field(fields, _allowed(fields))
    return f"as a TVIPS header, {wrong} is {fields[wrong]}" if wrong else None


def read_header(path: str) -> tuple[dict[str, Any], Record]:
    """Read the header of a series.

    Raises
    ------
    CorruptFileError
        It is none, as in a file that continues a series.
    """
    head = read_head(path, HEADER_BYTES)
    fields = parse_fields(head.ljust(HEADER_BYTES, b"\0"), SERIES)
    problem = "not the first file of a TVIPS series"
    hint = "The series header is in the file ..._000.tvips."
    check_fields(path, fields, SERIES, _allowed(fields), problem, hint=hint)
    decoder = plain(np.dtype(f"<u{fields['IBPP'] // 8}"))
    size = 12 if fields["IVersion"] == 1 else fields["IImgHeaderBytes"]
    return fields, Record((fields["IYDim"], fields["IXDim"]), decoder, size)


def read_frame_headers(
    files: Sequence[File], counts: Sequence[int], record: Record, start: int, count: int
) -> dict[str, npt.NDArray[Any]]:
    """Read the headers of consecutive frames, file by file.

    Parameters
    ----------
    files : sequence of File
    counts : sequence of int
        Frames in each file.
    record : Record
    start, count : int
        Number of the first frame, and how many there are.

    Returns
    -------
    dict
        For each field that the headers are long enough for an array of `count` values.
    """
    known = {name: field for name, field in FRAME.items() if field[0] + 4 <= record.header}
    tables = []
    for i, (file, frames) in enumerate(zip(files, counts, strict=True)):
        number = min(count, frames - start)
        if number > 0:
            at = (0 if i else HEADER_BYTES) + start * record.nbytes
            tables.append(read_table(file.path, known, at, record.nbytes, number))
            count -= number
        start = max(0, start - frames)
    return {name: np.concatenate([table[name] for table in tables]) for name in known}
