"""TVIPS image series: ``..._000.tvips`` and the files that continue it.

The layout is in :mod:`dask_tiled.formats.tvips.header`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.formats.format import Format
from dask_tiled.formats.tools.records import count_frames, record_layout
from dask_tiled.formats.tools.series import Member, gather
from dask_tiled.formats.tvips.header import HEADER_BYTES, read_frame_headers, read_header, sniff
from dask_tiled.formats.tvips.scan import Headers, Scan, find_scan, snake
from dask_tiled.model.description import Axis, Description
from dask_tiled.model.files import File

MAX_HEADERS = 4096  # in which the start of a scan is looked for


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    scan: str = "auto",
    winding: bool = False,
    hysteresis: int = 0,
    series: bool = True,
) -> Description:
    """Describe a TVIPS series.

    Parameters
    ----------
    paths : sequence of str
        One file stands for its series. Several are put into the order of their numbers.
    nav_shape : tuple of int, optional
        Shape of the scan, by default what the frame headers say, or one axis of all frames.
    scan : {"auto", "none"}
        Whether to begin where the frame headers say that the scan begins, or with the first frame.
    winding : bool
        Whether the beam went back along every second row, from the second one on, so that its
        frames are shown in reverse.
    hysteresis : int
        By how many places such rows are shifted, round their ends.
    series : bool
        Look for the series of a file; by default unless a list is opened.
    """
    path = paths[0]
    if scan not in ("auto", "none"):
        raise DatasetError("no such scan", path=path, expected="auto or none", found=scan)
    if check_whole("hysteresis", hysteresis, least=0, path=path) and not winding:
        raise DatasetError("hysteresis is one of winding scans", path=path, expected="winding=True")
    files = [member.file for member in gather(paths, _member, series=series)]
    fields, record = read_header(files[0].path)
    starts = [HEADER_BYTES, *[0] * (len(files) - 1)]
    counts = count_frames(files, record, starts, settled=nav_shape is not None)
    n_frames = sum(counts)
    read = partial(read_frame_headers, files, counts, record)
    first = read(0, min(n_frames, MAX_HEADERS if scan == "auto" else 2))
    facts = {"header": fields, "first_frame": {k: v[0].item() for k, v in first.items()}}
    layout = record_layout(files, counts, record, starts)
    desc = Description.of("tvips", layout, {"tvips": facts}, _axes(fields, first))
    found = find_scan(first, read(n_frames - 1, 1), n_frames) if scan == "auto" else None
    if found is not None:
        desc = desc.with_facts(scan_start=found.first, scan_from=found.told_by)
    return _show(desc, found or Scan(), nav_shape, hysteresis if winding else None)


def _member(path: str) -> Member:
    """Take the number in a name for the place of the file in its series."""
    file = File.at(path)
    number = re.search(r"_(\d+)\.[^.]*$", file.path)
    return Member(file, int(number[1]) if number else 0, 1, ())


def _axes(fields: Mapping[str, Any], frames: Headers) -> tuple[Axis, ...]:
    """Calibrate time by the mean distance of the frames, and the detector by its pixels."""
    times = frames["ITime"] + frames["IMS"] / 1000
    step = float(times[-1] - times[0]) / max(1, len(times) - 1)
    time = Axis("time", "s", step) if step > 0 else Axis("frame")
    return (time, *(Axis.calibrated(name, "nm", float(fields["IPixelSize"])) for name in "yx"))


def _show(
    desc: Description, scan: Scan, nav_shape: tuple[int, ...] | None, hysteresis: int | None
) -> Description:
    """Show the frames as a scan; with a hysteresis, of which every second row is reversed."""
    shape = nav_shape or scan.shape
    numbers = scan.numbers if shape == scan.shape else None
    if hysteresis is not None:
        if shape is None or len(shape) < 2:
            raise DatasetError(
                "a winding scan has rows",
                path=desc.files[0].path,
                expected="nav_shape=(y, x)",
                found=f"a scan of shape {shape}" if shape else "no scan in the frame headers",
            )
        numbers = snake(shape, scan.first, numbers, hysteresis)
    return desc if shape is None else desc.with_frames(shape, scan.first, numbers)


FORMAT = Format(
    name="tvips",
    extensions=(".tvips",),
    summary="image series, versions 1 and 2, 8 and 16 bit, in one file or many; winding scans",
    nav_shape_from="scan positions or rotator index of the frame headers",
    sniff=sniff,
    describe=describe,
    peers=("LiberTEM", "RosettaSciIO"),
)
