"""Files that Direct Electron's software writes beside movies: ``_info.txt``, scan coordinates.

Layout after files of DE-StreamPix and DE-Server, and the reader of RosettaSciIO.
"""

from __future__ import annotations

import math
import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from dask_tiled.files.paths import in_folder
from dask_tiled.formats import tools
from dask_tiled.formats.tools.files import opened
from dask_tiled.formats.tools.text import local_time, read_pairs, since_1970
from dask_tiled.model.doubts import inferred_scan, unknown_scan
from dask_tiled.model.indexing import Index

KINDS = {
    "movie": re.compile(r".*_movie\.mrc", re.DOTALL),
    "sum": re.compile(r".*_final\.mrc", re.DOTALL),  # of the frames of a movie
    "scan": re.compile(r".+_(?:ext\d+(?:_[^.]*)?|(?:virt)?\d+_[^_]+_[^.]+)\.mrc", re.DOTALL),
}
"""File names by kind; a scan is an image of a virtual or external detector, one pixel per frame."""
EPOCH = "Timestamp (seconds since Epoch)"
DWELL_TIME = "Scan - Dwell Time (microseconds)"
MAX_LINE = 1 << 12  # bytes of a line of coordinates
MAX_SKIPPED = 1 << 12  # lines without coordinates
COORDINATES = re.compile(rb"(\d{1,9})\s*,\s*(\d{1,9})\s*(,.*)?", re.DOTALL)
MAX_PLACES = 1 << 24
HINT = "Pass nav_shape=({},) to read the frames in file order."


PROJECT = "Instrument Project"
ROWS = (
    ("microscope", f"{PROJECT} Name", "", lambda name: None if name == "Unknown" else name),
    ("acquisition_mode", f"{PROJECT} TEMorSTEM Mode", "", {"0": "TEM", "1": "STEM"}.__getitem__),
    ("beam_energy", "Instrument Accelerating Voltage (V)", "V"),
    ("magnification", f"{PROJECT} Magnification"),
    ("camera_length", f"{PROJECT} Camera Length (centimeters)", "cm"),
    ("detector", "Camera Model"),
    ("exposure_time", "Frame Exposure Time (nanoseconds)", "ns"),
    ("dwell_time", DWELL_TIME, "us", None, lambda info: info["Scan - Enable"] == "Enable"),
    ("gain", "ADUs Per Electron"),
    ("gain", "ADUs Per Electron Bin1x"),
    ("date", "", "", lambda x: local_time(x["Local time"], since_1970(x[EPOCH]))),
    ("date", EPOCH, "", since_1970),
)
"""Facts in the ``_info.txt`` file; -1 means unknown."""


class AcquisitionFiles(NamedTuple):
    """The files of an acquisition, and the entries of its ``_info.txt`` file."""

    kind: str  # kind of the opened file
    info: dict[str, str]
    info_file: str
    coordinates_file: str | None

    @property
    def has_unsigned_bytes(self) -> bool:
        """Whether the bytes of a movie are unsigned."""
        told = {value for key, value in self.info.items() if key.endswith("Movie Pixel Format")}
        return self.kind == "movie" and "uint8" in told

    @property
    def scan_shape(self) -> tuple[int, int]:
        """Number of scan positions along y and x; 0 if unknown."""
        roi = "ROI " if self.info.get("Scan - ROI Enable") == "Enable" else ""
        y, x = (int(self.number(f"Scan - {roi}Size {axis}")) for axis in "YX")
        return y, x

    @property
    def scans(self) -> bool:
        """Whether the beam was scanned."""
        return self.info.get("Scan - Enable") == "Enable"

    def number(self, key: str, default: float = 0.0) -> float:
        """Return a number; ``default`` if it is missing, or -1, which means unknown."""
        try:
            value = float(self.info[key])
        except (KeyError, ValueError):
            return default
        return value if math.isfinite(value) and value != -1 else default


def find_session(path: str) -> AcquisitionFiles | None:
    """Find the files of an acquisition, whose names may be shorter than the file's."""
    folder, name = os.path.split(path)
    kind = next((kind for kind, pattern in KINDS.items() if pattern.fullmatch(name)), None)
    if kind is None:
        return None
    parts = name.removesuffix(".mrc").split("_")
    stems = [in_folder(folder, "_".join(parts[:k])) for k in range(len(parts) - 1, 0, -1)]
    info, coordinates = (
        tools.beside("", *(stem + ending for stem in stems))
        for ending in ("_info.txt", "_scan_coordinates.csv")
    )
    if info is None:
        return None
    return AcquisitionFiles(kind, read_pairs(info, "=", "utf8"), info, coordinates)


def show_session(
    desc: tools.Description, session: AcquisitionFiles, *, scan: bool
) -> tools.Description:
    """Apply a session's calibration; with ``scan``, show movie frames in the scan shape."""
    if session.kind != "movie":
        return _show_picture(desc, session)
    desc = desc.with_facts(direct_electron=session.info)
    desc = replace(desc, axes=(_time(session), *_detector(session)))
    if not session.scans or not scan:
        return desc
    if session.info.get("Scan - Type", "Raster") == "Raster":
        return _raster(desc, session)
    if session.coordinates_file is None:
        told_by = "the number of frames; there is no _scan_coordinates.csv file"
        return _in_a_row(desc.with_facts(nav_shape_from=told_by))
    return _custom(desc, session, session.coordinates_file)


def _show_picture(desc: tools.Description, session: AcquisitionFiles) -> tools.Description:
    """Calibrate an image that has the shape of the detector or of the scan."""
    size = "Image Size {} (pixels)"
    axes, shape = _detector(session), tuple(int(session.number(size.format(k))) for k in "YX")
    if session.kind == "scan":
        axes, shape = _scan(session), session.scan_shape
    if desc.sig_shape != shape:
        return desc
    desc = desc.with_facts(direct_electron=session.info)
    return replace(desc, axes=(*desc.axes[: desc.nav_ndim], *axes))


def _raster(desc: tools.Description, session: AcquisitionFiles) -> tools.Description:
    y, x = session.scan_shape
    if min(y, x) < 1:
        return _in_a_row(desc)
    frames = desc.layout.n_frames
    # Only the number of frames shows that a scan was repeated.
    repeats = frames // (y * x) if frames % (y * x) == 0 else 1
    if repeats > 1:
        shape: tuple[int, ...] = repeats, y, x
        why = f"the number of frames is {repeats} times that of the scan {(y, x)}"
        desc = desc.with_doubts(inferred_scan(shape, why))
    else:
        shape = y, x
    return _named(desc.with_scan(shape, session.info_file), session)


def _in_a_row(desc: tools.Description) -> tools.Description:
    """Return the frames of a scan of unknown shape, in doubt."""
    return desc.with_doubts(*unknown_scan(desc.layout.n_frames))


def _custom(desc: tools.Description, session: AcquisitionFiles, path: str) -> tools.Description:
    """Place frames at their scan coordinates; other positions are missing."""
    x, y = read_coordinates(path, desc.layout.n_frames).T
    shape = int(y.max()) + 1, int(x.max()) + 1
    places = y * shape[1] + x
    visited, counts = np.unique(places, return_counts=True)
    repeats = int(counts.max())
    even = bool((counts == repeats).all())
    if (repeats if even else 1) * math.prod(shape) > MAX_PLACES:
        most, found = f"at most {MAX_PLACES} positions", f"{shape}, {repeats} times"
        problem, hint = "the scan is too large", HINT.format(len(x))
        raise tools.CorruptFileError(problem, path=path, expected=most, found=found, hint=hint)
    if not even:
        told_by = "the number of frames; positions are visited unequally often"
        coordinates = {"x": tuple(x.tolist()), "y": tuple(y.tolist())}
        desc = desc.with_facts(nav_shape_from=told_by, scan_coordinates=coordinates)
        return _in_a_row(desc)
    numbers = np.full((repeats, math.prod(shape)), -1, dtype=np.int64)
    numbers[:, visited] = np.argsort(places, kind="stable").reshape(-1, repeats).T
    nav_shape = (repeats, *shape) if repeats > 1 else shape
    desc = desc.with_facts(nav_shape_from=path)
    return _named(desc.with_frames(nav_shape, numbers=numbers.ravel()), session)


def read_coordinates(path: str, frames: int) -> Index:
    """Read the x and y of each frame from a ``_scan_coordinates.csv`` file."""
    found, count, wrong = array("q"), 0, None
    for line in _lines(path):
        match = COORDINATES.fullmatch(line) if count <= frames else None
        if match is None:
            wrong = line[:80].decode("ascii", "replace")
            break
        found.extend((int(match[1]), int(match[2])))
        count += 1
    if wrong is not None or count != frames:
        kind = tools.TruncatedFileError if count > frames else tools.CorruptFileError
        raise kind(
            "the coordinates do not match the frames",
            path=path,
            where=f"line {count + 1}",
            expected=f"{frames} lines of x,y",
            found=f"{count} lines" if wrong is None else wrong,
            hint=HINT.format(frames),
        )
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _lines(path: str) -> Iterator[bytes]:
    """Yield lines that are not empty and not comments; also the first line beyond the limit."""
    skipped = 0
    with opened(path) as file:
        for line in map(bytes.strip, iter(partial(file.readline, MAX_LINE), b"")):
            skipped += not line or line.startswith(b"#")
            if skipped > MAX_SKIPPED or (line and not line.startswith(b"#")):
                yield line


def _named(desc: tools.Description, session: AcquisitionFiles) -> tools.Description:
    """Name and calibrate the axes of a scan, which end with (y, x)."""
    nav = tools.Axis("repeat"), *_scan(session)
    return replace(desc, axes=(*nav[3 - desc.nav_ndim :], *desc.axes[desc.nav_ndim :]))


def _scan(session: AcquisitionFiles) -> tuple[tools.Axis, ...]:
    y, x = (session.number(f"Specimen Pixel Size {axis} (nanometers)") for axis in "YX")
    return tools.Axis.calibrated("scan_y", "nm", y), tools.Axis.calibrated("scan_x", "nm", x)


def _time(session: AcquisitionFiles) -> tools.Axis:
    rate = session.number("Frames Per Second")
    if session.scans or rate <= 0:
        return tools.Axis("frame")
    summed = session.number("Autosave Movie Sum Count", 1.0)
    return tools.Axis.calibrated("time", "s", summed / rate)


def _detector(session: AcquisitionFiles) -> tuple[tools.Axis, ...]:
    """Calibrate the detector: in reciprocal space for scans and diffraction."""
    mode = session.info.get("Instrument Project TEMorSTEM Mode", "-1")
    stem = session.scans if mode == "-1" else mode != "0"
    diffracts = stem or session.number("Instrument Project Camera Length (centimeters)") > 0
    real = "Specimen Pixel Size {} (nanometers)", "nm"
    key, units = ("Diffraction Pixel Size {}", "1/nm") if diffracts else real
    scales = {axis: session.number(key.format(axis.upper())) for axis in "yx"}
    return tuple(tools.Axis.calibrated(axis, units, scale) for axis, scale in scales.items())
