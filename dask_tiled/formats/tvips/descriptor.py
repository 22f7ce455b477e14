"""TVIPS image series: ``..._000.tvips`` and the files that continue it.

Layout according to TVIPS' description of the format, as quoted by LiberTEM and RosettaSciIO.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dask_tiled.errors import check_whole
from dask_tiled.files.file import is_filling
from dask_tiled.formats import tools
from dask_tiled.formats.tools.files import SeriesFile, gather, lost_before
from dask_tiled.formats.tools.frames import count_frames
from dask_tiled.formats.tools.header import Allowed, read_table
from dask_tiled.formats.tools.text import since_1970
from dask_tiled.formats.tvips.scan import Headers, TvipsScan, find_scan, snake
from dask_tiled.model.doubts import unknown_scan
from dask_tiled.model.indexing import Array
from dask_tiled.model.instrument import entries

HEADER_BYTES = 256
MAX_FRAME_HEADER = 1 << 16
MAX_HEADERS = 4096  # frames searched for the start of a scan
SERIES: tools.Fields = {
    "ISize": (0, "i4"), "IVersion": (4, "i4"), "IXDim": (8, "i4"), "IYDim": (12, "i4"),
    "IBPP": (16, "i4"), "IXOff": (20, "i4"), "IYOff": (24, "i4"), "IXBin": (28, "i4"),
    "IYBin": (32, "i4"), "IPixelSize": (36, "i4"), "IHT": (40, "i4"), "IMagTotal": (44, "i4"),
    "IImgHeaderBytes": (48, "i4"),
}  # fmt: skip
# Version 1 headers end after the third field; in version 2 the series header gives the size.
FRAME: tools.Fields = {
    "ICounter": (0, "u4"), "ITime": (4, "u4"), "IMS": (8, "u4"), "LUT_Index": (12, "u4"),
    "Faraday": (16, "f4"), "TEM_Mag": (20, "u4"), "TEM_Mag_mode": (24, "u4"),
    "TEM_Stage_x": (28, "f4"), "TEM_Stage_y": (32, "f4"), "TEM_Stage_z": (36, "f4"),
    "TEM_Stage_alpha": (40, "f4"), "TEM_Stage_beta": (44, "f4"), "Index_of_rotator": (48, "u4"),
    "DENS_T_measure": (52, "f4"), "DENS_T_setpoint": (56, "f4"), "DENS_Power": (60, "f4"),
    "TEM_Obj_current": (64, "f4"), "Scan_x": (68, "f4"), "Scan_y": (72, "f4"),
}  # fmt: skip
ALLOWED: Allowed = {
    "ISize": (HEADER_BYTES,), "IVersion": (1, 2), "IXDim": tools.POSITIVE, "IYDim": tools.POSITIVE,
    "IBPP": (8, 16),
}  # fmt: skip
ALLOWED_OF_2 = {**ALLOWED, "IImgHeaderBytes": range(12, MAX_FRAME_HEADER + 1)}


def _allowed(fields: dict[str, Any]) -> Allowed:
    return ALLOWED if fields["IVersion"] == 1 else ALLOWED_OF_2


def sniff(path: str, head: bytes) -> str | None:
    """Check for a plausible series header, which only the first file of a series has."""
    if len(head) < HEADER_BYTES:
        return "shorter than a TVIPS header"
    fields = tools.parse_fields(head, SERIES)
    wrong = tools.wrong_field(fields, _allowed(fields))
    return f"not a TVIPS header: {wrong} is {fields[wrong]}" if wrong else None


def read_header(path: str) -> tuple[dict[str, Any], tools.Record]:
    """Read the header of a series, which is in its first file."""
    head = tools.read_head(path, HEADER_BYTES)
    fields = tools.parse_fields(head.ljust(HEADER_BYTES, b"\0"), SERIES)
    problem = "not the first file of a TVIPS series"
    hint = "The series header is in the file ..._000.tvips."
    tools.check_fields(path, fields, SERIES, _allowed(fields), problem, hint=hint)
    decoder = tools.plain(np.dtype(f"<u{fields['IBPP'] // 8}"))
    size = 12 if fields["IVersion"] == 1 else fields["IImgHeaderBytes"]
    return fields, tools.Record((fields["IYDim"], fields["IXDim"]), decoder, size)


def read_frame_headers(
    files: Sequence[tools.File], counts: Sequence[int], record: tools.Record, start: int, count: int
) -> dict[str, Array]:
    """Read the headers of ``count`` frames from ``start`` on, with the fields that they have."""
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


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    scan: str = "auto",
    winding: bool = False,
    hysteresis: int = 0,
    series: bool = True,
) -> tools.Description:
    """Describe a TVIPS series, with files in the order of their numbers.

    Parameters
    ----------
    scan : {"auto", "none"}
        "auto" begins at the start of the scan according to the frame headers, "none" with the first
        frame.
    winding : bool
        Whether the beam ran backwards along every second row, from the second one on; these
        rows are reversed.
    hysteresis : int
        Cyclic shift of the reversed rows, in positions.
    series : bool
        Look for the series of a file; by default unless a list is opened.
    """
    path = paths[0]
    if scan not in ("auto", "none"):
        raise tools.DatasetError("invalid scan", path=path, expected="auto or none", found=scan)
    if check_whole("hysteresis", hysteresis, least=0, path=path) and not winding:
        problem = "hysteresis applies to winding scans only"
        raise tools.DatasetError(problem, path=path, expected="winding=True")
    found = gather(paths, _member, series=series, filled=is_filling())
    files = [member.file for member in found.members]
    fields, record = read_header(files[0].path)
    starts = [HEADER_BYTES, *[0] * (len(files) - 1)]
    counts = count_frames(files, record, starts, settled=nav_shape is not None)
    n_frames = sum(counts)
    searched = min(n_frames, MAX_HEADERS if scan == "auto" else 2)
    first = read_frame_headers(files, counts, record, 0, searched)
    facts = {"header": fields, "first_frame": {k: v[0].item() for k, v in first.items()}}
    lost = lost_before(found.members, counts)
    layout = tools.record_layout(files, counts, record, starts, lost=lost)
    desc = tools.Description.of("tvips", layout, {"tvips": facts}, _axes(fields, first))
    desc = desc.with_doubts(*found.doubts)
    last = read_frame_headers(files, counts, record, n_frames - 1, 1)
    searches = scan == "auto" and not any(lost)  # the search counts the frames in the files
    start = find_scan(first, last, n_frames) if searches else None
    if start is not None:
        desc = desc.with_facts(scan_start=start.first, scan_from=start.told_by)
    start = start or TvipsScan()
    if scan == "auto":  # of "none", the frames are a series
        in_a_row = () if start.shape else unknown_scan(desc.nav_shape[0] - start.first)
        desc = desc.with_doubts(*start.doubts, *in_a_row)
    return _show(desc, start, nav_shape, hysteresis if winding else None)


def _member(path: str) -> SeriesFile:
    """Return a file with its position in the series, the number in its name."""
    file = tools.File.at(path)
    number = re.search(r"_(\d+)\.[^.]*$", file.path)
    return SeriesFile(file, int(number[1]) if number else 0, 1, ())


def _axes(fields: Mapping[str, Any], frames: Headers) -> tuple[tools.Axis, ...]:
    """Calibrate time by the mean interval of frames, and the detector by its pixel size."""
    times = frames["ITime"] + frames["IMS"] / 1000
    step = float(times[-1] - times[0]) / max(1, len(times) - 1)
    time = tools.Axis("time", "s", step) if step > 0 else tools.Axis("frame")
    pixel = float(fields["IPixelSize"])
    return (time, *(tools.Axis.calibrated(name, "nm", pixel) for name in "yx"))


def _show(
    desc: tools.Description,
    scan: TvipsScan,
    nav_shape: tuple[int, ...] | None,
    hysteresis: int | None,
) -> tools.Description:
    """Show the frames as a scan; with a hysteresis, reverse every second row."""
    shape = nav_shape or scan.shape
    numbers = scan.numbers if shape == scan.shape else None
    if hysteresis is not None:
        if shape is None or len(shape) < 2:
            raise tools.DatasetError(
                "a winding scan needs rows",
                path=desc.files[0].path,
                expected="nav_shape=(y, x)",
                found=f"a scan of shape {shape}" if shape else "no scan in the frame headers",
            )
        numbers = snake(shape, scan.first, numbers, hysteresis)
    return desc if shape is None else desc.with_frames(shape, scan.first, numbers)


FACTS = {
    "number": "ICounter", "lut_index": "LUT_Index", "faraday": "Faraday",
    "magnification": "TEM_Mag", "mode": "TEM_Mag_mode", "stage_x": "TEM_Stage_x",
    "stage_y": "TEM_Stage_y", "stage_z": "TEM_Stage_z", "tilt_alpha": "TEM_Stage_alpha",
    "tilt_beta": "TEM_Stage_beta", "rotator_index": "Index_of_rotator",
    "objective_current": "TEM_Obj_current", "scan_x": "Scan_x", "scan_y": "Scan_y",
}  # fmt: skip


def read_headers(desc: tools.Description) -> tools.Headers:
    """Return the headers of all frames, with the fields that they have."""
    _, record = read_header(desc.files[0].path)
    known = {name: field for name, field in FRAME.items() if field[0] + 4 <= record.header}
    layout = tools.beside_frames(desc.layout, tools.record_dtype(known), -record.header)
    names = {name: field for name, field in FACTS.items() if field in known}
    return tools.stored_headers(layout, names, {"time_utc": {"ITime": 1_000_000, "IMS": 1000}})


IMAGE, PATTERN = 1, 2


def _total(told: Mapping[str, Any], mode: int) -> int | None:
    """Return the total magnification, or camera length, if recorded in this mode."""
    frame, header = told["first_frame"], told["header"]
    return int(header["IMagTotal"]) if frame["TEM_Mag_mode"] == mode else None


ROWS = (
    ("beam_energy", "header/IHT", "kV"),
    ("magnification", "", "", partial(_total, mode=IMAGE)),
    ("camera_length", "", "mm", partial(_total, mode=PATTERN)),
    ("date", "first_frame", "", lambda x: since_1970(x["ITime"] + x["IMS"] / 1000)),
)

FORMAT = tools.Format(
    name="tvips",
    extensions=(".tvips",),
    summary="image series, versions 1 and 2, 8 and 16 bit, in one file or many; winding scans",
    nav_shape_from="scan positions or rotator index of the frame headers",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    instrument=entries({"tvips": ROWS}),
    peers=("LiberTEM", "RosettaSciIO"),
    aliases=("temcam",),
)
