"""Headers of TVIPS image series: one for the series, and one for each frame.

Layout after TVIPS' description of the format, as LiberTEM and RosettaSciIO quote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.decoders import plain
from dask_tiled.errors import CorruptFileError
from dask_tiled.files import File, read_head
from dask_tiled.headers import Fields, parse_fields, read_table
from dask_tiled.records import Record

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


def checks(fields: dict[str, Any]) -> dict[str, tuple[bool, str]]:
    """Tell for some fields of a series header whether they make sense, and what would."""
    size = fields["IImgHeaderBytes"]
    return {
        "ISize": (fields["ISize"] == HEADER_BYTES, f"{HEADER_BYTES}"),
        "IVersion": (fields["IVersion"] in {1, 2}, "1 or 2"),
        "IXDim": (fields["IXDim"] > 0, "1 or more"),
        "IYDim": (fields["IYDim"] > 0, "1 or more"),
        "IBPP": (fields["IBPP"] in {8, 16}, "8 or 16"),
        "IImgHeaderBytes": (
            fields["IVersion"] == 1 or 12 <= size <= MAX_FRAME_HEADER,
            f"12 to {MAX_FRAME_HEADER}",
        ),
    }


def read_header(path: str) -> tuple[dict[str, Any], Record]:
    """Read the header of a series.

    Raises
    ------
    CorruptFileError
        It is none, as in a file that continues a series.
    """
    head = read_head(path, HEADER_BYTES)
    fields = parse_fields(head.ljust(HEADER_BYTES, b"\0"), SERIES)
    for name, (right, expected) in checks(fields).items():
        if not right:
            raise CorruptFileError(
                "not the first file of a TVIPS series",
                path=path,
                where=f"byte {SERIES[name][0]} ({name})",
                expected=expected,
                found=fields[name],
                hint="The series header is in the file ..._000.tvips.",
            )
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
