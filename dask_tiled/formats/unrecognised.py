"""Errors for files that no format, or not the given one, recognises."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError, UnknownFormatError
from dask_tiled.files.file import is_n5, read_head
from dask_tiled.files.paths import OF_AXES, absolute
from dask_tiled.formats.registry import HEAD_BYTES, Format, formats, recognised_by

# fmt: off
_SIGNATURES = (
    (0, b"\x89PNG\r\n", "a PNG image"), (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"), (0, b"%PDF-", "a PDF document"),
    (0, b"PK\x03\x04", "a ZIP archive"), (0, b"BZh", "a bzip2 file"),
    (0, b"\x1f\x8b", "a gzip file"), (0, b"\xfd7zXZ", "an xz file"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard file"), (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (257, b"ustar", "a tar archive"), (0, b"CDF", "a netCDF 3 file"),
    (0, b"MATLAB 5", "a MATLAB 5 file, before version 7.3"), (128, b"DICM", "a DICOM file"),
    (0, b"ZISRAWFILE", "a Zeiss CZI file"), (0, b"\xda\xce\xbe\x0a", "a Nikon ND2 file"),
    (8, b"AVI ", "an AVI video"), (4, b"ftyp", "an MP4 video"), (0, b"PAR1", "a Parquet file"),
    (0, b"SQLite format 3", "an SQLite database"), (0, b"\x80\x04\x95", "a pickle of Python"),
    (0, b"version https://git-lfs", "a Git LFS pointer: the file itself was not fetched"),
    (0, b"{\nHEADER_BYTES=", "a diffraction image in the SMV format of ADSC detectors"),
    (0, b"EHFA_HEADER_TAG", "an ERDAS Imagine file"),
)
# fmt: on
"""Magic numbers of other files that users try to open: offset, bytes, and type of file."""
_RECORDING = re.compile(rb"(0 {7}|\xffBIOSEMI)[ -~]{160}\d\d\.\d\d\.\d\d")
"""Version, patient, recording and date."""
_ADVICE = {
    "a MATLAB 5": "Save it with -v7.3 in MATLAB, or read it with scipy.io.loadmat.",
    "an EEG": "It holds no images; MNE-Python reads such files.",
    "a gzip": "Decompress it.",
    "a bzip2": "Decompress it.",
    "an xz": "Decompress it.",
}
"""Hints, by the beginning of the type."""
_HINT = (
    "Pass format= if you know it, or dtype= and sig_shape= if it holds plain frames;"
    " formats() lists the supported formats."
)


def unrecognised(
    path: str, reasons: Mapping[str, str], head: bytes, *, hint: str | None = None, **details: Any
) -> UnknownFormatError:
    """Return the error for a file whose content no format recognises; ``head`` is its start."""
    look = _signature(head) or _look(path, head)
    advice = next((text for kind, text in _ADVICE.items() if look.startswith(kind)), None)
    hint = advice or hint or _HINT
    problem = f"no format recognises the file, which looks like {look}"
    return UnknownFormatError(problem, path=path, hint=hint, reasons=reasons, **details)


def wrong_format(
    error: DatasetError, format: Format, path: str, *, named: bool
) -> DatasetError | None:
    """Return a better error for a file that a format cannot read, if another one recognises it.

    Parameters
    ----------
    error : DatasetError
        Error of the format.
    format : Format
    path : str
    named : bool
        Whether the user gave the format; otherwise it was detected.

    Returns
    -------
    DatasetError, optional
        None to keep ``error``.
    """
    told = {name: getattr(error, name) for name in ("path", "where", "expected", "found")}
    reasons: dict[str, str] = {}
    if named:
        other = recognised_by(formats().values(), path, reasons)
        if other in (None, format) or error.hint is not None:
            return None
        hint = f"The file looks like {other.name}: pass format={other.name!r}, or no format."
        return type(error)(error.problem, **told, hint=hint)
    by_suffix = os.path.splitext(path)[1].lower() in format.extensions
    if not by_suffix or not isinstance(error, (TruncatedFileError, CorruptFileError)):
        return None
    head = read_head(path, HEAD_BYTES)
    corrupt = isinstance(error, CorruptFileError) or _signature(head)
    if not corrupt or recognised_by(formats().values(), path, reasons, head) is not None:
        return None
    if told["path"] and absolute(told["path"]) == absolute(path):
        told["path"] = None
    found = DatasetError(error.problem, **told)
    expected = f"{format.name}, by the suffix"
    return unrecognised(path, reasons, head, expected=expected, found=found, hint=error.hint)


def _signature(head: bytes) -> str:
    """Return the type of a file by its magic number; empty if unknown."""
    if _RECORDING.match(head):
        return "an EEG recording (EDF, the European Data Format, or BDF)"
    return next((kind for at, magic, kind in _SIGNATURES if head.startswith(magic, at)), "")


def _look(path: str, head: bytes) -> str:
    """Describe the content of a file in common words."""
    if os.fspath(path).endswith(OF_AXES):
        return "saved axes of a scan: open the scan"
    if is_n5(os.fspath(path)):
        return "the attributes of an N5 folder, which is not supported"
    if not head.strip(b"\0"):
        return "nothing but zeros at its start: perhaps a copy was not finished"
    try:
        text = head[: HEAD_BYTES - 4].decode()  # not within a character
    except UnicodeDecodeError:
        return "binary data"
    if not all(c.isprintable() or c.isspace() for c in text):
        return "binary data"
    page = text.lstrip().lower().startswith(("<!doctype html", "<html"))
    return "a web page: perhaps a download was refused" if page else "text"
