"""Write JEOL's images, spectra, and lists of files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath

_FOOTER = 360
"""Bytes behind the channels of a spectrum."""
_KINDS = {"u1": 1, "u2": 2, "i4": 3, "f4": 4, "f8": 5}
"""Types of numbers; those of arrays are 5 more."""


def write_jeol_image(path: StrPath, pixels: npt.ArrayLike) -> Path:
    """Write an image, or a map of an element (``.img``, ``.map``).

    Parameters
    ----------
    pixels
        Image, (y, x), of 1 or 2 bytes, or of i4, f4 or f8.
    """
    path, image = Path(path), np.asarray(pixels)
    microscope = {"ScanSize": np.float32(128), "Name": "JEM", "AccV": np.float32(200),
                  "Mag": np.int32(4000), "WorkD": np.float32(5.5)}  # fmt: skip
    facts = {"Created": 44000.5, "Title": "scan", "Size": np.array(image.shape[::-1], "i4")}
    tree = bytes(12) + entries_of({"Instrument": microscope, "Image": facts})
    facts["Bits"] = image.reshape(-1)
    every = {"Instrument": microscope, "FileType": "JED-2200:IMG", "Image": facts}
    head = struct.pack("<I", 52) + b"JED-2200:LibJxImageForm".ljust(32, b"\0")
    head += struct.pack("<III", 64, len(tree), 4096)
    start = (head.ljust(64, b"\0") + tree).ljust(4096, b"\0")
    path.write_bytes(start + bytes(12) + entries_of(every) + b"\xff")
    return path


def write_jeol_spectrum(path: StrPath, counts: npt.ArrayLike) -> Path:
    """Write a spectrum (``.EDS``).

    Parameters
    ----------
    counts
        Counts in each channel.
    """
    path, every = Path(path), np.asarray(counts, "<i4")
    fields = {0: "<II", 10: "<d", 130: "<i", 214: "<i", 258: "<dd", 362: "<dd", 454: "<i"}
    values = [(2, 2), (44000.5,), (1,), (7,), (30.0, 32.5), (0.01, -0.005), (len(every),)]
    header = bytearray(458)
    for (at, form), numbers in zip(fields.items(), values, strict=True):
        struct.pack_into(form, header, at, *numbers)
    # No elements; then parameters, of which the detector, the microscope and its voltage are given.
    footer = struct.pack("<5i16s16s16s2d", 1, 0, 0, 0, 5, b"EX", b"JEM", b"", 200.0, 7.5)
    path.write_bytes(bytes(header) + every.tobytes() + footer.ljust(_FOOTER, b"\0"))
    return path


def write_jeol_list(path: StrPath, names: Sequence[str]) -> Path:
    """Write a list of files (``.ASW``).

    Parameters
    ----------
    names
        Names relative to the list.
    """
    path = Path(path)
    listed = {str(k): {"Filename": ".\\" + one.replace("/", "\\")} for k, one in enumerate(names)}
    views = {"0": {"Memo": "View000", "ViewData": listed}}
    tree = {"FileType": "Analysis Station", "SampleInfo": {"0": {"ViewInfo": views}}}
    path.write_bytes(bytes(12) + entries_of(tree) + b"\xff")
    return path


def entries_of(tree: dict[str, Any]) -> bytes:
    """Write entries: name, type, value, entries inside, and an end.

    The value of an entry with others inside has the empty name among them.
    """
    parts = []
    for name, value in tree.items():
        if not name:
            continue
        inner = value if isinstance(value, dict) else {}
        kind, content = _value(value.get("") if isinstance(value, dict) else value)
        label = name.encode() + b"\0"
        start = b"\x01" + len(label).to_bytes(4, "little") + label
        start += struct.pack("<II", kind, len(content)) + content
        parts.append(start + entries_of(inner) + b"\xff")
    return b"".join(parts)


def _value(value: Any) -> tuple[int, bytes]:
    if value is None:
        return 0, b""
    if isinstance(value, str):
        return 12, value.encode() + b"\0"
    number = np.asarray(value, "u2" if isinstance(value, int) else None)
    return _KINDS[number.dtype.str[1:]] + 5 * (number.ndim > 0), number.tobytes()
