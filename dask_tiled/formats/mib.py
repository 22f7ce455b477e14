"""Merlin and Medipix3 scans: ``.mib`` files of frames with a text header each, and their ``.hdr``.

Layout after the Merlin data format as public readers describe it, and real captures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from dask_tiled.formats import tools

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
    record: tools.Record = field(init=False, repr=False, compare=False)
    record_bytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pixels = self.width * self.height
        if self.kind == "R64":
            nbytes = pixels * RAW_BITS[self.depth] // 8
        else:
            nbytes = pixels * np.dtype(UNSIGNED[self.kind]).itemsize
        record = tools.Record((nbytes,), tools.plain(np.dtype("u1")), self.nbytes)
        object.__setattr__(self, "record", record)
        object.__setattr__(self, "record_bytes", record.nbytes)


def read_header(path: str, offset: int = 0) -> tuple[int, Geometry]:
    """Read the sequence number of a frame, and what its header says of its kind."""
    head = tools.read_head(path, 1024, offset)
    if head.startswith(HDR_MAGIC):
        raise tools.DatasetError(
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
            text = head if nbytes <= len(head) else tools.read_head(path, nbytes, offset)
            last = _fields(text[:nbytes])[-1]
        return _number(fields[1], 1), _geometry(tuple(fields[2:8]), last)
    except _Wrong as wrong:
        where, expected, found = wrong.args
        raise tools.CorruptFileError(
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
    fields = [f.decode("latin1").strip() for f in _fields(tools.read_head(path, nbytes))]
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


# Raw counters come as big-endian 64-bit words with pixel 0 in the lowest lane; the third entry is
# for chips that are mounted upside down, whose rows and pixels run backwards.
RAW = {
    1: ("u1", "bits", "bits_reversed"),
    6: ("u1", "swap8", "copy"),
    12: ("u2", "swap8", "swap2"),
    24: ("u4", "join24", "join24_reversed"),
}


def sniff(path: str, head: bytes) -> str | None:
    """Look for the first field of a frame header, or the first line of a ``.hdr`` file."""
    if head.startswith((MAGIC, HDR_MAGIC)):
        return None
    return "begins with neither 'MQ1,' nor 'HDR,'"


def describe(
    paths: Sequence[str], *, nav_shape: tuple[int, ...] | None = None, series: bool = True
) -> tools.Description:
    """Describe Merlin files.

    Parameters
    ----------
    paths : sequence of str
        One ``.mib`` file stands for itself, or for the series of files that its neighbours make by
        continuing its sequence numbers. A ``.hdr`` file stands for its series. Several files are
        put into the order of their sequence numbers.
    nav_shape : tuple of int, optional
        Shape of the scan, by default what the ``.hdr`` file says, or one axis of all frames.
    series : bool
        Look for the series of a file; by default unless a list is opened.
    """
    hdr = None
    if series and len(paths) == 1:
        path, hdr = _find_pair(paths[0])
        paths = [path]
    members = tools.gather(paths, read_member, series=series)
    header = members[0].geometry
    files = [member.file for member in members]
    settled = nav_shape is not None
    counts = tools.count_frames(files, header.record, settled=settled)
    _check_last(members, counts, header, whole=not settled)
    layout = _layout(files, counts, header)
    facts = {"header": read_named_fields(files[0].path, header.nbytes)}
    desc = tools.Description.of("mib", layout, {"mib": facts})
    if hdr is None:
        return desc
    keys = tools.read_pairs(hdr, ":\t", "latin1")
    shape = scan_shape(keys) if nav_shape is None else None
    desc = desc.with_facts(hdr=keys)
    return desc if shape is None else desc.with_scan(shape, hdr)


def read_member(path: str) -> tools.Member:
    """Read what tells whether a file belongs to a series."""
    file = tools.File.at(path)
    sequence, geometry = read_header(file.path)
    return tools.Member(file, sequence, file.size // geometry.record_bytes, geometry)


def _check_last(
    members: Sequence[tools.Member], counts: Sequence[int], header: Geometry, *, whole: bool
) -> None:
    """Make sure that each file ends with a frame of the same kind, and that none is missing."""
    for member, count in zip(members, counts, strict=True):
        if count == 1:
            continue
        path, at = member.file.path, (count - 1) * header.record_bytes
        sequence, geometry = read_header(path, at)
        if geometry != header:
            raise tools.CorruptFileError(
                "the frames of the file differ",
                path=path,
                where=f"the frame header at byte {at}",
                expected=header,
                found=geometry,
            )
        # Captures that begin again at 1 are whole; a number that jumps ahead has lost frames.
        if whole and sequence > member.first + count - 1:
            raise tools.TruncatedFileError(
                "frames are missing inside the file",
                path=path,
                where=f"the sequence number of the frame header at byte {at}",
                expected=member.first + count - 1,
                found=sequence,
                hint="Pass a nav_shape to read the frames that are there as they come.",
            )


def _layout(files: Sequence[tools.File], counts: Sequence[int], header: Geometry) -> tools.Layout:
    if header.kind != "R64":
        decoder = tools.plain(np.dtype(UNSIGNED[header.kind]))
        shape = header.height, header.width
        return tools.record_layout(files, counts, tools.Record(shape, decoder, header.nbytes))
    halves = 2 if header.depth == 24 else 1
    width = header.width // halves
    dtype, upright, reversed_ = RAW[header.depth]
    lag = header.record.frame_bytes // 2 if halves > 1 else 0
    size = np.dtype(dtype)
    pixels = {1: 64, 6: 8, 12: 4, 24: 4}[header.depth]
    decoders = [tools.Decoder(f"{kernel}", size, 8, pixels, lag) for kernel in (upright, reversed_)]
    # One chip may be called 2x2, after the assembly that it sits in.
    quad = header.chips == 4 and header.layout.startswith("2x2")
    chips = 1 if header.chips == 1 else 2 if quad else None
    if chips is None or width % (pixels * chips * chips) or header.width % halves:
        raise tools.DatasetError(
            "this arrangement of raw chips cannot be read",
            path=files[0].path,
            expected=f"1 chip, or 4 as 2x2, with rows of whole words of {pixels} pixels",
            found=f"{header.chips} chips ({header.layout}), {header.width} pixels wide",
        )
    if chips == 1:
        record = tools.Record((header.height, width), decoders[0], header.nbytes, lag)
        return tools.record_layout(files, counts, record)
    return _quad(files, counts, header, width // 4, decoders)


def _quad(
    files: Sequence[tools.File],
    counts: Sequence[int],
    header: Geometry,
    width: int,
    decoders: list[tools.Decoder],
) -> tools.Layout:
    """Lay out four chips, 2 by 2.

    A stored row holds a row of each chip: bottom right, bottom left, top right, top left. The two
    at the bottom are turned by 180 degrees.
    """
    height, unit = header.height, decoders[0]
    chip_row = width // unit.pixels * unit.nbytes
    row = 4 * chip_row
    top = header.nbytes
    bottom = top + (height - 1) * row + chip_row - unit.nbytes
    shape = height, width
    parts = [
        tools.Part((height, width), shape, bottom, (-row, -unit.nbytes), 1),
        tools.Part((height, 0), shape, bottom + chip_row, (-row, -unit.nbytes), 1),
        tools.Part((0, width), shape, top + 2 * chip_row, (row, unit.nbytes)),
        tools.Part((0, 0), shape, top + 3 * chip_row, (row, unit.nbytes)),
    ]
    return tools.part_layout(files, counts, parts, header.record.nbytes, decoders)


def _find_pair(path: str) -> tuple[str, str | None]:
    """Find the first ``.mib`` file of a ``.hdr`` file, or the ``.hdr`` file of a ``.mib`` file."""
    stem, suffix = os.path.splitext(os.path.abspath(path))
    if _is_hdr(path):
        return _first_mib(stem), path
    for name in (stem, re.sub(r"\d+$", "", stem), re.sub(r"[ _-]?\d+$", "", stem)):
        if not os.path.basename(name):
            continue
        if name != stem and os.path.exists(name + suffix):
            return path, None  # the .hdr file, if there is one, is that of this other file
        hdr = tools.beside(name, ".hdr", ".HDR")
        if hdr is not None and _is_hdr(hdr):
            return path, hdr
    return path, None


def _is_hdr(path: str) -> bool:
    return tools.read_head(path, 4) == HDR_MAGIC


def _first_mib(stem: str) -> str:
    """Find the file with the lowest number among those that are called like a ``.hdr`` file."""
    folder, name = os.path.split(stem)
    pattern = re.compile(re.escape(name) + r"(?:[ _-]?\d+)?\.mib", re.IGNORECASE)
    found = sorted(filter(pattern.fullmatch, os.listdir(folder)), key=tools.natural_key)
    found.sort(key=lambda entry: len(entry) != len(name + ".mib"))  # exactly its name goes first
    if not found:
        raise tools.DatasetError("no .mib file beside the .hdr file", path=stem + ".hdr")
    return os.path.join(folder, found[0])


FORMAT = tools.Format(
    name="mib",
    extensions=(".mib", ".hdr"),
    summary="Merlin and Medipix3: U08 to U64 and raw 1-, 6-, 12- and 24-bit counters, 1x1 and 2x2",
    nav_shape_from="the .hdr file, or one axis of all frames",
    sniff=sniff,
    describe=describe,
    peers=("LiberTEM", "RosettaSciIO"),
)
