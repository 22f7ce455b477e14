"""The headers of Merlin frames, and the ``.hdr`` file beside them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_tiled.decoders import plain
from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.files import read_head
from dask_tiled.records import Record

MAGIC = b"MQ1,"
HDR_MAGIC = b"HDR,"
MAX_HEADER = 1 << 20
NUMBER = re.compile(r" *[0-9]{1,18} *")
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
class Header:
    """The header of a frame.

    Attributes
    ----------
    sequence : int
        Number of the frame in its acquisition.
    nbytes : int
        Length of the header.
    chips, width, height : int
        Number of chips, and the size of the stored image: chips side by side if the data are raw.
    kind, layout : str
        Type of the pixels, and the arrangement of the chips.
    depth : int
        Bits of the counters, where the data are raw.
    """

    sequence: int
    nbytes: int
    chips: int
    width: int
    height: int
    kind: str
    layout: str
    depth: int

    @property
    def geometry(self) -> tuple[Any, ...]:
        """Give what the frames of a series have in common."""
        return self.nbytes, self.chips, self.width, self.height, self.kind, self.layout, self.depth

    @property
    def record(self) -> Record:
        """Give a frame as the file stores it: the header, and the pixels as mere bytes."""
        pixels = self.width * self.height
        if self.kind == "R64":
            nbytes = pixels * RAW_BITS[self.depth] // 8
        else:
            nbytes = pixels * np.dtype(UNSIGNED[self.kind]).itemsize
        return Record((nbytes,), plain(np.dtype("u1")), self.nbytes)


def read_header(path: str, offset: int = 0) -> tuple[Header, list[str]]:
    """Read a frame header and give its fields, too.

    Raises
    ------
    CorruptFileError
        It is not one, or its numbers cannot be.
    DatasetError
        The file is a ``.hdr`` file.
    """
    head = read_head(path, 1024, offset)

    def wrong(where: str, expected: str, found: Any) -> CorruptFileError:
        place = f"{where} of the frame header at byte {offset}"
        return CorruptFileError(
            "wrong frame header", path=path, where=place, expected=expected, found=found
        )

    fields = head.decode("latin1").split(",")
    if head.startswith(HDR_MAGIC):
        raise DatasetError(
            "a .hdr file has no frames of its own",
            path=path,
            expected="a .mib file",
            found="a .hdr file in a list, or with series=False",
            hint="Open the .hdr file alone, or the .mib files.",
        )
    if not head.startswith(MAGIC) or len(fields) < 8:
        raise wrong("the first field", "MQ1", head[:16])
    numbers = _numbers(fields, wrong)
    nbytes = numbers["nbytes"]
    text = (head if nbytes <= len(head) else read_head(path, nbytes, offset))[:nbytes]
    fields = [f for f in text.decode("latin1").split(",") if "\0" not in f and f.strip()]
    if len(fields) < 8:
        raise wrong("the header", "at least 8 fields", len(fields))
    kind, layout = fields[6].strip(), fields[7].strip()
    if kind not in {*UNSIGNED, "R64"}:
        raise wrong("field 6 (pixel type)", ", ".join([*UNSIGNED, "R64"]), repr(kind))
    depth = 0
    if kind == "R64":
        depth = int(fields[-1]) if NUMBER.fullmatch(fields[-1]) else 0
        if depth not in RAW_BITS:
            raise wrong("the last field (counter depth)", "1, 6, 12 or 24", repr(fields[-1]))
    return Header(kind=kind, layout=layout, depth=depth, **numbers), fields


def _numbers(fields: list[str], wrong: Callable[[str, str, Any], Exception]) -> dict[str, int]:
    """Read the fields that are whole numbers."""
    numbers = {}
    for name, at in {"sequence": 1, "nbytes": 2, "chips": 3, "width": 4, "height": 5}.items():
        if not NUMBER.fullmatch(fields[at]):
            raise wrong(f"field {at} ({name})", "a whole number", repr(fields[at][:16]))
        numbers[name] = int(fields[at])
        if not 0 < numbers[name] <= MAX_HEADER and name != "sequence":
            raise wrong(f"field {at} ({name})", f"1 to {MAX_HEADER}", numbers[name])
    return numbers


def named_fields(fields: list[str]) -> dict[str, Any]:
    """Name the fields of the first header of a file, for people."""
    named: dict[str, Any] = dict(zip(NAMES, (f.strip() for f in fields[1:]), strict=False))
    end = fields.index("MQ1A") if "MQ1A" in fields else len(fields)
    named["thresholds and DACs"] = " ".join(f.strip() for f in fields[1 + len(NAMES) : end])
    last = zip(("time (UTC)", "exposure", "counter depth"), fields[end + 1 :], strict=False)
    return named | {name: field.strip() for name, field in last}


def read_hdr(path: str) -> dict[str, str]:
    """Read the keys and values of a ``.hdr`` file."""
    text = read_head(path, MAX_HEADER).decode("latin1")
    pairs = (line.partition(":\t") for line in text.splitlines())
    return {key.strip(): value.strip() for key, sep, value in pairs if sep}


def scan_shape(keys: dict[str, str]) -> tuple[int, ...] | None:
    """Read the shape of the scan from the keys of a ``.hdr`` file."""

    def number(name: str) -> int:
        return int(keys[name]) if NUMBER.fullmatch(keys.get(name, "")) else 0

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
