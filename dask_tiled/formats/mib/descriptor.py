"""Merlin and Medipix3 scans: ``.mib`` files of frames with text headers, and their ``.hdr``.

Layout after the Merlin data format as public readers describe it, checked with real captures.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.files.file import is_filling
from dask_tiled.files.paths import in_folder
from dask_tiled.formats import tools
from dask_tiled.formats.mib.chips import RAW, raw_layout
from dask_tiled.formats.mib.facts import INSTRUMENT, decode, facts_type
from dask_tiled.formats.mib.suggestions import with_suggestions
from dask_tiled.formats.tools.files import (
    SeriesFile,
    absolute,
    gather,
    is_file,
    names_in,
    natural_key,
)
from dask_tiled.formats.tools.frames import count_frames
from dask_tiled.formats.tools.header import read_table
from dask_tiled.formats.tools.text import read_pairs
from dask_tiled.model.doubts import Doubt, lost_frames

MAGIC = b"MQ1,"
HDR_MAGIC = b"HDR,"
MAX_HEADER = 1 << 20
NUMBER = re.compile(rb" *[0-9]{1,18} *")
UNSIGNED = {"U08": "u1", "U16": ">u2", "U32": ">u4", "U64": ">u8"}
NAMES = (
    "sequence number", "header bytes", "chips", "width", "height", "pixel type", "layout",
    "chip select", "time", "shutter (s)", "counter", "colour mode", "gain mode",
)  # fmt: skip


SEQUENCE_NUMBER: tools.Fields = {"number": (4, "S19")}

# A file with fewer of its frames, one in so many, has a damaged sequence number.
FEWEST = 100


class Run(NamedTuple):
    """Consecutive frames in a file, from a byte on, and the number of lost frames before."""

    file: tools.File
    frames: int
    start: int
    lost: int


class Geometry(NamedTuple):
    """Fields that are equal in all frame headers of a series; ``nbytes`` is the header length.

    For raw data, ``width`` is that of all chips side by side, and ``depth`` the bits of a counter.
    """

    nbytes: int
    chips: int
    width: int
    height: int
    kind: str
    layout: str
    depth: int

    @property
    def pixel_bytes(self) -> int:
        """Bytes of the pixels of a frame."""
        bits = RAW[self.depth][0] if self.kind == "R64" else int(self.kind[1:])
        return self.width * self.height * bits // 8

    @property
    def record_bytes(self) -> int:
        """Bytes from one frame to the next."""
        return self.nbytes + self.pixel_bytes


def read_header(path: str, offset: int = 0) -> tuple[int, Geometry]:
    """Read the sequence number and the geometry in a frame header."""
    head = tools.read_head(path, 1024, offset)
    if head.startswith(HDR_MAGIC):
        raise tools.DatasetError(
            "a .hdr file holds no frames",
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
            "invalid frame header",
            path=path,
            where=f"{where} of the frame header at byte {offset}",
            expected=expected,
            found=found,
        ) from None


class _Wrong(Exception):  # noqa: N818 - converted to an error that names the file
    """A header has an invalid field: field, expected, found."""


@lru_cache
def _geometry(fields: tuple[bytes, ...], last: bytes) -> Geometry:
    """Parse fields 2 to 7; cached, as thousands of files have the same."""
    nbytes, chips, width, height = (_number(fields[k], k + 2) for k in range(4))
    kind, layout = (text.strip().decode("latin1") for text in fields[4:6])
    if kind not in {*UNSIGNED, "R64"}:
        raise _Wrong("field 6 (pixel type)", ", ".join([*UNSIGNED, "R64"]), repr(kind))
    depth = 0
    if kind == "R64":
        depth = int(last) if NUMBER.fullmatch(last) else 0
        if depth not in RAW:
            raise _Wrong("the last field (counter depth)", "1, 6, 12 or 24", _text(last))
    return Geometry(nbytes, chips, width, height, kind, layout, depth)


def _number(text: bytes, at: int) -> int:
    """Parse a field that is an integer."""
    if not NUMBER.fullmatch(text):
        raise _Wrong(f"field {at} ({NAMES[at - 1]})", "a whole number", _text(text))
    number = int(text)
    if not 0 < number <= MAX_HEADER and at != 1:
        raise _Wrong(f"field {at} ({NAMES[at - 1]})", f"1 to {MAX_HEADER}", number)
    return number


def _text(field: bytes) -> str:
    return repr(field[:16].decode("latin1"))


def _fields(text: bytes) -> list[bytes]:
    return [f for f in text.split(b",") if b"\0" not in f and f.strip()]


def read_named_fields(path: str, nbytes: int) -> dict[str, Any]:
    """Read the header of a file's first frame as named fields."""
    fields = [f.decode("latin1").strip() for f in _fields(tools.read_head(path, nbytes))]
    named: dict[str, Any] = dict(zip(NAMES, fields[1:], strict=False))
    end = fields.index("MQ1A") if "MQ1A" in fields else len(fields)
    named["thresholds and DACs"] = " ".join(fields[1 + len(NAMES) : end])
    last = zip(("time (UTC)", "exposure", "counter depth"), fields[end + 1 :], strict=False)
    return named | dict(last)


def read_headers(desc: tools.Description) -> tools.Headers:
    """Return the headers of all frames, with the fields of the first header."""
    path = desc.files[0].path
    _, header = read_header(path)
    layout = tools.beside_frames(desc.layout, np.dtype(f"S{header.nbytes}"), -header.nbytes)
    dtype = facts_type(tools.read_head(path, header.nbytes), header.chips)
    return tools.Headers(layout, dtype, decode)


def scan_shape(keys: dict[str, str]) -> tuple[int, ...] | None:
    """Return the scan shape from the keys of a ``.hdr`` file."""
    counted = "Frames in Acquisition (Number)", "Frames per Trigger (Number)"
    texts = (keys.get(name, "").encode() for name in ("ScanY", "ScanX", *counted))
    y, x, frames, per_trigger = (int(t) if NUMBER.fullmatch(t) else 0 for t in texts)
    if y and x:
        return y, x
    if not frames:
        return None
    if per_trigger and frames % per_trigger == 0:
        return tuple(n for n in (frames // per_trigger, per_trigger) if n > 1) or (1,)
    return (frames,)


def sniff(path: str, head: bytes) -> str | None:
    """Check for the first field of a frame header, or the first line of a ``.hdr`` file."""
    known = head.startswith((MAGIC, HDR_MAGIC))
    return None if known else "begins with neither 'MQ1,' nor 'HDR,'"


def describe(
    paths: Sequence[str], *, nav_shape: tuple[int, ...] | None = None, series: bool = True
) -> tools.Description:
    """Describe Merlin files, in the order of their sequence numbers.

    A ``.mib`` file includes the files that continue it, a ``.hdr`` file its series. Without scan
    shape in a ``.hdr`` file, the frame times of a single file may reveal it: if they show that the
    beam flies back after each of three lines or more, and nowhere else, the shape is inferred, and
    the metadata record this. Other shapes that frame times or dark frames suggest are listed in the
    doubt; ``nav_shape="auto"`` takes the first.

    Parameters
    ----------
    series : bool
        Look for the series of a file; by default unless a list is opened.
    """
    hdr = None
    if series and len(paths) == 1:
        path, hdr = _find_pair(paths[0])
        paths = [path]
    settled = nav_shape is not None
    filled = is_filling()
    found = gather(paths, read_member, series=series, filled=filled)
    members = found.members
    header = members[0].geometry
    files = [member.file for member in members]
    facts: dict[str, Any] = {
        "header": read_named_fields(files[0].path, header.nbytes),
        "units": "counts",
    }
    shape, lost = None, found.lost
    if hdr is not None:
        facts["hdr"] = keys = read_pairs(hdr, ":\t", "latin1")
        shape = scan_shape(keys)
    record = tools.Record((header.pixel_bytes,), tools.plain(np.dtype("u1")), header.nbytes)
    counts = count_frames(files, record, settled=settled or (filled and shape is not None))
    # A shape for just the frames that are there shows them in file order.
    ordered = nav_shape is not None and math.prod(nav_shape) == sum(counts)
    doubts = _check_last(members, counts, header, settled=settled, filled=filled and not ordered)
    if ordered:  # none is lost before the first file, whatever its numbers
        lost[0] = 0
    elif filled and shape is not None:
        lost[0] = found.before or _before(members, math.prod(shape))
    runs = [
        run
        for member, count, gap in zip(members, counts, lost, strict=True)
        for run in _runs(member, count, gap, ordered=ordered)
    ]
    layout = _layout(runs, header)
    desc = tools.Description.of("mib", layout, {"mib": facts}).with_doubts(*doubts)
    shape = None if settled else shape
    # No warning if the frames that the .hdr file promises are present.
    if hdr is None or shape is None:
        desc = desc.with_doubts(*found.doubts)
    else:
        desc = desc.with_scan(shape, hdr)
    left_over = math.prod(desc.nav_shape) < layout.n_frames
    if settled or (desc.nav_shape != (layout.n_frames,) and not left_over):
        return desc
    return with_suggestions(desc, header.nbytes, header.record_bytes)


def read_member(path: str) -> SeriesFile:
    """Read the properties that decide whether a file belongs to a series.

    If lost frames are filled, those inside the file are counted too, by its last sequence number,
    unless that is damaged.
    """
    file = tools.File.at(path)
    first, geometry = read_header(file.path)
    count = file.size // geometry.record_bytes
    frames = count
    if is_filling() and count > 1:
        last, _ = read_header(file.path, (count - 1) * geometry.record_bytes)
        told = last - first + 1
        frames = told if count < told <= FEWEST * count else count
    return SeriesFile(file, first, frames, geometry)


def _check_last(
    members: Sequence[SeriesFile],
    counts: Sequence[int],
    header: Geometry,
    *,
    settled: bool,
    filled: bool,
) -> tuple[Doubt, ...]:
    """Check that each file ends with a frame of the same kind, and that no frame is missing.

    Return the doubt that frames are missing where they are shown in file order.
    """
    lost: list[tuple[str, int]] = []
    for member, count in zip(members, counts, strict=True):
        if count <= 1:
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
        # Captures may restart at 1; a number that jumps ahead means lost frames.
        if sequence <= member.first + count - 1 or (filled and member.frames > count):
            continue
        lost.append((path, sequence - member.first + 1 - count))
        if not settled:
            fill = "" if is_filling() else "missing='fill' to show them as missing, or "
            raise tools.TruncatedFileError(
                "frames are missing inside the file",
                path=path,
                where=f"the sequence number of the frame header at byte {at}",
                expected=member.first + count - 1,
                found=sequence,
                hint=f"Pass {fill}nav_shape=({sum(counts)},) to read the existing frames in file"
                " order.",
            )
    return lost_frames(lost)


def _runs(member: SeriesFile, count: int, gap: int, *, ordered: bool) -> Iterator[Run]:
    """Yield the frames of a file between lost ones, of which ``gap`` are before the file.

    Raises
    ------
    CorruptFileError
        Frames are lost inside the file, but its sequence numbers do not increase.
    """
    if ordered or member.frames <= count:
        yield Run(member.file, count, 0, gap)
        return
    path, step = member.file.path, member.geometry.record_bytes
    texts = read_table(path, SEQUENCE_NUMBER, 0, step, count)["number"].tolist()
    numbers = np.array([int(text.partition(b",")[0]) for text in texts], np.int64)
    steps = np.diff(numbers)
    if (steps < 1).any():
        at = int(np.argmax(steps < 1)) + 1
        raise tools.CorruptFileError(
            "the sequence numbers do not increase, although frames are missing inside the file",
            path=path,
            where=f"the frame header at byte {at * step}",
            expected=f"more than {numbers[at - 1]}",
            found=int(numbers[at]),
            hint="Pass a nav_shape of as many positions as frames to read them in file order.",
        )
    starts = [0, *(np.flatnonzero(steps > 1) + 1).tolist()]
    gaps = [gap, *(steps[steps > 1] - 1).tolist()]
    for start, stop, lost in zip(starts, [*starts[1:], count], gaps, strict=True):
        yield Run(member.file, stop - start, start * step, lost)


def _before(members: Sequence[SeriesFile], announced: int) -> int:
    """Return the frames lost before the first one: if all announced ones are numbered from 1."""
    first, last = members[0].first, members[-1].first + members[-1].frames - 1
    held = sum(member.frames for member in members)
    return first - 1 if 1 < first <= last <= announced and held < announced else 0


def _layout(runs: Sequence[Run], header: Geometry) -> tools.Layout:
    shape = header.height, header.width
    files, counts, starts, lost = (list(column) for column in zip(*runs, strict=True))
    if header.kind == "R64":
        kind = header.depth, header.chips, header.layout
        return raw_layout(files, counts, header.nbytes, shape, *kind, starts, lost=lost)
    record = tools.Record(shape, tools.plain(np.dtype(UNSIGNED[header.kind])), header.nbytes)
    return tools.record_layout(files, counts, record, starts, lost=lost)


def _find_pair(path: str) -> tuple[str, str | None]:
    """Find the first ``.mib`` file of a ``.hdr`` file, or the ``.hdr`` file of a ``.mib`` file."""
    stem, suffix = os.path.splitext(absolute(path))
    if _is_hdr(path):
        return _first_mib(stem), absolute(path)
    for name in (stem, re.sub(r"\d+$", "", stem), re.sub(r"[ _-]?\d+$", "", stem)):
        if not os.path.basename(name):
            continue
        if name != stem and is_file(name + suffix):
            return path, None  # a .hdr file would belong to this other file
        hdr = tools.beside(name, ".hdr", ".HDR")
        if hdr is not None and _is_hdr(hdr):
            return path, hdr
    return path, None


def _is_hdr(path: str) -> bool:
    return tools.read_head(path, 4) == HDR_MAGIC


def _first_mib(stem: str) -> str:
    """Return the ``.mib`` file with the lowest number of those named like a ``.hdr`` file."""
    folder, name = os.path.split(stem)
    pattern = re.compile(re.escape(name) + r"(?:[ _-]?\d+)?\.mib", re.IGNORECASE)
    present = names_in(folder, name + ".mib", name + "1.mib", name + "_1.mib")
    names = sorted(filter(pattern.fullmatch, present), key=natural_key)
    names.sort(key=lambda entry: len(entry) != len(name + ".mib"))  # the exact name comes first
    if not names:
        raise tools.DatasetError("no .mib file beside the .hdr file", path=stem + ".hdr")
    return in_folder(folder, names[0])


FORMAT = tools.Format(
    name="mib",
    extensions=(".mib", ".hdr"),
    summary="Merlin and Medipix3: U08 to U64 and raw 1-, 6-, 12- and 24-bit counters, 1x1 and 2x2",
    nav_shape_from="the .hdr file, or fly-backs in the frame times, or one axis of all frames",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    instrument=INSTRUMENT,
    peers=("LiberTEM", "RosettaSciIO"),
    aliases=("merlin", "medipix", "medipix3", "quantum_detectors", "quantumdetector"),
)
