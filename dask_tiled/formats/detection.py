"""Which format a file has, or a user means."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dask_tiled.errors import (
    CorruptFileError,
    DatasetError,
    TruncatedFileError,
    UnknownFormatError,
    nearest,
)
from dask_tiled.formats.format import Format
from dask_tiled.formats.registry import formats
from dask_tiled.model.files import is_refusal, read_head
from dask_tiled.model.paths import absolute

HEAD_BYTES = 4096
"""Bytes at the start of a file that a format sees when it says whether the file is its own."""
# fmt: off
_SIGNATURES = (
    (0, b"\x89PNG\r\n", "a PNG image"), (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"), (0, b"%PDF-", "a PDF document"),
    (0, b"PK\x03\x04", "a ZIP archive, or an .npz file of NumPy"), (0, b"BZh", "a bzip2 file"),
    (0, b"\x1f\x8b", "a gzip file"), (0, b"\xfd7zXZ", "an xz file"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard file"), (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (257, b"ustar", "a tar archive"), (0, b"CDF", "a netCDF file of before version 4"),
    (0, b"MATLAB 5", "a MATLAB 5 file, of before version 7.3"), (128, b"DICM", "a DICOM file"),
    (0, b"ZISRAWFILE", "a Zeiss CZI file"), (0, b"\xda\xce\xbe\x0a", "a Nikon ND2 file"),
    (8, b"AVI ", "an AVI video"), (4, b"ftyp", "an MP4 video"), (0, b"PAR1", "a Parquet file"),
    (0, b"SQLite format 3", "an SQLite database"), (0, b"\x80\x04\x95", "a pickle of Python"),
    (0, b"version https://git-lfs", "a pointer of Git LFS: the file itself was not fetched"),
    (0, b"{\nHEADER_BYTES=", "a diffraction image in the SMV format of ADSC detectors"),
    (0, b"EHFA_HEADER_TAG", "an ERDAS Imagine file"),
)
# fmt: on
"""What else files begin with that people try to open: at which byte, what, and what it is."""
_RECORDING = re.compile(rb"(0 {7}|\xffBIOSEMI)[ -~]{160}\d\d\.\d\d\.\d\d")
"""Version, patient, recording and date."""
_ADVICE = {
    "a MATLAB 5": "Save it with -v7.3 in MATLAB, or read it with scipy.io.loadmat.",
    "an EEG": "It holds no images; MNE-Python reads such files.",
    "a gzip": "Decompress it.",
    "a bzip2": "Decompress it.",
    "an xz": "Decompress it.",
}
"""What to do, by the beginning of what it is."""
_HINT = (
    "Pass format= if you know it, or dtype= and sig_shape= if it holds plain frames;"
    " formats() tells what is read."
)
_OF_ALL_KINDS = {".toml"}
"""Suffixes that say nothing: the settings of any program are called so."""


def named(name: Any, path: str | None = None) -> Format:
    """Find the format that a user names: by its name, another name or a suffix, in any case.

    Raises
    ------
    UnknownFormatError
        There is none.
    """
    there, hint = formats(), None
    if isinstance(name, str):
        if name in there:
            return there[name]
        word = name.strip().lower().lstrip(".").replace("-", "_").replace(" ", "_")
        meant = [one for one in there.values() if word in (one.name, *one.aliases)]
        meant = meant or [one for one in there.values() if f".{word}" in one.extensions]
        if meant:
            return (path is not None and recognised_by(meant, path, {})) or meant[0]
        suffixes = (end[1:] for one in there.values() for end in one.extensions)
        aliases = (alias for one in there.values() for alias in one.aliases)
        hint = nearest(word, (*there, *aliases, *suffixes))
    raise UnknownFormatError(
        "no such format",
        expected=f"one of {', '.join(there)}",
        found=repr(name),
        hint=hint,
    )


def detect(path: str) -> Format:
    """Find out the format of a file: by its content first, by its suffix second.

    Formats whose files usually have that suffix are asked first.

    Raises
    ------
    UnknownFormatError
        None recognises it, and not one alone has its suffix.
    """
    suffix = os.path.splitext(path)[1].lower()
    claimants = [format for format in formats().values() if suffix in format.extensions]
    others = [format for format in formats().values() if suffix not in format.extensions]
    reasons: dict[str, str] = {}
    format = recognised_by((*claimants, *others), path, reasons)
    if format is None and len(claimants) == 1 and suffix not in _OF_ALL_KINDS:
        return claimants[0]
    if format is None:
        raise unrecognised(path, reasons)
    return format


def unrecognised(
    path: str, reasons: Mapping[str, str], *, hint: str | None = None, **details: Any
) -> UnknownFormatError:
    """Return the error for a file whose content no format recognises."""
    look = _signature(path) or _look(path)
    advice = next((text for kind, text in _ADVICE.items() if look.startswith(kind)), None)
    hint = advice or hint or _HINT
    problem = f"no format recognises the file, which looks like {look}"
    return UnknownFormatError(problem, path=path, hint=hint, reasons=reasons, **details)


def disputed(format: Format, path: str, error: DatasetError) -> UnknownFormatError | None:
    """Return the error for a file that is wrong for a format that only its suffix speaks for.

    Returns
    -------
    UnknownFormatError, optional
        None if a format recognises the content, or if ``error`` calls nothing corrupt.
    """
    by_suffix = os.path.splitext(path)[1].lower() in format.extensions
    short = isinstance(error, TruncatedFileError) and _signature(path)
    if not by_suffix or not (short or isinstance(error, CorruptFileError)):
        return None
    reasons: dict[str, str] = {}
    if recognised_by(formats().values(), path, reasons) is not None:
        return None
    told = {name: getattr(error, name) for name in ("where", "expected", "found")}
    other = error.path if error.path and absolute(error.path) != absolute(path) else None
    found = DatasetError(error.problem, path=other, **told)
    expected = f"{format.name}, which the suffix stands for"
    return unrecognised(path, reasons, expected=expected, found=found, hint=error.hint)


def recognised_by(
    candidates: Iterable[Format], path: str, reasons: dict[str, str]
) -> Format | None:
    """Give the first format that recognises the content of a file, and note why others do not."""
    head = read_head(path, HEAD_BYTES)
    for format in candidates:
        try:
            reason = format.sniff(path, head)
        except Exception as error:
            if is_refusal(error):  # the answer may depend on what that is
                raise
            reason = f"failed with {error!r}"
        if reason is None:
            return format
        reasons[format.name] = reason
    return None


def _signature(path: str) -> str:
    """Name what a file is by what it begins with; empty where that is unknown."""
    head = read_head(path, HEAD_BYTES)
    if _RECORDING.match(head):
        return "an EEG recording (EDF, the European Data Format, or BDF)"
    return next((kind for at, magic, kind in _SIGNATURES if head.startswith(magic, at)), "")


def _look(path: str) -> str:
    """Say what people would call a file."""
    head = read_head(path, HEAD_BYTES)
    if not head.strip(b"\0"):
        return "nothing but zeros at its start: perhaps a copy was not finished"
    try:
        text = head[: HEAD_BYTES - 4].decode()  # not inside of a character
    except UnicodeDecodeError:
        return "binary data"
    if not all(c.isprintable() or c.isspace() for c in text):
        return "binary data"
    page = text.lstrip().lower().startswith(("<!doctype html", "<html"))
    return "a web page: perhaps a download was refused" if page else "text"
