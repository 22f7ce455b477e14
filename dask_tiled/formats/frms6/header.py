"""A ``.frms6`` file: its header, and the layout of its frames."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.header import Allowed

FIELDS: tools.Fields = {
    "header_bytes": (0, "u2"), "frame_header_bytes": (2, "u2"), "version": (7, "u1"),
    "text": (8, "S80"), "width": (88, "u2"), "height": (90, "u2"), "more_text": (92, "S928"),
    "num_frames": (1020, "u4"),
}  # fmt: skip
HEADER_BYTES, FRAME_HEADER_BYTES = 1024, 64
ALLOWED: Allowed = {
    "header_bytes": (HEADER_BYTES,),
    "frame_header_bytes": (FRAME_HEADER_BYTES,),
    "version": (6,),
    "height": tools.POSITIVE,
    "width": range(2, 1 << 16, 2),  # two chips share a row
}
PIXEL = np.dtype("<u2")


class Frms6File(NamedTuple):
    """A ``.frms6`` file, and its header fields."""

    file: tools.File
    fields: dict[str, Any]

    @classmethod
    def at(cls, path: str) -> Frms6File:
        """Read the header of a file."""
        file = tools.File.at(path)
        fields = tools.read_fields(file.path, FIELDS)
        tools.check_fields(path, fields, FIELDS, ALLOWED, "invalid FRMS6 header")
        return cls(file, fields)

    @property
    def record(self) -> tools.Record:
        """A stored frame, folded."""
        shape = self.fields["height"], self.fields["width"]
        return tools.Record(shape, tools.plain(PIXEL), FRAME_HEADER_BYTES)

    @property
    def promised(self) -> int:
        """Number of frames in the header; 0 in old files."""
        return int(self.fields["num_frames"])

    def count_frames(self, *, settled: bool) -> int:
        """Count the frames; if ``settled``, the file may end early."""
        promised, by = self.promised, "byte 1020 (num_frames)"
        file, record = self.file, self.record
        (present,) = tools.frames.count_frames(
            [file], record, HEADER_BYTES, promised=promised, promised_by=by, settled=settled
        )
        return min(present, promised) if promised else present
