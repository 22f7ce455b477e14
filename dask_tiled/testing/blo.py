"""Write NanoMegas blockfiles."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from dask_tiled.testing.frames import Frames, iter_frames

if TYPE_CHECKING:
    import os

_VBF = 0x1000
_NOTE = 240


def write_blo(
    path: str | os.PathLike[str],
    frames: Frames,
    *,
    nav_shape: tuple[int, int] | None = None,
    order: Literal["<", ">"] = "<",
    magic: int | None = None,
    step: tuple[float, float] = (2.5, 2.0),
    sdp: int = 6226,
    note: str = "Precession angle : ",
) -> Path:
    """Write a blockfile, of 8 or 16 bits as the frames have.

    The virtual bright field holds the mean of each frame, in 8 bits.

    Parameters
    ----------
    path
        The file to write; an existing one is replaced.
    frames
        Array of shape nav + (n, n) of uint8 or uint16, or iterable of such frames; gone through
        once, one frame in memory at a time.
    nav_shape
        Shape of the scan, (y, x), by default that of an array with two navigation axes.
    order
        Byte order of all numbers and pixels.
    magic
        258 or 259, by default 259 for 16 bits. Only 259 says how many bits there are.
    step
        Step of the scan in nm, (y, x).
    sdp
        Pixels of a pattern per centimetre, times 100; 0 says nothing.
    note
        Text between header and images, to which the bits are added.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        If the shape of the scan is neither given nor that of an array, its number of frames is
        not that of the frames, or these are not square, of one shape and dtype, and unsigned.
    """
    path = Path(path)
    scan: tuple[int, ...] = nav_shape or getattr(frames, "shape", ())[:-2]
    if len(scan) != 2:
        raise ValueError(f"nav_shape: expected (y, x), found {scan}")
    count = math.prod(scan)
    data = -(-(_VBF + count) // 16) * 16
    means = bytearray()
    kind: tuple[tuple[int, ...], np.dtype] | None = None
    with path.open("wb") as file:
        file.seek(data)
        for number, frame in enumerate(iter_frames(frames)):
            kind = kind or (frame.shape, frame.dtype)
            side = frame.shape[-1]
            if (frame.shape, frame.dtype) != kind or frame.shape != (side, side):
                raise ValueError(f"frame {number}: {frame.dtype} of shape {frame.shape}")
            if frame.dtype not in (np.uint8, np.uint16):
                raise ValueError(f"expected uint8 or uint16, found {frame.dtype}")
            means.append(int(frame.mean()) >> (8 * frame.itemsize - 8))
            file.write(b"\xaa\x55" + struct.pack(f"{order}I", number))
            file.write(frame.astype(frame.dtype.newbyteorder(order)).tobytes())
        if kind is None or len(means) != count:
            raise ValueError(f"expected {count} frames, found {len(means)}")
        bits = 8 * kind[1].itemsize
        magic = magic or (258 if bits == 8 else 259)
        if magic == 259:
            note += f"\r\nBlo Bit Depth: {bits} bits\r\n"
        header = b"IMGBLO" + struct.pack(
            f"{order}HIIIHHHHHddIHId",
            magic,
            _VBF,
            data,
            131141,
            side,
            0,
            scan[1],
            scan[0],
            150,
            step[1],
            step[0],
            200_000,
            sdp,
            2000,
            42_340.5,
        )
        file.seek(0)
        file.write((header.ljust(_NOTE, b"\0") + note.encode("latin1")).ljust(_VBF, b"\0"))
        file.write(means)
    return path
