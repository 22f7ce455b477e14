"""Writer of TVIPS image series: `.tvips` files, the first of which has a header."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from dask_tiled.model.indexing import Array
from dask_tiled.testing.frames import Frames, StrPath, alike, pixels_of
from dask_tiled.testing.records import in_files, write_records


def write_tvips(
    prefix: StrPath,
    frames: Frames,
    *,
    version: int = 2,
    frame_header: int = 108,
    frames_per_file: int | None = None,
    positions: Sequence[tuple[float, float]] = (),
    rotator: Sequence[int] = (),
    pixel_size: int = 15600,
    interval: int = 20,
) -> list[Path]:
    """Write a uint8 or uint16 TVIPS series: `<prefix>_000.tvips`, `<prefix>_001.tvips`, ...

    Parameters
    ----------
    version
        1, with frame headers of 12 bytes, or 2.
    frame_header
        Size of each frame header of version 2 in bytes.
    positions
        Scan positions (y, x) of the first frames; the others have none. They need frame headers
        of at least 76 bytes.
    rotator
        Rotator indices of the first frames. They need frame headers of at least 52 bytes.
    pixel_size
        Pixel size in nm.
    interval
        Time from one frame to the next, in milliseconds.
    """
    if version not in {1, 2}:
        raise ValueError(f"version: expected 1 or 2, found {version}")
    prefix = Path(prefix)
    size = frame_header if version == 2 else 12
    first, every = alike(frames)
    if first.dtype.kind != "u" or first.dtype.itemsize > 2:
        raise TypeError(f"expected uint8 or uint16, found {first.dtype}")

    def record(number: int, frame: Array) -> bytes:
        head = bytearray(size)
        time = 1_700_000_000_000 + number * interval
        struct.pack_into("<3I", head, 0, number, time // 1000, time % 1000)
        if number < len(rotator):
            struct.pack_into("<I", head, 48, rotator[number])
        if number < len(positions):
            struct.pack_into("<2f", head, 68, *reversed(positions[number]))
        return bytes(head) + pixels_of(frame)

    sizes = (*first.shape[::-1], 8 * first.itemsize, 0, 0, 1, 1, pixel_size, 200, 80, size)
    header = struct.pack("<13i", 256, version, *sizes) + b"TVIPS " * 34
    paths: list[Path] = []
    count = 0
    for members in in_files(every, frames_per_file):
        paths.append(prefix.with_name(f"{prefix.name}_{len(paths):03d}.tvips"))
        count += write_records(paths[-1], members, record, header=header, first=count)
        header = b""
    return paths
