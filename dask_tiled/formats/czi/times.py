"""Acquisition times of the frames of a CZI file, stored in an attachment.

Layout according to public readers, and real files.
"""

from __future__ import annotations

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.czi.directory import FILE, SEGMENT, read_segment
from dask_tiled.formats.tools.files import read_exactly
from dask_tiled.formats.tools.header import read_table
from dask_tiled.model.indexing import Array

ATTACHMENTS, ATTACHMENT = "ZISRAWATTDIR", "ZISRAWATTACH"
HEADER: tools.Fields = {**SEGMENT, "attachments": (104, "i8")}
COUNT: tools.Fields = {**SEGMENT, "count": (32, "i4")}
ENTRY: tools.Fields = {"position": (12, "i8"), "name": (48, "S80")}
CONTENT = 288
"""Offset of the content in an attachment segment, and of the entries in their directory."""
ENTRY_BYTES, MOST_ENTRIES = 128, 10_000
NAME = b"TimeStamps"
TIMES: tools.Fields = {"size": (0, "i4"), "count": (4, "i4")}


def read_times(file: tools.File) -> Array:
    """Read the acquisition time of each position along T, in seconds.

    Raise a DatasetError if the file has no times.
    """
    at = read_segment(file, 0, FILE, HEADER)["attachments"]
    count = read_segment(file, at, ATTACHMENTS, COUNT)["count"] if at > 0 else 0
    found = np.empty(0, bool)
    if 0 < count <= MOST_ENTRIES:
        entries = read_table(file.path, ENTRY, at + CONTENT, ENTRY_BYTES, count)
        found = entries["name"] == NAME
    if not found.any():
        raise tools.DatasetError("the file has no times of its frames", path=file.path)
    at = int(entries["position"][found][0])
    read_segment(file, at, ATTACHMENT, SEGMENT)
    at += CONTENT
    count = tools.read_fields(file.path, TIMES, at=at)["count"]
    at += tools.size_of(TIMES)
    count = min(max(0, count), max(0, file.size - at) // 8)
    return np.frombuffer(read_exactly(file.path, 8 * count, at, "the times"), "<f8")
