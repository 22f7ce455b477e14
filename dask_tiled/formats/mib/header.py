"""The headers of Merlin frames, and the ``.hdr`` file beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.formats.tools.records import Record
from dask_tiled.model.decoders import plain
from dask_tiled.model.files import read_head

MAGIC = b"MQ1,"
HDR_MAGIC = b"HDR,"
MAX_HEADER = 1 << 20
NUMBER = re.compile(rb" *[0-9]{1,18} *")
NUMBERS = ("", "sequence", "nbytes", "chips", "width", "height")
UNSIGNED = {"U08": "u1", "U16": ">u2", "U32": ">u4", "U64": ">u8"}
RAW_BITS = {1: 1, 6: 8, 12: 16, 24: 16}
"""Bits of a stored pixel by counter depth; the stored width counts both halves of 24 bits."""
NAMES = (
    "sequence number",
    "header bytes",
    "chips",
    "width",
    "height",
    "pixel type",
    "layout",
    "chip select",
    "time",
    "shutter (s)",
    "counter",
    "colour mode",
    "gain mode",
)


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the headers of all frames of a series say.

    Attributes
    ----------
    nbytes : int
        Length of the header.
    chips, width, height : int
        Number of chips, and the size of the stored image: chips side by side if the data are raw.
    kind, layout : str
        Type of the pixels, and the arrangement of the chips.
    depth : int
        Bits of the counters, where the data are raw.
    record : Record
        A frame as the file stores it: the header, and the pixels as mere bytes.
    record_bytes : int
        Its length.
    """

    nbytes: int
    chips: int
    width: int
    height: int
    kind: str
    layout: str
    depth: int
    record: Record = field(init=False, repr=False, compare=False)
    record_bytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pixels = self.width * self.height
        if self.kind == "R64":
            nbytes = pixels * RAW_BITS[self.depth] // 8
        else:
            nbytes = pixels * np.dtype(UNSIGNED[self.kind]).itemsize
        record = Record((nbytes,), plain(np.dtype("u1")), self.nbytes)
        object.__setattr__(self, "record", record)
        object.__setattr__(self, "record_bytes", record.nbytes)


def read_header(path: str, offset: int = 0) -> tuple[int, Geometry]:
    """Read the sequence number of a frame, and what its header says of its kind.

    Raises
    ------
    CorruptFileError
        It is no frame header, or its numbers cannot be.
    DatasetError
        The file is a ``.hdr`` file.
    """
    head = read_head(path, 1024, offset)
    if head.startswith(HDR_MAGIC):
        raise DatasetError(
            "a .hdr file has no frames of its own",
            path=path,
            expected="a .mib file",
            found="a .hdr file in a list, or with series=False",
            hint="Open the .hdr file alone, or the .mib files.",
        )
    fields = head.split(b",", 8)
    last = b""
    try:
        if not head.startswith(MAGIC) or len(fields) < 8:
            raise _Wrong("the first field", "MQ1", head[:16])  # noqa: TRY301 - as those below
        if fields[6].strip() == b"R64":
            nbytes = _number(fields[2], 2)
            text = head if nbytes <= len(head) else read_head(path, nbytes, offset)
            last = _fields(text[:nbytes])[-1]
        return _number(fields[1], 1), _geometry(tuple(fields[2:8]), last)
    except _Wrong as wrong:
        where, expected, found = wrong.args
        raise CorruptFileError(
            "wrong frame header",
            path=path,
            where=f"{where} of the frame header at byte {offset}",
            expected=expected,
            found=found,
        ) from None


class _Wrong(Exception):  # noqa: N818 - it becomes an error where the file is known
    """Something in a header that cannot be: place, expected, found."""


@lru_cache
def _geometry(fields: tuple[bytes, ...], last: bytes) -> Geometry:
    """Read fields 2 to 7; thousands of files have the same."""
    nbytes, chips, width, height = (_number(fields[k], k + 2) for k in range(4))
    kind, layout = (text.strip().decode("latin1") for text in fields[4:6])
    if kind not in {*UNSIGNED, "R64"}:
        raise _Wrong("field 6 (pixel type)", ", ".join([*UNSIGNED, "R64"]), repr(kind))
    depth = 0
    if kind == "R64":
        depth = int(last) if NUMBER.fullmatch(last) else 0
        if depth not in RAW_BITS:
            raise _Wrong("the last field (counter depth)", "1, 6, 12 or 24", _text(last))
    return Geometry(nbytes, chips, width, height, kind, layout, depth)


def _number(text: bytes, at: int) -> int:
    """Read a field that is a whole number."""
    if not NUMBER.fullmatch(text):
        raise _Wrong(f"field {at} ({NUMBERS[at]})", "a whole number", _text(text))
    number = int(text)
    if not 0 < number <= MAX_HEADER and at != 1:
        raise _Wrong(f"field {at} ({NUMBERS[at]})", f"1 to {MAX_HEADER}", number)
    return number


def _text(field: bytes) -> str:
    return repr(field[:16].decode("latin1"))


def _fields(text: bytes) -> list[bytes]:
    return [f for f in text.split(b",") if b"\0" not in f and f.strip()]


def read_named_fields(path: str, nbytes: int) -> dict[str, Any]:
    """Read the header of the first frame of a file, and name its fields for people."""
    fields = [f.decode("latin1").strip() for f in _fields(read_head(path, nbytes))]
    named: dict[str, Any] = dict(zip(NAMES, fields[1:], strict=False))
    end = fields.index("MQ1A") if "MQ1A" in fields else len(fields)
    named["thresholds and DACs"] = " ".join(fields[1 + len(NAMES) : end])
    last = zip(("time (UTC)", "exposure", "counter depth"), fields[end + 1 :], strict=False)
    return named | dict(last)


def scan_shape(keys: dict[str, str]) -> tuple[int, ...] | None:
    """Read the shape of the scan from the keys of a ``.hdr`` file."""

    def number(name: str) -> int:
        text = keys.get(name, "").encode()
        return int(text) if NUMBER.fullmatch(text) else 0

    y, x = number("ScanY"), number("ScanX")
    if y and x:
        return y, x
    frames = number("Frames in Acquisition (Number)")
    per_trigger = number("Frames per Trigger (Number)")
    if not frames:
        return None
    if per_trigger and frames % per_trigger == 0:
        shape = tuple(n for n in (frames // per_trigger, per_trigger) if n > 1)
        return shape or (1,)
    return (frames,)
