"""Shapes of a scan that frame times and dark frames suggest, where no header settles it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.mib.dark_frames import Sums, find_dark_lines
from dask_tiled.formats.mib.fly_back import Lines, Times, find_lines
from dask_tiled.formats.tools.files import is_url
from dask_tiled.formats.tools.header import read_table
from dask_tiled.model.doubts import Suggestion, inferred_scan, unknown_scan

TIME = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{9}")
SAMPLE_BYTES = 4096
"""Bytes of a frame, at its centre, by which dark frames are recognised."""


def with_suggestions(desc: tools.Description, header_bytes: int, step: int) -> tools.Description:
    """Add the suggested shapes to a description in doubt, or show frames in lines that are certain.

    Only for a single local file: reading parts of it that lie ``step`` bytes apart takes too long
    otherwise, and with lost frames they do not. The description has a doubt, whether lines were
    found or not.
    """
    file, count = desc.files[0], desc.layout.n_frames
    found: list[tuple[Lines, str]] = []
    even = not desc.layout.selection.lost
    if even and len(desc.files) == 1 and not file.grows and not is_url(file.path):
        found = [*_by_times(file, count, header_bytes, step)]
        if not (found and found[0][0].takes(count)):  # else the scan is settled
            found += _by_dark_frames(file, count, header_bytes, step)
    suggested = tuple(
        Suggestion((lines.rows, lines.length), lines.first, why) for lines, why in found
    )
    desc = desc.with_facts(suggested_scans=suggested) if suggested else desc
    if desc.nav_shape != (count,):
        return desc.with_suggestions(suggested)
    if found and found[0][0].takes(count):
        (lines, why), *_ = found
        shape = lines.rows, lines.length
        return desc.with_scan(shape, f"inferred: {why}").with_doubts(inferred_scan(shape, why))
    return desc.with_doubts(*unknown_scan(count)).with_suggestions(suggested)


def _by_times(
    file: tools.File, count: int, header_bytes: int, step: int
) -> Iterator[tuple[Lines, str]]:
    """Yield the lines found by the times in frame headers."""
    found = TIME.search(tools.read_head(file.path, header_bytes))
    if found is None:
        return
    fields = {"time": (found.start(), f"S{len(found[0])}")}

    def read(first: int, distance: int, number: int) -> Times:
        texts = read_table(file.path, fields, first * step, distance * step, number)["time"]
        if not all(map(TIME.fullmatch, texts.tolist())):
            raise ValueError("no times")  # numbers with more digits shift the times
        return texts.astype("M8[ns]").astype(np.int64)

    lines = _found(find_lines, read, count)
    if lines is not None:
        yield lines, f"by the frame times, the beam flies back after every {lines.length} frames"


def _by_dark_frames(
    file: tools.File, count: int, header_bytes: int, step: int
) -> Iterator[tuple[Lines, str]]:
    """Yield the lines found by dark frames."""
    size = min(SAMPLE_BYTES, step - header_bytes)
    fields = {"pixels": (header_bytes + (step - header_bytes - size) // 2, f"{size}u1")}

    def read(first: int, distance: int, number: int) -> Sums:
        table = read_table(file.path, fields, first * step, distance * step, number)["pixels"]
        sums: Sums = table.reshape(number, -1).sum(1, dtype=np.int64)
        return sums

    lines = _found(find_dark_lines, read, count)
    if lines is not None:
        yield lines, f"one frame in every {lines.length} is dark"


def _found(
    find: Callable[[Callable[[int, int, int], Any], int], Lines | None],
    read: Callable[[int, int, int], Any],
    count: int,
) -> Lines | None:
    try:
        return find(read, count) if count > 2 else None
    except ValueError:
        return None
