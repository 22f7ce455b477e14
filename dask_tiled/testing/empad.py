"""Writer of EMPAD scans and series: an `.xml` file and the `.raw` file it names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import quoteattr

import numpy as np

from dask_tiled.model.indexing import Array
from dask_tiled.testing.frames import Frames, StrPath, iter_frames, nav_shape_of, same_kind
from dask_tiled.testing.records import write_records

_SIDE = 128
_STALE = (512, 512)  # larger than any test scan


def write_empad(
    path: StrPath,
    frames: Frames,
    *,
    nav_shape: tuple[int, ...] | None = None,
    mode: Literal["acquire", "search"] | None = "acquire",
    raw_name: str | None = None,
    named_as: str | None = None,
    field_of_view: float | None = 1e-6,
    pixel: float | None = 1.8e-10,
) -> Path:
    """Write an EMPAD scan or series of 128 x 128 frames.

    Two metadata rows follow each frame; they begin with the frame number.

    Parameters
    ----------
    path
        The `.xml` file.
    nav_shape
        Shape of the scan, (y, x), or of a series, (n,).
    mode
        Mode whose scan parameters hold `nav_shape`. The parameters of the other mode, or of both
        modes for None, hold another shape, as in files recorded in search mode.
    raw_name
        Name of the `.raw` file, by default ``scan_xX_yY.raw`` or ``series_xN.raw``.
    named_as
        Name of the `.raw` file in the `.xml` file, for example with the folder of the recording.
    field_of_view
        Field of view of the scan in m; None leaves it out.
    pixel
        Size of a detector pixel, in 1e9 per nm; None leaves it out.
    """
    path = Path(path)
    shape = nav_shape_of(frames, nav_shape)
    if len(shape) not in (1, 2):
        raise ValueError(f"nav_shape: expected (y, x) or (n,), found {shape}")
    if raw_name is None:
        raw_name = "series_x{}.raw" if len(shape) == 1 else "scan_x{1}_y{0}.raw"
        raw_name = raw_name.format(*shape)
    every = same_kind(iter_frames(frames))
    write_records(path.with_name(raw_name), every, _record, count=math.prod(shape))
    parts = [f"<raw_file filename={quoteattr(named_as or raw_name)}/>", _tag("exposure_time", 1)]
    if len(shape) == 1:
        parts += [_tag("type", "series"), _tag("count", shape[0])]
        parts.append(_tag("scan_parameters", _tag("series_count", shape[0])))
    else:
        for name in ("search", "acquire"):
            y, x = shape if name == mode else _STALE
            size = _tag("scan_resolution_x", x) + _tag("scan_resolution_y", y)
            parts.append(f'<scan_parameters mode="{name}">{size}</scan_parameters>')
    fov = None if field_of_view is None else [field_of_view] * 2
    measured = {"optics.get_full_scan_field_of_view": fov, "calibrated_pixelsize": pixel}
    told = [_tag(name, value) for name, value in measured.items() if value is not None]
    parts.append(_tag("iom_measurements", "".join(told)))
    path.write_text(f"<root name={quoteattr(path.stem)}>{''.join(parts)}</root>", "utf8")
    return path


def _tag(name: str, content: object) -> str:
    return f"<{name}>{content}</{name}>"


def _record(number: int, frame: Array) -> bytes:
    if frame.shape != (_SIDE, _SIDE):
        raise ValueError(f"frame {number}: expected {_SIDE} x {_SIDE}, found {frame.shape}")
    footer = np.full((2, _SIDE), -1e30, "<f4")
    footer[0, 0] = number
    return frame.astype("<f4").tobytes() + footer.tobytes()
