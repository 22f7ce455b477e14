"""Writer of FRMS6 sets of PNDetector's pnCCD: dark frames, frame files and a `.hdr` file."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np

from dask_tiled.model.indexing import Array
from dask_tiled.testing.detached import lines_of
from dask_tiled.testing.frames import Frames, StrPath, alike, iter_frames
from dask_tiled.testing.records import in_files, write_records

FILE_HEADER, FRAME_HEADER = 1024, 64


def write_frms6(
    base: StrPath,
    frames: Frames,
    *,
    dark: Frames,
    scan_shape: tuple[int, int],
    binning: int = 1,
    frames_per_file: int | None = None,
    counted: bool = True,
) -> list[Path]:
    """Write an FRMS6 set of PNDetector's pnCCD, whose stored rows hold one row of each chip.

    Frames and dark frames are given in detector orientation, with an even number of rows, as
    integers that fit in 16 bits. Binned rows are given once.

    Parameters
    ----------
    base
        Common start of the paths: ``scan`` gives ``scan.hdr``, ``scan_000.frms6`` with the dark
        frames, ``scan_001.frms6`` and so on.
    dark
        The dark frames.
    scan_shape
        Size of the scan in the ``.hdr`` file.
    binning
        Number of detector rows that the camera summed into one row.
    counted
        Whether the files hold their number of frames; old files do not.
    """
    base = Path(base)
    paths: list[Path] = []
    counts = []
    first, darks = alike(dark)
    for members in chain([darks], in_files(iter_frames(frames), frames_per_file)):
        paths.append(base.with_name(f"{base.name}_{len(paths):03}.frms6"))
        counts.append(_write_file(paths[-1], members, counted=counted))
    keys: dict[str, object]
    keys = {"darkFrames": counts[0], "dwellTimeMicroseconds": 1000, "gain": 16}
    mode = f"bin: {binning}, windowing: {len(first) * binning} x {first.shape[1]}"
    keys |= {"readoutMode": f'"{mode}"', "signalFrames": sum(counts[1:])}
    keys |= {"STEMImageSize": f"{scan_shape[0]}x{scan_shape[1]}"}
    text = "[measurementInfo]\n" + lines_of(keys, " = ")
    base.with_name(f"{base.name}.hdr").write_text(text, encoding="ascii")
    return paths


def _write_file(path: Path, frames: Iterable[Array], *, counted: bool) -> int:
    """Write one file and return its number of frames."""
    first, every = alike(frames)
    if first.ndim != 2 or len(first) % 2:
        raise ValueError(f"expected frames of an even number of rows, found {first.shape}")
    sizes = (len(first) // 2, 2 * first.shape[1])

    def header(count: int) -> bytes:
        head = struct.pack("<HH3xB80sHH", FILE_HEADER, FRAME_HEADER, 6, b"pnCCD", *sizes[::-1])
        return head + struct.pack("<928sI", b"a file header", count if counted else 0)

    def record(number: int, frame: Array) -> bytes:
        if frame.dtype.kind not in "iu" or frame.min() < 0 or frame.max() > 0xFFFF:
            raise ValueError(f"expected integers of 16 bits, found {frame.dtype}")
        head = struct.pack("<4xIII12x36s", 1600000000 + number, 250, number, b"a frame header")
        upper, lower = np.split(frame, 2)  # chips; the lower one is stored upside down
        return head + np.hstack([upper, np.rot90(lower, 2)]).astype("<u2").tobytes()

    return write_records(path, every, record, header=header)
