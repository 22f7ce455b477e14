"""Writer of FEI and Thermo Fisher TIA series: `.ser` files of images or spectra.

The layout follows C. Boothroyd's description of the TIA file format and real files, whose tables
have an entry for every requested element, 0 for missing ones.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from dask_tiled.model.indexing import Array
from dask_tiled.testing.frames import Frames, StrPath, alike, nav_shape_of, pixels_of
from dask_tiled.testing.records import write_records

CODES = {"u1": 1, "u2": 2, "u4": 3, "i1": 4, "i2": 5, "i4": 6, "f4": 7, "f8": 8, "c8": 9, "c16": 10}
Calibration = tuple[float, float, int]


def write_ser(
    path: StrPath,
    frames: Frames,
    *,
    sig_dims: int = 2,
    nav_shape: Sequence[int] | None = None,
    version: int = 0x0220,
    positions: bool | None = None,
    calibrations: Sequence[Calibration] = ((-3.0, 0.5, 0),),
    gaps: Sequence[int] = (0,),
) -> Path:
    """Write images or spectra to one TIA series.

    Frames are integers of up to 4 bytes, float32, float64 or complex; images are written bottom row
    first. The scan may have more positions than there are frames, like a scan that was stopped.

    Parameters
    ----------
    version
        0x0210, with offsets of 4 bytes, or 0x0220, with offsets of 8 bytes.
    positions
        Whether the tag after each element holds a position besides the time, and the dimensions in
        the header are positions rather than numbers; by default for two or more dimensions.
    calibrations
        Offset, delta and the element at this offset for each axis, fastest first (x, y, scan x,
        scan y). The list is repeated if there are more axes.
    gaps
        Numbers of text bytes between elements, repeated cyclically: ``(0, 3)`` spaces the elements
        unequally.
    """
    sizes = [*nav_shape_of(frames, nav_shape, sig_dims)][::-1] or [1]
    positions = len(sizes) > 1 if positions is None else positions
    first, every = alike(frames, sig_dims)
    code = CODES.get(first.dtype.str[1:])
    if code is None or first.ndim not in (1, 2) or not first.size:
        raise ValueError(
            "expected images or spectra of a dtype that SER files have, "
            f"found {first.dtype} of {first.shape}"
        )
    cal = cycle(calibrations)
    element = b"".join(struct.pack("<ddi", *next(cal)) for _ in range(sig_dims))
    element += struct.pack(f"<H{first.ndim}I", code, *first.shape[::-1])
    dimensions = b"".join(_dimension(size, next(cal), positions=positions) for size in sizes)
    total, word = math.prod(sizes), {0x0210: "I", 0x0220: "Q"}[version]
    kinds = (0x4122 if first.ndim == 2 else 0x4120, 0x4142 if positions else 0x4152)
    table = 22 + struct.calcsize(f"<{word}I") + len(dimensions)
    ends = [table + 2 * total * struct.calcsize(f"<{word}")]
    tags: list[int] = []
    pauses = cycle(gaps)

    def record(number: int, frame: Array) -> bytes:
        pixels = element + pixels_of(frame[::-1] if frame.ndim == 2 else frame)
        tag = struct.pack("<II", kinds[1], 1_456_150_000 + number)
        if positions:
            tag += struct.pack("<dd", number % sizes[0], number // sizes[0])
        tag += (b"between elements " * 64)[: next(pauses)]
        tags.append(ends[-1] + len(pixels))
        ends.append(tags[-1] + len(tag))
        return pixels + tag

    def header(count: int) -> bytes:
        if count > total:
            raise ValueError(f"expected {total} frames, found {count}")
        head = struct.pack("<HHHIIII", 0x4949, 0x0197, version, *kinds, total, count)
        head += struct.pack(f"<{word}I", table, len(sizes)) + dimensions
        for entries in (ends, [*tags, 0]):
            places = [*entries, *[0] * total][:total]
            head += struct.pack(f"<{total}{word}", *places)
        return head

    write_records(path, every, record, header=header)
    return Path(path)


def _dimension(size: int, calibration: Calibration, *, positions: bool) -> bytes:
    texts = (b"Position", b"meters") if positions else (b"Number", b"")
    written = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return struct.pack("<Iddi", size, *calibration) + written
