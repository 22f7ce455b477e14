"""Write JEOL's streams of X-ray events."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath
from dask_tiled.testing.jeol import entries_of


def write_pts(
    path: StrPath, counts: npt.ArrayLike, *, lines: int | None = None, pixels: str | None = None
) -> Path:
    """Write a stream of X-ray events; positions without counts are left out, but for lines.

    Parameters
    ----------
    counts
        Numbers of counts, (frames, y, x, 4096 channels).
    lines
        Lines of the last frame to write, by default all.
    pixels
        Size of the scan in the header, such as "64x64", by default that of the counts.
    """
    path, every = Path(path), np.asarray(counts)
    side = every.shape[1]
    step = 4096 // side
    words: list[Any] = []
    for number, frame in enumerate(every):
        last = number == len(every) - 1
        for y, row in enumerate(frame[:lines] if last else frame):
            words.append([0x9000 | y * step])
            for x in np.flatnonzero(row.any(axis=-1)).tolist():
                channels = np.repeat(np.arange(4096), row[x])
                words += [[0x6001, 0x8000 | x * step, 0xA123], 0xB000 | channels[::-1]]
    page: dict[str, Any] = {
        "": "SEM", "SEM": "JEM", "DetT": "EX", "WorkD": 5.5, "ScanSize": np.float32(128),
        "DirAng": 0.0, "ElevAng": 25.0, "MnKaRES": 130.0,
    }  # fmt: skip
    header = {
        "PTTD Param": {
            "Params": {
                "PARAMPAGE0": page,
                "PARAMPAGE1": {"": "EDXRF", "Tpl": {"T1": {"DigZ": 96}, "T2": {"DigZ": 98}}},
            }
        },
        "PTTD Data": {
            "AnalyzableMap MeasData": {
                "Doc": {
                    "CoefA": 0.01,
                    "CoefB": -0.001,
                    "DwellTime(msec)": 0.5,
                    "LiveTime": 1.25,
                    "RealTime": 1.5,
                    "Sweep": len(every),
                },
                "Meas Cond": {"Tpl": "T2", "Pixels": pixels or f"{side}x{side}"},
                "MeasCond": {"AccKV": np.float32(200), "Mag": np.int32(4000)},
            }
        },
    }
    tree = bytes(12) + entries_of(header)
    data = np.concatenate(words).astype("<u2").tobytes()
    start = -(-(305 + len(tree)) // 4096) * 4096
    fields = struct.pack("<IIIIII", 131072, 1, 305, len(tree), start, len(data))
    head = struct.pack("<I", 304) + b"PTTDFILE" + fields
    path.write_bytes((head.ljust(305, b"\0") + tree).ljust(start, b"\0") + data)
    return path
