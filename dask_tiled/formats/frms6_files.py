"""Headers of FRMS6 files, the ``.hdr`` file beside them, and which files make a set.

Layout as LiberTEM reads it; no real set was at hand.
"""

from __future__ import annotations

import configparser
import os
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_tiled.decoders import plain
from dask_tiled.errors import CorruptFileError, TruncatedFileError
from dask_tiled.files import File, read_head
from dask_tiled.headers import parse_fields, read_fields, size_of
from dask_tiled.records import Record, count_frames

FIELDS = {
    "header_bytes": (0, "u2"),
    "frame_header_bytes": (2, "u2"),
    "version": (7, "u1"),
    "text": (8, "S80"),
    "width": (88, "u2"),
    "height": (90, "u2"),
    "more_text": (92, "S928"),
    "num_frames": (1020, "u4"),
}
FIXED = {"header_bytes": 1024, "frame_header_bytes": 64, "version": 6}
SECTION = "measurementInfo"
HDR_BYTES = 1 << 16
BINNINGS = 1, 2, 4


def is_hdr(head: bytes) -> bool:
    """Tell whether text is that of a ``.hdr`` file; those of Merlin are called so, too."""
    return f"[{SECTION}]".encode() in head


def problem_of(fields: dict[str, Any]) -> str | None:
    """Say what is wrong with the fields of a file header."""
    for name, value in FIXED.items():
        if fields[name] != value:
            return f"{name} {fields[name]}, not {value}"
    if not fields["height"] or not fields["width"] or fields["width"] % 2:
        return f"rows of {fields['width']} pixels, {fields['height']} of them"
    return None


def parse_head(head: bytes) -> dict[str, Any] | None:
    """Read the fields of a file header, or give None if they are not all there."""
    return parse_fields(head, FIELDS) if len(head) >= size_of(FIELDS) else None


@dataclass(frozen=True, slots=True)
class Frames:
    """A ``.frms6`` file, its header, and how a frame is stored."""

    file: File
    fields: dict[str, Any]

    @classmethod
    def at(cls, path: str) -> Frames:
        """Read the header of a file.

        Raises
        ------
        CorruptFileError, TruncatedFileError
            It has none.
        """
        file = File.at(path)
        fields = read_fields(file.path, FIELDS)
        problem = problem_of(fields)
        if problem is not None:
            expected = f"{FIXED}, and a width that two chips share"
            raise CorruptFileError(
                "no FRMS6 header", path=path, where="byte 0", expected=expected, found=problem
            )
        return cls(file, fields)

    @property
    def stored(self) -> Record:
        """A frame as it is stored, folded."""
        shape = self.fields["height"], self.fields["width"]
        return Record(shape, plain(np.dtype("<u2")), FIXED["frame_header_bytes"])

    def count(self, *, settled: bool) -> int:
        """Count the frames.

        Parameters
        ----------
        settled : bool
            The file may end early.

        Raises
        ------
        TruncatedFileError
            It ends inside a frame, or earlier than the header says.
        """
        # Old files do not say how many there are.
        promised: int = self.fields["num_frames"]
        start = FIXED["header_bytes"]
        if promised and self.file.size >= start + promised * self.stored.nbytes:
            return promised
        (found,) = count_frames([self.file], self.stored, start, settled=settled)
        if found < promised and not settled:
            raise TruncatedFileError(
                "frames that the header promises are missing",
                path=self.file.path,
                where="byte 1020",
                expected=f"{promised} frames",
                found=f"{found} frames",
                hint="Pass a nav_shape to read those that are there.",
            )
        return found


def base_of(path: str) -> tuple[str, int | None]:
    """Split a path into what the files of a set have in common, and the number of this one."""
    stem, suffix = os.path.splitext(os.path.abspath(path))
    match = re.fullmatch(r"(.*)_(\d{1,18})", stem, re.DOTALL)
    if suffix.lower() == ".hdr" or match is None:
        return stem, None
    return match[1], int(match[2])


def find_set(base: str) -> tuple[str | None, dict[int, str]]:
    """Find the ``.hdr`` file of a set, and its ``.frms6`` files by number."""
    folder, name = os.path.split(base)
    pattern = re.compile(re.escape(name) + r"_(\d{1,18})\.frms6", re.IGNORECASE)
    matches = map(pattern.fullmatch, sorted(os.listdir(folder)))
    files = {int(match[1]): os.path.join(folder, match[0]) for match in matches if match}
    hdrs = [base + suffix for suffix in (".hdr", ".HDR")]
    hdr = next((h for h in hdrs if os.path.isfile(h) and is_hdr(read_head(h, HDR_BYTES))), None)
    return hdr, files


def read_hdr(path: str) -> dict[str, Any]:
    """Read a ``.hdr`` file.

    Returns
    -------
    dict
        Keys in lower case. ``stemimagesize`` is a pair of numbers; ``binning`` is added.

    Raises
    ------
    CorruptFileError
        It cannot be read, or has no binning or no size of the scan.
    """
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(read_head(path, HDR_BYTES).decode("latin1"))
        keys: dict[str, Any] = dict(parser[SECTION])
    except (configparser.Error, KeyError) as error:
        raise CorruptFileError(
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
        raise CorruptFileError(
            "the .hdr file does not tell how to read the frames",
            path=path,
            where=where,
            expected=expected,
            found=keys.get(where.lower(), "nothing"),
        )
    numbers = {key: int(text) for key, text in keys.items() if re.fullmatch(r"\d{1,18}", text)}
    scan = int(size[1]), int(size[2])
    return {**keys, **numbers, "stemimagesize": scan, "binning": found}
