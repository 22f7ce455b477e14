"""Texts of Merlin (Medipix3) MIB acquisitions: frame headers, and the `.hdr` file beside them.

Field by field as the camera's software writes them; times, thresholds and settings are constants
or counted, so that the same frames always give the same file.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from dask_tiled.testing.mib_pixels import DEPTHS, stored_shape

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
    """What all frames of an acquisition have in common; what is empty is as usual."""

    kind: str = "U16"
    depth: int = 0
    quad: bool = False
    layout: str = ""
    header_size: int = 0
    dacs: bool = True
    first_sequence: int = 1

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
        """Return the header in front of a frame: comma separated text, filled with NUL bytes.

        The text ends with a comma, so that the filling is a field of its own.
        """
        time, chips = _START + index * _EXPOSURE, 4 if self.quad else 1
        height, width = stored_shape(shape, kind=self.kind, depth=self.depth, quad=self.quad)
        # Raw data tells which of its two counters a chip read out; 24 bits take both.
        counter = index % 2 if self.kind == "R64" and self.depth != 24 else 0
        settings = [_THRESHOLDS, *[f"3RX,{_DACS}"] * chips] if self.dacs else [""]
        fields = [
            f"MQ1,{self.first_sequence + index:06d},{self.header_size:05d},{chips:02d}",
            f"{width:04d},{height:04d},{self.kind},{self.layout:>6},{2**chips - 1:02X}",
            time.isoformat(" ", "microseconds"),
            f"{_EXPOSURE.total_seconds():.6f},{counter},0,0",
            *settings,
            "MQ1A",
            time.isoformat("T", "microseconds") + "000Z",
            f"{_EXPOSURE.microseconds * 1000}ns,{self.depth},",
        ]
        text, size = ",".join(fields).encode("ascii"), self.header_size
        if not len(text) < size < 100_000:
            raise ValueError(f"header_size: expected {len(text) + 1} to 99999 bytes, found {size}")
        return text.ljust(size, b"\0")

    def hdr(self, nav_shape: tuple[int, ...], *, scan_keys: bool) -> bytes:
        """Return the contents of a `.hdr` file: lines of key and value, filled with spaces."""
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
