"""Writer of NanoMegas blockfiles."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Literal

import numpy as np

from dask_tiled.model.indexing import Array
from dask_tiled.testing.frames import Frames, StrPath, alike, nav_shape_of, pixels_of
from dask_tiled.testing.records import write_records

_VBF = 0x1000
_NOTE = 240


def write_blo(
    path: StrPath,
    frames: Frames,
    *,
    nav_shape: tuple[int, int] | None = None,
    order: Literal["<", ">"] = "<",
    magic: int | None = None,
    step: tuple[float, float] = (2.5, 2.0),
    sdp: int = 6226,
    note: str = "Precession angle : ",
) -> Path:
    """Write a NanoMegas blockfile of square uint8 or uint16 frames.

    The virtual bright field in the file holds the mean of each frame, scaled to 8 bits.

    Parameters
    ----------
    magic
        258 or 259, by default 259 for 16 bits. Only 259 stores the bit depth.
    step
        Step of the scan in nm, (y, x).
    sdp
        Pixels per centimetre of a pattern, times 100; 0 if unknown.
    note
        Text between header and images; the bit depth is appended to it.
    """
    scan = nav_shape_of(frames, nav_shape)
    if len(scan) != 2:
        raise ValueError(f"nav_shape: expected (y, x), found {scan}")
    first, every = alike(frames)
    side, bits = first.shape[-1], 8 * first.itemsize
    if first.shape != (side, side) or first.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"expected squares of uint8 or uint16, found {first.dtype} {first.shape}")
    magic = magic or (258 if bits == 8 else 259)
    if magic == 259:
        note += f"\r\nBlo Bit Depth: {bits} bits\r\n"
    count = math.prod(scan)
    data = -(-(_VBF + count) // 16) * 16
    means = bytearray()
    sizes = (data, 131141, side, 0, *scan[::-1], 150)
    scales = (*step[::-1], 200_000, sdp, 2000, 42_340.5)
    head = b"IMGBLO" + struct.pack(f"{order}HIIIHHHHHddIHId", magic, _VBF, *sizes, *scales)
    head = (head.ljust(_NOTE, b"\0") + note.encode("latin1")).ljust(_VBF, b"\0")

    def record(number: int, frame: Array) -> bytes:
        means.append(int(frame.mean()) >> (bits - 8))
        return b"\xaa\x55" + struct.pack(f"{order}I", number) + pixels_of(frame, order)

    def header(_count: int) -> bytes:
        return (head + means).ljust(data, b"\0")

    write_records(path, every, record, header=header, count=count)
    return Path(path)
