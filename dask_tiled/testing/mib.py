"""Writer of Merlin (Medipix3) MIB acquisitions: `.mib` files and a `.hdr` file.

The layout follows recordings of Merlin single and quad cameras, and independent readers. Times and
settings are constant or derived from the frame number: the same frames always produce the same
file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dask_tiled.model.indexing import Array
from dask_tiled.testing.frames import Frames, StrPath, alike
from dask_tiled.testing.mib_pixels import DEPTHS, encode_frame, stored_shape
from dask_tiled.testing.records import in_files, write_records

HDR_SIZE = 2048

_START = datetime(2020, 1, 1, 12, 0, 0)  # noqa: DTZ001 - written once as local time, once as UTC
_EXPOSURE = timedelta(milliseconds=1)
_THRESHOLDS = "2.000000E+0,5.110000E+2" + 6 * ",0.000000E+0"
_DACS = (
    "011,511,000,000,000,000,000,000,175,010,200,125,100,100,"
    "093,100,099,030,128,004,255,140,128,191,179,511,511"
)
_CHIP_IDS = ("W000_A1", "W000_A2", "W000_A3", "W000_A4")


@dataclass
class Camera:
    """Settings shared by all frames of an acquisition."""

    kind: str = "U16"
    depth: int = 0
    quad: bool = False
    layout: str = ""
    header_size: int = 0
    dacs: bool = True
    first_sequence: int = 1
    times: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.kind not in DEPTHS:
            raise ValueError(f"kind: expected one of {', '.join(DEPTHS)}, found {self.kind!r}")
        depths = DEPTHS[self.kind]
        self.depth = self.depth or depths[0]
        if self.depth not in depths:
            raise ValueError(f"depth: expected one of {depths} for {self.kind}, found {self.depth}")
        self.layout = self.layout or ("2x2" if self.quad else "1x1")
        if not re.fullmatch(r"[0-9N]x[0-9]G?", self.layout):
            raise ValueError(f"layout: expected one like '2x2' or '2x2G', found {self.layout!r}")
        self.header_size = self.header_size or (768 if self.quad else 384)

    def header(self, index: int, shape: tuple[int, ...]) -> bytes:
        """Return the header of a frame: comma-separated text, padded with NUL bytes.

        The text ends with a comma, so that the padding is a field of its own.
        """
        time, chips = _START + index * _EXPOSURE, 4 if self.quad else 1
        height, width = stored_shape(shape, kind=self.kind, depth=self.depth, quad=self.quad)
        # Raw data records which of its two counters a chip read out; 24 bits use both.
        counter = index % 2 if self.kind == "R64" and self.depth != 24 else 0
        settings = [_THRESHOLDS, *[f"3RX,{_DACS}"] * chips] if self.dacs else [""]
        fields = [
            f"MQ1,{self.first_sequence + index:06d},{self.header_size:05d},{chips:02d}",
            f"{width:04d},{height:04d},{self.kind},{self.layout:>6},{2**chips - 1:02X}",
            time.isoformat(" ", "microseconds"),
            f"{_EXPOSURE.total_seconds():.6f},{counter},0,0",
            *settings,
            "MQ1A",
            f"{np.datetime64(_START, 'ns') + self._time(index)}Z",
            f"{_EXPOSURE.microseconds * 1000}ns,{self.depth},",
        ]
        text, size = ",".join(fields).encode("ascii"), self.header_size
        if not len(text) < size < 100_000:
            raise ValueError(f"header_size: expected {len(text) + 1} to 99999 bytes, found {size}")
        return text.ljust(size, b"\0")

    def _time(self, index: int) -> np.timedelta64:
        step = _EXPOSURE // timedelta(microseconds=1)
        return np.timedelta64(self.times[index] if self.times else 1000 * step * index, "ns")

    def hdr(self, nav_shape: tuple[int, ...], *, scan_keys: bool) -> bytes:
        """Return the contents of a `.hdr` file: lines of key and value, padded with spaces."""
        frames, chips = math.prod(nav_shape), 4 if self.quad else 1
        config = r"c:\Merlin_Quad_Config\default\Default_SPM"
        entries = {
            "Time and Date Stamp (day, mnth, yr, hr, min, s)": f"{_START:%d/%m/%Y %H:%M:%S}",
            "Chip ID": ",".join(_CHIP_IDS[:chips] + (" - ",) * (4 - chips)),
            "Chip Type (Medipix 3.0, Medipix 3.1, Medipix 3RX)": "Medipix 3RX",
            "Assembly Size (NX1, 2X2)": f"{self.layout:>6}",
            "Chip Mode  (SPM, CSM, CM, CSCM)": "SPM",
            "Counter Depth (number)": str(self.depth),
            "Gain": "SLGM",
            "Active Counters": "Alternating" if self.depth != 24 and frames > 1 else "Counter 0",
            "Thresholds (keV)": _THRESHOLDS,
            "DACs": "; ".join([_DACS] * chips + [""] * (4 - chips)),
            "bpc File": ",".join([f"{config}.bpc"] * 4),
            "DAC File": ",".join([f"{config}.dacs"] * 4),
            "Gap Fill Mode": "Distribute" if self.layout.endswith("G") else "None",
            "Flat Field File": "None",
            "Dead Time File": "Dummy (C:\\<NUL>\\)",
            "Acquisition Type (Normal, Th_scan, Config)": "Normal",
            "Frames in Acquisition (Number)": str(frames),
            "Frames per Trigger (Number)": str(nav_shape[-1]),
            "Trigger Start (Positive, Negative, Internal)": "Internal",
            "Trigger Stop (Positive, Negative, Internal)": "Internal",
            "Sensor Bias (V)": "120 V",
            "Sensor Polarity (Positive, Negative)": "Positive",
            "Temperature (C)": "Board Temp 40.000000 Deg C",
            "Humidity (%)": "Board Humidity 10.000000 ",
            "Medipix Clock (MHz)": "180MHz",
            "Readout System": "Merlin Quad",
            "Software Version": "0.77",
        }
        if scan_keys:
            if len(nav_shape) != 2:
                raise ValueError(f"scan_keys: expected a nav_shape (y, x), found {nav_shape}")
            entries |= {"ScanX": str(nav_shape[1]), "ScanY": str(nav_shape[0])}
        lines = ["HDR,\t", *(f"{key}:\t{value}" for key, value in entries.items()), "End\t"]
        return "\r\n".join(lines).encode("ascii").ljust(HDR_SIZE)


def write_mib(
    path: StrPath,
    frames: Frames,
    *,
    kind: str = "U16",
    depth: int | None = None,
    quad: bool = False,
    layout: str | None = None,
    header_size: int | None = None,
    dacs: bool = True,
    first_sequence: int = 1,
    hdr: bool = True,
    nav_shape: Sequence[int] | None = None,
    scan_keys: bool = False,
    times: Sequence[int] = (),
) -> Path:
    """Write integer frames to a Merlin `.mib` file with its `.hdr` file.

    Parameters
    ----------
    kind
        Pixel type: "U08", "U16" or "U32" (processed by the camera: big-endian, row by row), or
        "R64" (raw counter words). The width of raw frames is a multiple of a 64-bit word: 64, 8, 4,
        4 pixels for 1, 6, 12, 24 bits, and twice that for four chips.
    depth
        Counter depth in bits, which limits the values of raw frames. By default 6 for "U08"
        (1 is possible), 12 for "U16" and "R64", 24 for "U32"; 1, 6, 12 or 24 for "R64".
    quad
        Four chips in a square rather than one chip. 24-bit raw frames of four chips are written as
        two four-chip 12-bit images, inferred from the other layouts; no recording confirms this.
    layout
        Sensor layout in the header, by default "1x1" or "2x2". With "2x2G", processed frames
        include the gap between the chips (514 x 514); raw frames never do.
    header_size
        Size of each frame header in bytes, by default 384 for one chip and 768 for four.
    dacs
        Whether the frame headers hold thresholds and DAC values.
    first_sequence
        Sequence number of the first frame.
    nav_shape
        Scan shape in the `.hdr` file, by default the shape of the frames. It may differ from the
        number of frames, as for a stopped scan, or end in 1, as for a scan with one trigger per
        pixel.
    scan_keys
        Whether the `.hdr` file holds "ScanX" and "ScanY".
    times
        Times of the frames in ns, by default steps of 1 ms. Only the time in UTC has these steps.
    """
    path = Path(path)
    sizes = (header_size or 0, dacs, first_sequence, times)
    camera = Camera(kind, depth or 0, quad, layout or "", *sizes)
    scan = (path.with_suffix(".hdr") if hdr else None, nav_shape)
    return _write(camera, [path], frames, None, *scan, scan_keys=scan_keys)[0]


def write_mib_series(
    prefix: StrPath,
    frames: Frames,
    *,
    frames_per_file: int,
    digits: int = 1,
    hdr: bool = True,
    nav_shape: Sequence[int] | None = None,
    scan_keys: bool = False,
    **options: Any,
) -> list[Path]:
    """Write frames to several `.mib` files with continuous sequence numbers.

    Parameters
    ----------
    prefix
        Path without number and extension: "scan" gives "scan1.mib", "scan2.mib", ... and
        "scan.hdr".
    digits
        Number of digits to which file numbers are padded with zeros.
    **options
        The other parameters are those of `write_mib`.
    """
    if frames_per_file < 1:
        raise ValueError(f"frames_per_file: expected 1 or more, found {frames_per_file}")
    prefix = Path(prefix)
    paths = (prefix.with_name(f"{prefix.name}{n:0{digits}d}.mib") for n in count(1))
    scan = (prefix.with_name(f"{prefix.name}.hdr") if hdr else None, nav_shape)
    camera = Camera(**options)
    return _write(camera, paths, frames, frames_per_file, *scan, scan_keys=scan_keys)


def _write(
    camera: Camera,
    paths: Iterable[Path],
    frames: Frames,
    frames_per_file: int | None,
    hdr: Path | None,
    nav_shape: Sequence[int] | None,
    *,
    scan_keys: bool,
) -> list[Path]:
    first, every = alike(frames)
    camera.header(0, first.shape)  # raises errors before any file is written

    def record(index: int, frame: Array) -> bytes:
        pixels = encode_frame(frame, kind=camera.kind, depth=camera.depth, quad=camera.quad)
        return camera.header(index, frame.shape) + pixels

    written: list[Path] = []
    number = 0
    for path, members in zip(paths, in_files(every, frames_per_file), strict=False):
        number += write_records(path, members, record, first=number)
        written.append(path)
    if hdr is not None:
        shape = getattr(frames, "shape", ())[:-2] if nav_shape is None else nav_shape
        hdr.write_bytes(camera.hdr(tuple(shape) or (number,), scan_keys=scan_keys))
    return written
