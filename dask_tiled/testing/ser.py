"""Write FEI and Thermo Fisher TIA series: `.ser` files of images or spectra.

The layout follows C. Boothroyd's description of the TIA file format and real files, in which the
tables have a place for every element that was asked for, and hold 0 for those that are not there.
"""

from __future__ import annotations

import math
import struct
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from dask_tiled.testing.frames import Array, Frames, iter_frames

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

CODES = {"u1": 1, "u2": 2, "u4": 3, "i1": 4, "i2": 5, "i4": 6, "f4": 7, "f8": 8, "c8": 9, "c16": 10}
Calibration = tuple[float, float, int]


def write_ser(
    path: str | os.PathLike[str],
    frames: Frames,
    *,
    sig_dims: int = 2,
    nav_shape: Sequence[int] | None = None,
    version: int = 0x0220,
    positions: bool | None = None,
    calibrations: Sequence[Calibration] = ((-3.0, 0.5, 0),),
    gaps: Sequence[int] = (0,),
) -> Path:
    """Write images or spectra to one `.ser` file.

    Parameters
    ----------
    path
        The file to write; an existing one is replaced.
    frames
        Array of shape nav + sig, or iterable of frames, of one shape and of a dtype of the format:
        integers of up to 4 bytes, float32, float64 or complex. Images are given as they are to be
        seen, and written with the bottom row first. One frame at a time is in memory.
    sig_dims
        2 for images, 1 for spectra.
    nav_shape
        Shape of the scan in the header, by default that of the array; needed for an iterable. It
        may have more places than there are frames, as in a scan that was stopped.
    version
        0x0210, with offsets of 4 bytes, or 0x0220, with offsets of 8 bytes.
    positions
        Whether the tag after each element gives a position besides the time, and the header's
        dimensions are positions rather than numbers; by default for two or more dimensions.
    calibrations
        Offset, delta, and the element that has this offset: of the axes, the fastest first (x, y,
        scan x, scan y). Where there are more axes, they are repeated.
    gaps
        Bytes of text between elements, repeated: ``(0, 3)`` makes them lie unequally spaced.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        If there are no frames or too many, or their shape or dtype cannot be written.
    """
    path = Path(path)
    if nav_shape is None:
        shape = getattr(frames, "shape", None)
        if shape is None:
            raise ValueError("frames that come as an iterable need a nav_shape")
        nav_shape = shape[: len(shape) - sig_dims]
    sizes = [*nav_shape][::-1] or [1]
    positions = len(sizes) > 1 if positions is None else positions
    cal = cycle(calibrations)
    element_cal = b"".join(struct.pack("<ddi", *next(cal)) for _ in range(sig_dims))
    dimensions = b"".join(_dimension(size, next(cal), positions=positions) for size in sizes)
    total = math.prod(sizes)
    word = {0x0210: "I", 0x0220: "Q"}[version]
    table = 22 + struct.calcsize(f"<{word}I") + len(dimensions)
    offsets: list[int] = []
    tags: list[int] = []
    geometry = None
    pauses = cycle(gaps)
    with path.open("wb") as file:
        file.seek(table + 2 * total * struct.calcsize(f"<{word}"))
        for number, frame in enumerate(iter_frames(frames, sig_dims)):
            head = _element(frame, element_cal, sig_dims)
            geometry = geometry or head
            if head != geometry or number == total:
                raise ValueError(f"frame {number}: expected {total} frames, all of one kind")
            offsets.append(file.tell())
            rows = frame[::-1] if sig_dims == 2 else frame
            file.write(head + rows.astype(frame.dtype.newbyteorder("<")).tobytes())
            tags.append(file.tell())
            tag = (0x4142 if positions else 0x4152, 1_456_150_000 + number)
            file.write(struct.pack("<II", *tag))
            if positions:
                file.write(struct.pack("<dd", number % sizes[0], number // sizes[0]))
            file.write((b"between elements " * 64)[: next(pauses)])
        if not offsets:
            raise ValueError("there are no frames")
        valid, end = len(offsets), file.tell()
        file.seek(0)
        types = (0x4122 if sig_dims == 2 else 0x4120, tag[0])
        file.write(struct.pack("<HHHIIII", 0x4949, 0x0197, version, *types, total, valid))
        file.write(struct.pack(f"<{word}I", table, len(sizes)) + dimensions)
        for entries, following in ((offsets, end), (tags, 0)):
            places = [*entries, following, *[0] * total][:total]
            file.write(struct.pack(f"<{total}{word}", *places))
    return path


def _dimension(size: int, calibration: Calibration, *, positions: bool) -> bytes:
    texts = (b"Position", b"meters") if positions else (b"Number", b"")
    written = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return struct.pack("<Iddi", size, *calibration) + written


def _element(frame: Array, calibrations: bytes, sig_dims: int) -> bytes:
    code = CODES.get(frame.dtype.str[1:])
    if code is None or frame.ndim != sig_dims or not frame.size:
        raise ValueError(f"no frame of {sig_dims} axes can be {frame.dtype} of {frame.shape}")
    return calibrations + struct.pack(f"<H{sig_dims}I", code, *frame.shape[::-1])
