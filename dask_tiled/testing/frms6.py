"""Write FRMS6 sets of PNDetector's pnCCD: dark frames, files of frames, and a `.hdr` file.

Layout after the descriptions of public readers; nothing is shared with the package's own.
"""

from __future__ import annotations

import struct
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dask_tiled.testing.frames import Array, Frames, iter_frames

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

FILE_HEADER, FRAME_HEADER = 1024, 64


def write_frms6(
    base: str | os.PathLike[str],
    frames: Frames,
    *,
    dark: Frames,
    scan_shape: tuple[int, int],
    binning: int = 1,
    frames_per_file: int | None = None,
    counted: bool = True,
) -> list[Path]:
    """Write frames as the camera does: each of its rows holds one row of both chips.

    Parameters
    ----------
    base
        Path of the files without what tells them apart: ``scan`` becomes ``scan.hdr``,
        ``scan_000.frms6`` with the dark frames, ``scan_001.frms6`` and so on. Existing ones are
        replaced.
    frames
        Frames as they lie on the detector, of an even number of rows: array of shape nav + (y, x),
        or iterable of such frames, of integers that fit into 16 bits; gone through once, one frame
        in memory at a time. Binned rows are there once, though they are shown several times.
    dark
        The dark frames, of the same shape.
    scan_shape
        Size of the scan in the ``.hdr`` file.
    binning
        How many rows of the detector the camera has added up to one.
    frames_per_file
        By default all frames are in one file.
    counted
        Whether the files tell how many frames they hold; old ones do not.

    Returns
    -------
    list of pathlib.Path
        The ``.frms6`` files, the one with the dark frames first.

    Raises
    ------
    ValueError
        If frames differ in shape, have an odd number of rows, or do not fit into 16 bits.
    """
    base = Path(base)
    paths: list[Path] = []
    counts = []
    pending = iter_frames(frames)
    batch: Iterable[Array] = iter_frames(dark)
    while True:
        path = base.with_name(f"{base.name}_{len(paths):03}.frms6")
        counts.append(_write_file(path, batch, counted=counted))
        paths.append(path)
        first = next(pending, None)
        if first is None:
            break
        rest = None if frames_per_file is None else frames_per_file - 1
        batch = chain([first], islice(pending, rest))
    shape = _shape_of(paths[0])
    lines = [
        "[measurementInfo]",
        f"darkFrames = {counts[0]}",
        "dwellTimeMicroseconds = 1000",
        "gain = 16",
        f'readoutMode = "bin: {binning}, windowing: {shape[0] * binning} x {shape[1]}"',
        f"signalFrames = {sum(counts[1:])}",
        f"STEMImageSize = {scan_shape[0]}x{scan_shape[1]}",
    ]
    base.with_name(f"{base.name}.hdr").write_text("\n".join(lines) + "\n", encoding="ascii")
    return paths


def _write_file(path: Path, frames: Iterable[Array], *, counted: bool) -> int:
    """Write one file, and give the number of its frames."""
    count = 0
    shape: tuple[int, ...] | None = None
    with path.open("wb") as file:
        file.write(bytes(FILE_HEADER))
        for frame in frames:
            shape = shape or frame.shape
            if frame.shape != shape or frame.ndim != 2 or frame.shape[0] % 2:
                raise ValueError(f"expected an even number of rows as in {shape}: {frame.shape}")
            if frame.dtype.kind not in "iu" or frame.min() < 0 or frame.max() > 0xFFFF:
                raise ValueError(f"expected integers of 16 bits, found {frame.dtype}")
            header = struct.pack("<4xIII12x36s", 1600000000 + count, 250, count, b"a frame header")
            file.write(header)
            file.write(_fold(frame).astype("<u2").tobytes())
            count += 1
        if shape is None:
            raise ValueError("expected at least one frame in each file, found none")
        height, width = shape[0] // 2, 2 * shape[1]
        head = struct.pack("<HH3xB80sHH", FILE_HEADER, FRAME_HEADER, 6, b"pnCCD", width, height)
        file.seek(0)
        file.write(head + struct.pack("<928sI", b"a file header", count if counted else 0))
    return count


def _fold(frame: Array) -> Array:
    """Put the chips side by side; the lower one is mounted upside down."""
    top, bottom = np.split(frame, 2)
    return np.hstack([top, np.rot90(bottom, 2)])


def _shape_of(path: Path) -> tuple[int, int]:
    with path.open("rb") as file:
        width, height = struct.unpack_from("<HH", file.read(92), 88)
    return 2 * height, width // 2
