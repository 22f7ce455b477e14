"""FRMS6 sets of PNDetector's pnCCD: dark frames in ``_000.frms6``, frames, and a ``.hdr``.

A stored row holds a row of each of two chips: the upper one, then the lower one, which is mounted
upside down. Rows that the camera has binned are repeated.

Layout as LiberTEM reads it; not checked with a real set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from dask_tiled.files.file import is_filling, is_following
from dask_tiled.files.paths import in_folder
from dask_tiled.formats import tools
from dask_tiled.formats.frms6.corrections import read_corrections
from dask_tiled.formats.frms6.header import (
    ALLOWED,
    FIELDS,
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    Frms6File,
)
from dask_tiled.formats.tools.files import (
    SeriesFile,
    absolute,
    common_stem,
    in_sequence,
    lost_before,
    names_in,
)
from dask_tiled.formats.tools.frames import FramePart, part_layout
from dask_tiled.formats.tools.text import parse_pairs
from dask_tiled.model.doubts import unknown_scan

SECTION = "measurementInfo"
HDR_BYTES = 1 << 16
HDR_KEYS = {
    "STEMImageSize": (r"^[\"\s]*([1-9]\d{0,8})\s*x\s*([1-9]\d{0,8})[\"\s]*$", "as in 64x64"),
    "readoutMode": (r"bin:\s*([124])(?!\d)", "bin: 1, 2 or 4"),
}
"""Pattern of each key, and a description of valid values."""
GUESSES = 100
"""Number of file names tried if a folder cannot be listed."""


def sniff(path: str, head: bytes) -> str | None:
    """Check for a file header, or the section of the ``.hdr`` file."""
    if _is_hdr(head):
        return None
    if len(head) < tools.size_of(FIELDS):
        return "shorter than a file header"
    fields = tools.parse_fields(head, FIELDS)
    wrong = tools.wrong_field(fields, ALLOWED)
    return f"not a file header: {wrong} is {fields[wrong]}" if wrong else None


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    series: bool = True,
    dark: bool = False,
    gain_map: str | os.PathLike[str] | None = None,
) -> tools.Description:
    """Describe the frames of an FRMS6 set, given any of its files.

    Several paths are the files with frames. The ``.hdr`` file gives the scan shape, (y, x).

    Parameters
    ----------
    series : bool
        Look for the other files of the set; by default unless a list is opened.
    dark : bool
        Show the dark frames instead.
    gain_map : path-like, optional
        A ``.mat`` file with a "GainMap", or a ``.csv`` file, for ``corrections="dataset"``. It has
        a number for each pixel of a frame as shown.
    """
    base = common_stem(paths, lambda path: _split(path)[0])
    listed = set() if series else {number for _, number in map(_split, paths) if number}
    sources = _choose(base, [0] if dark else sorted(listed))
    if is_following() and len(sources) > 1 and not _is_begun(sources[max(sources)]):
        del sources[max(sources)]
    parts = {number: Frms6File.at(path) for number, path in sources.items()}
    members = [SeriesFile(p.file, k, 1, p.record.sig_shape) for k, p in parts.items()]
    in_sequence(members, filled=is_filling())
    settled = max(parts) if nav_shape is not None else None
    counts = [part.count_frames(settled=k == settled) for k, part in parts.items()]
    hdr = tools.beside(base, ".hdr", ".HDR")
    if hdr is not None and not _is_hdr(tools.read_head(hdr, HDR_BYTES)):
        hdr = None
    keys = {} if hdr is None else _read_hdr(hdr)
    facts: dict[str, Any] = {
        "header": parts[min(parts)].fields,
        "hdr": keys,
        "binning": keys.get("binning", 1),
        "binning_from": hdr or "no .hdr file: rows are shown as stored",
        "dark_frames": base + "_000.frms6",
    }
    if gain_map is not None:
        facts["gain_map"] = absolute(gain_map)
    told = [part.promised or n for part, n in zip(parts.values(), counts, strict=True)]
    lost = lost_before(members, told)
    for k in range(1, len(lost)):
        lost[k] += told[k - 1] - counts[k - 1]  # frames that the file before lacks at its end
    layout = _layout(list(parts.values()), counts, facts["binning"], lost)
    desc = tools.Description.of("frms6", layout, {"frms6": facts})
    if dark or nav_shape is not None:
        return desc
    if hdr is None:
        return desc.with_doubts(*unknown_scan(desc.nav_shape[0]))
    return desc.with_scan(keys["stemimagesize"], hdr)


def _is_begun(path: str) -> bool:
    """Return whether a file that is being written has its first frame."""
    try:
        return Frms6File.at(path).count_frames(settled=True) > 0
    except tools.TruncatedFileError:
        return False


def _is_hdr(head: bytes) -> bool:
    """Return whether text is from an FRMS6 ``.hdr`` file; Merlin uses the same suffix."""
    return f"[{SECTION}]".encode() in head


def _split(path: str) -> tuple[str, int | None]:
    """Split a path into the common stem of the set, and the number of the file."""
    stem, suffix = os.path.splitext(absolute(path))
    match = re.fullmatch(r"(.*)_(\d{1,18})", stem, re.DOTALL)
    if suffix.lower() == ".hdr" or match is None:
        return stem, None
    return match[1], int(match[2])


def _choose(base: str, numbers: Sequence[int]) -> dict[int, str]:
    """Return the ``.frms6`` files of a set with these numbers, by default those with frames."""
    folder, name = os.path.split(base)
    pattern = re.compile(re.escape(name) + r"_(\d{1,18})\.frms6", re.IGNORECASE)
    guesses = (f"{name}_{n:03}.frms6" for n in numbers or range(1, GUESSES))
    matches = map(pattern.fullmatch, sorted(names_in(folder, *guesses)))
    present = {int(match[1]): in_folder(folder, match[0]) for match in matches if match}
    numbers = numbers or sorted({1, *present} - {0})
    missing = [number for number in numbers if number not in present]
    if missing:
        raise tools.TruncatedFileError(
            "a file of the set is missing",
            path=f"{base}_{missing[0]:03}.frms6",
            found=f"files with the numbers {sorted(present)}",
        )
    return {number: present[number] for number in numbers}


def _read_hdr(path: str) -> dict[str, Any]:
    """Read a ``.hdr`` file: keys in lower case, ``stemimagesize`` as a pair, and ``binning``."""
    text = tools.read_head(path, HDR_BYTES).decode("latin1")
    section = text.partition(f"[{SECTION}]")[2].partition("\n[")[0]
    keys: dict[str, Any] = {k.lower(): v for k, v in parse_pairs(section, "=").items()}
    numbers = {key: int(text) for key, text in keys.items() if re.fullmatch(r"\d{1,18}", text)}
    told = []
    for name, (pattern, expected) in HDR_KEYS.items():
        text = keys.get(name.lower(), "nothing")
        match = re.search(pattern, text)
        if match is None:
            problem = "a key of the .hdr file is missing or invalid"
            raise tools.CorruptFileError(
                problem, path=path, where=name, expected=expected, found=text
            )
        told.append(tuple(map(int, match.groups())))
    scan, (binning,) = told
    return {**keys, **numbers, "stemimagesize": scan, "binning": binning}


def _layout(
    parts: Sequence[Frms6File], counts: Sequence[int], binning: int, lost: Sequence[int]
) -> tools.Layout:
    """Lay out the upper and the lower chip; rows and pixels of the lower one run backwards."""
    record = parts[0].record
    height, width = record.sig_shape[0], record.sig_shape[1] // 2
    row, pixel = record.sig_strides
    last = record.header + record.frame_bytes - pixel
    shape = height * binning, width
    upper = FramePart((0, 0), shape, record.header, (row, pixel))
    lower = FramePart((height * binning, 0), shape, last, (-row, -pixel))
    files, size = [part.file for part in parts], record.nbytes
    decoders, repeats, halves = [record.decoder], (binning, 1), [upper, lower]
    return part_layout(files, counts, halves, size, decoders, HEADER_BYTES, repeats, lost=lost)


FRAME: tools.Fields = {"seconds": (4, "u4"), "microseconds": (8, "u4"), "number": (12, "u4")}


def read_headers(desc: tools.Description) -> tools.Headers:
    """Return the headers of all frames."""
    layout = tools.beside_frames(desc.layout, tools.record_dtype(FRAME), -FRAME_HEADER_BYTES)
    time = {"seconds": 1_000_000, "microseconds": 1}
    return tools.stored_headers(layout, {"number": "number"}, {"time_utc": time})


FORMAT = tools.Format(
    name="frms6",
    extensions=(".frms6", ".hdr"),
    summary="PNDetector pnCCD: folded frames, binned 1, 2 or 4 times, dark frames and gain map",
    nav_shape_from="the .hdr file",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    corrections=read_corrections,
    peers=("LiberTEM",),
    aliases=("pndetector", "pnccd"),
)
