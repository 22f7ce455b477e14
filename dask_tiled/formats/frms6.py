"""FRMS6 sets of PNDetector's pnCCD: dark frames in ``_000.frms6``, frames beyond, and a ``.hdr``.

A stored row holds one row of each of two chips: the upper one, and then the lower one, which is
mounted upside down. Rows that the camera has added up are shown as often as they count for.

Layout as LiberTEM reads it; no real set was at hand.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.formats import tools
from dask_tiled.model.files import is_following
from dask_tiled.model.indexing import Array
from dask_tiled.model.paths import Border, within

FIELDS: tools.Fields = {
    "header_bytes": (0, "u2"), "frame_header_bytes": (2, "u2"), "version": (7, "u1"),
    "text": (8, "S80"), "width": (88, "u2"), "height": (90, "u2"), "more_text": (92, "S928"),
    "num_frames": (1020, "u4"),
}  # fmt: skip
HEADER_BYTES, FRAME_HEADER_BYTES = 1024, 64
ALLOWED: tools.Allowed = {
    "header_bytes": (HEADER_BYTES,),
    "frame_header_bytes": (FRAME_HEADER_BYTES,),
    "version": (6,),
    "height": tools.POSITIVE,
    "width": range(2, 1 << 16, 2),  # two chips share it
}
PIXEL = np.dtype("<u2")
SECTION = "measurementInfo"
HDR_BYTES = 1 << 16
HDR_KEYS = {
    "STEMImageSize": (r"^[\"\s]*([1-9]\d{0,8})\s*x\s*([1-9]\d{0,8})[\"\s]*$", "as in 64x64"),
    "readoutMode": (r"bin:\s*([124])(?!\d)", "bin: 1, 2 or 4"),
}
"""What the keys have to match, and what they tell."""
BLOCK_BYTES = 1 << 24
GUESSES = 100
"""Files of a set that are looked for where a folder cannot be listed."""
MAT_KEY = "GainMap"
TEXT_BYTES = 64
"""As long as a number in a text file may be."""


def sniff(path: str, head: bytes) -> str | None:
    """Look for a file header, or the section of the ``.hdr`` file."""
    if _is_hdr(head):
        return None
    if len(head) < tools.size_of(FIELDS):
        return "shorter than a file header"
    fields = tools.parse_fields(head, FIELDS)
    wrong = tools.wrong_field(fields, ALLOWED)
    return f"as a file header, {wrong} is {fields[wrong]}" if wrong else None


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    series: bool = True,
    dark: bool = False,
    gain_map: str | os.PathLike[str] | None = None,
) -> tools.Description:
    """Describe the frames of an FRMS6 set, for which any file of it stands, also the dark frames.

    If several are opened, they are those with the frames. The ``.hdr`` file gives the scan, (y, x).

    Parameters
    ----------
    series : bool
        Look for the other files of the set; by default unless a list is opened.
    dark : bool
        Show the dark frames instead.
    gain_map : path-like, optional
        A ``.mat`` file with a "GainMap", or a ``.csv`` file, for ``corrections="dataset"``. It has
        a number for each pixel of a frame as it is shown.
    """
    base = tools.common_stem(paths, lambda path: _split(path)[0])
    listed = set() if series else {number for _, number in map(_split, paths) if number}
    sources = _choose(base, [0] if dark else sorted(listed))
    if is_following() and len(sources) > 1 and not _is_begun(sources[max(sources)]):
        del sources[max(sources)]
    parts = {number: Frames.at(path) for number, path in sources.items()}
    tools.in_sequence([tools.Member(p.file, k, 1, p.record.sig_shape) for k, p in parts.items()])
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
        "binning_from": hdr or "no .hdr file: rows are shown as they are stored",
        "dark_frames": base + "_000.frms6",
    }
    if gain_map is not None:
        facts["gain_map"] = tools.absolute(gain_map)
    layout = _layout(list(parts.values()), counts, facts["binning"])
    desc = tools.Description.of("frms6", layout, {"frms6": facts})
    if nav_shape is not None or hdr is None or dark:
        return desc
    return desc.with_scan(keys["stemimagesize"], hdr)


class Frames(NamedTuple):
    """A ``.frms6`` file, and the fields of its header."""

    file: tools.File
    fields: dict[str, Any]

    @classmethod
    def at(cls, path: str) -> Frames:
        """Read the header of a file."""
        file = tools.File.at(path)
        fields = tools.read_fields(file.path, FIELDS)
        tools.check_fields(path, fields, FIELDS, ALLOWED, "no FRMS6 header")
        return cls(file, fields)

    @property
    def record(self) -> tools.Record:
        """A frame as it is stored, folded."""
        shape = self.fields["height"], self.fields["width"]
        return tools.Record(shape, tools.plain(PIXEL), FRAME_HEADER_BYTES)

    def count_frames(self, *, settled: bool) -> int:
        """Count the frames; if ``settled``, the file may end early."""
        promised, by = int(self.fields["num_frames"]), "byte 1020 (num_frames)"
        file, record = self.file, self.record
        (present,) = tools.count_frames(
            [file], record, HEADER_BYTES, promised=promised, promised_by=by, settled=settled
        )
        return min(present, promised) if promised else present  # old files do not say how many


def _is_begun(path: str) -> bool:
    """Return whether a file that is being written has its first frame."""
    try:
        return Frames.at(path).count_frames(settled=True) > 0
    except tools.TruncatedFileError:
        return False


def _is_hdr(head: bytes) -> bool:
    """Return whether text is that of a ``.hdr`` file; those of Merlin are called so, too."""
    return f"[{SECTION}]".encode() in head


def _split(path: str) -> tuple[str, int | None]:
    """Split a path into what the files of a set have in common, and the number of this one."""
    stem, suffix = os.path.splitext(tools.absolute(path))
    match = re.fullmatch(r"(.*)_(\d{1,18})", stem, re.DOTALL)
    if suffix.lower() == ".hdr" or match is None:
        return stem, None
    return match[1], int(match[2])


def _choose(base: str, numbers: Sequence[int]) -> dict[int, str]:
    """Find the ``.frms6`` files of a set with these numbers, by default those with frames."""
    folder, name = os.path.split(base)
    pattern = re.compile(re.escape(name) + r"_(\d{1,18})\.frms6", re.IGNORECASE)
    guesses = (f"{name}_{n:03}.frms6" for n in numbers or range(1, GUESSES))
    matches = map(pattern.fullmatch, sorted(tools.names_in(folder, *guesses)))
    present = {int(match[1]): os.path.join(folder, match[0]) for match in matches if match}
    numbers = numbers or sorted({1, *present} - {0})
    missing = [number for number in numbers if number not in present]
    if missing:
        raise tools.TruncatedFileError(
            "a file of the set is missing",
            path=f"{base}_{missing[0]:03}.frms6",
            found=f"those with the numbers {sorted(present)}",
        )
    return {number: present[number] for number in numbers}


def _read_hdr(path: str) -> dict[str, Any]:
    """Read a ``.hdr`` file: keys in lower case, ``stemimagesize`` as a pair, and ``binning``."""
    text = tools.read_head(path, HDR_BYTES).decode("latin1")
    section = text.partition(f"[{SECTION}]")[2].partition("\n[")[0]
    keys: dict[str, Any] = {k.lower(): v for k, v in tools.parse_pairs(section, "=").items()}
    numbers = {key: int(text) for key, text in keys.items() if re.fullmatch(r"\d{1,18}", text)}
    told = []
    for name, (pattern, expected) in HDR_KEYS.items():
        text = keys.get(name.lower(), "nothing")
        match = re.search(pattern, text)
        if match is None:
            problem = "the .hdr file does not tell how to read the frames"
            raise tools.CorruptFileError(
                problem, path=path, where=name, expected=expected, found=text
            )
        told.append(tuple(map(int, match.groups())))
    scan, (binning,) = told
    return {**keys, **numbers, "stemimagesize": scan, "binning": binning}


def _layout(parts: Sequence[Frames], counts: Sequence[int], binning: int) -> tools.Layout:
    """Lay out the upper and the lower chip; the rows and pixels of the lower one run backwards."""
    record = parts[0].record
    height, width = record.sig_shape[0], record.sig_shape[1] // 2
    row, pixel = record.sig_strides
    last = record.header + record.frame_bytes - pixel
    shape = height * binning, width
    upper = tools.Part((0, 0), shape, record.header, (row, pixel))
    lower = tools.Part((height * binning, 0), shape, last, (-row, -pixel))
    files, size = [part.file for part in parts], record.nbytes
    decoders, repeats = [record.decoder], (binning, 1)
    return tools.part_layout(files, counts, [upper, lower], size, decoders, HEADER_BYTES, repeats)


FRAME: tools.Fields = {"seconds": (4, "u4"), "microseconds": (8, "u4"), "number": (12, "u4")}


def read_headers(desc: tools.Description) -> tools.Headers:
    """Find the headers of all frames."""
    layout = tools.beside_frames(desc.layout, tools.record_dtype(FRAME), -FRAME_HEADER_BYTES)
    time = {"seconds": 1_000_000, "microseconds": 1}
    return tools.stored_headers(layout, {"number": "number"}, {"time_utc": time})


def read_corrections(desc: tools.Description) -> tools.Corrections:
    """Read the mean of the dark frames, and the gain map that was named."""
    facts = desc.metadata["frms6"]
    dark, gain = facts["dark_frames"], facts.get("gain_map")
    if gain is None and not tools.is_file(dark):
        raise tools.DatasetError("the file of the dark frames is missing", path=dark)
    mean = _mean_dark_frame(dark, facts["binning"]) if tools.is_file(dark) else None
    if gain is None:
        return tools.Corrections(mean)
    with within(Border([gain])):  # named by the user
        return tools.Corrections(mean, _read_gain_map(gain, math.prod(desc.sig_shape)))


def _mean_dark_frame(path: str, binning: int) -> npt.NDArray[np.float32]:
    """Average the frames of a file block by block; rows are repeated as in frames of the set."""
    frames = Frames.at(path)
    count, record = frames.count_frames(settled=False), frames.record
    chip = record.sig_shape[1] // 2
    whole = np.dtype([("header", "V", record.header), ("pixels", PIXEL, record.sig_shape)])
    per_block = max(1, BLOCK_BYTES // record.nbytes)
    total = np.zeros(record.sig_shape, dtype=np.uint64)
    for first in range(0, count, per_block):
        number = min(per_block, count - first)
        at = HEADER_BYTES + first * record.nbytes
        content = tools.read_exactly(path, number * record.nbytes, at, "the dark frames")
        frames.file.check()
        block = np.frombuffer(content, whole)
        total += block["pixels"].sum(axis=0, dtype=np.uint64)
    mean = (total / count).astype(np.float32)
    upper, lower = mean[:, :chip], mean[::-1, : chip - 1 : -1]
    return np.concatenate([upper, lower]).repeat(binning, axis=0)


def _read_gain_map(path: str, pixels: int) -> Array:
    """Read a gain map of ``pixels`` numbers: a ``.mat`` file, or text, a line for each column."""
    size, most = tools.File.at(path).size, TEXT_BYTES * (1024 + pixels)
    if size > most:
        problem, expected = "the gain map is too large", f"at most {most} bytes"
        raise tools.CorruptFileError(problem, path=path, expected=expected, found=f"{size} bytes")
    suffix, expected = os.path.splitext(path)[1].lower(), "a .mat or .csv file"
    if suffix not in {".mat", ".csv"}:
        raise tools.DatasetError("no gain map", path=path, expected=expected, found=suffix)
    return _read_mat(path) if suffix == ".mat" else _read_csv(path)


def _read_mat(path: str) -> Array:
    matlab = tools.require("scipy.io", "frms6", path)
    try:
        with tools.opened(path) as stream:
            gain = matlab.loadmat(stream, variable_names=[MAT_KEY]).get(MAT_KEY)
    except Exception as error:  # scipy raises about anything on damaged files
        problem, expected = "the .mat file cannot be read", "a file of MATLAB 5 to 7.2"
        raise tools.CorruptFileError(
            problem, path=path, expected=expected, found=repr(error)
        ) from error
    if gain is None:
        raise tools.CorruptFileError("no gain map in the .mat file", path=path, expected=MAT_KEY)
    return np.asarray(gain)


def _read_csv(path: str) -> Array:
    """Read numbers with ``;`` between them; a line is a column of the frame."""
    with tools.opened(path) as content, io.TextIOWrapper(content, encoding="latin1") as stream:
        rows = [[cell for cell in line.split(";") if cell.strip()] for line in stream]
    try:
        return np.array([row for row in rows if row], dtype=np.float64).T
    except ValueError as error:
        problem = "the gain map is no table of numbers"
        raise tools.CorruptFileError(problem, path=path, found=str(error)) from error


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
