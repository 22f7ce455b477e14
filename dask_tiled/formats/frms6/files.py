"""Headers of FRMS6 files, the ``.hdr`` file beside them, and which files make a set.

Layout as LiberTEM reads it; no real set was at hand.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_tiled.formats import tools

FIELDS: tools.Fields = {
    "header_bytes": (0, "u2"),
    "frame_header_bytes": (2, "u2"),
    "version": (7, "u1"),
    "text": (8, "S80"),
    "width": (88, "u2"),
    "height": (90, "u2"),
    "more_text": (92, "S928"),
    "num_frames": (1020, "u4"),
}
HEADER_BYTES, FRAME_HEADER_BYTES = 1024, 64
ALLOWED: tools.Allowed = {
    "header_bytes": (HEADER_BYTES,),
    "frame_header_bytes": (FRAME_HEADER_BYTES,),
    "version": (6,),
    "height": tools.POSITIVE,
    "width": range(2, 1 << 16, 2),  # two chips share it
}
SECTION = "measurementInfo"
HDR_BYTES = 1 << 16
BINNINGS = 1, 2, 4


def is_hdr(head: bytes) -> bool:
    """Tell whether text is that of a ``.hdr`` file; those of Merlin are called so, too."""
    return f"[{SECTION}]".encode() in head


def problem_of(head: bytes) -> str | None:
    """Say why a file does not begin with the header of a ``.frms6`` file, or None."""
    if len(head) < tools.size_of(FIELDS):
        return "shorter than a file header"
    fields = tools.parse_fields(head, FIELDS)
    wrong = tools.wrong_field(fields, ALLOWED)
    return f"as a file header, {wrong} is {fields[wrong]}" if wrong else None


@dataclass(frozen=True, slots=True)
class Frames:
    """A ``.frms6`` file, its header, and how a frame is stored."""

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
    def stored(self) -> tools.Record:
        """A frame as it is stored, folded."""
        shape = self.fields["height"], self.fields["width"]
        return tools.Record(shape, tools.plain(np.dtype("<u2")), FRAME_HEADER_BYTES)

    def count(self, *, settled: bool) -> int:
        """Count the frames; if ``settled``, the file may end early."""
        promised: int = self.fields["num_frames"]
        (found,) = tools.count_frames(
            [self.file], self.stored, HEADER_BYTES, promised=promised, settled=settled
        )
        if found < promised and not settled:
            raise tools.TruncatedFileError(
                "frames that the header promises are missing",
                path=self.file.path,
                where="byte 1020",
                expected=f"{promised} frames",
                found=f"{found} frames",
                hint="Pass a nav_shape to read those that are there.",
            )
        return min(found, promised) if promised else found  # old files do not say how many


def base_of(path: str) -> tuple[str, int | None]:
    """Split a path into what the files of a set have in common, and the number of this one."""
    stem, suffix = os.path.splitext(os.path.abspath(path))
    match = re.fullmatch(r"(.*)_(\d{1,18})", stem, re.DOTALL)
    if suffix.lower() == ".hdr" or match is None:
        return stem, None
    return match[1], int(match[2])


def choose(
    paths: Sequence[str], *, series: bool, dark: bool
) -> tuple[str, str | None, dict[int, str]]:
    """Choose the files to show: base name of the set, ``.hdr`` file, and ``.frms6`` by number."""
    base = tools.common_stem(paths, lambda path: base_of(path)[0])
    folder, name = os.path.split(base)
    pattern = re.compile(re.escape(name) + r"_(\d{1,18})\.frms6", re.IGNORECASE)
    matches = map(pattern.fullmatch, sorted(os.listdir(folder)))
    found = {int(match[1]): os.path.join(folder, match[0]) for match in matches if match}
    listed = set(filter(None, (base_of(path)[1] for path in paths)))
    if dark:
        chosen = [0]
    elif listed and not series:
        chosen = sorted(listed)
    else:
        chosen = sorted({1, *found} - {0})
    missing = [number for number in chosen if number not in found]
    if missing:
        raise tools.TruncatedFileError(
            "a file of the set is missing",
            path=f"{base}_{missing[0]:03}.frms6",
            found=f"those with the numbers {sorted(found)}",
        )
    hdr = tools.beside(base, ".hdr", ".HDR")
    if hdr is not None and not is_hdr(tools.read_head(hdr, HDR_BYTES)):
        hdr = None
    return base, hdr, {number: found[number] for number in chosen}


def read_hdr(path: str) -> dict[str, Any]:
    """Read a ``.hdr`` file: keys in lower case, ``stemimagesize`` as a pair, and ``binning``."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(tools.read_head(path, HDR_BYTES).decode("latin1"))
        keys: dict[str, Any] = dict(parser[SECTION])
    except (configparser.Error, KeyError) as error:
        raise tools.CorruptFileError(
            "the .hdr file cannot be read", path=path, expected=f"[{SECTION}]", found=str(error)
        ) from error
    size = re.fullmatch(
        r"[\"\s]*([1-9]\d{0,8})\s*x\s*([1-9]\d{0,8})[\"\s]*", keys.get("stemimagesize", "")
    )
    binning = re.search(r"bin:\s*(\d{1,9})", keys.get("readoutmode", ""))
    found = int(binning[1]) if binning else None
    if size is None or found not in BINNINGS:
        where, expected = ("STEMImageSize", "two numbers, as in 64x64")
        if size is not None:
            where, expected = ("readoutMode", f"bin: one of {BINNINGS}")
        raise tools.CorruptFileError(
            "the .hdr file does not tell how to read the frames",
            path=path,
            where=where,
            expected=expected,
            found=keys.get(where.lower(), "nothing"),
        )
    numbers = {key: int(text) for key, text in keys.items() if re.fullmatch(r"\d{1,18}", text)}
    scan = int(size[1]), int(size[2])
    return {**keys, **numbers, "stemimagesize": scan, "binning": found}
