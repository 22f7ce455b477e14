"""Write Merlin (Medipix3) MIB acquisitions: `.mib` files with a `.hdr` file beside them.

The layout follows captures of Merlin single and quad cameras, and what independent readers of
the format make of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from dask_tiled.testing.frames import Array, Frames, StrPath, alike
from dask_tiled.testing.mib_headers import Camera
from dask_tiled.testing.mib_pixels import encode_frame
from dask_tiled.testing.records import in_files, write_records


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
) -> Path:
    """Write integer frames, as they are to be read back, to a Merlin `.mib` file with its `.hdr`.

    Parameters
    ----------
    kind
        Pixel type: "U08", "U16" or "U32" (processed by the camera: big-endian, in the order of
        the picture), or "R64" (raw counter words). Raw frames are as wide as whole 64-bit words:
        64, 8, 4, 4 pixels for 1, 6, 12, 24 bits, and twice that for four chips.
    depth
        Counter depth in bits, which limits the values of raw frames. By default 6 for "U08"
        (1 is possible), 12 for "U16" and "R64", 24 for "U32"; 1, 6, 12 or 24 for "R64".
    quad
        Four chips in a square rather than one chip. 24-bit raw frames of four chips are written
        as the other rules suggest: as two four-chip 12-bit images. No capture confirms this.
    layout
        Sensor layout as the header gives it, by default "1x1" or "2x2". With "2x2G", processed
        frames include the gap between the chips (514 x 514); raw frames never do.
    header_size
        Size of each frame header in bytes, by default 384 for one chip and 768 for four.
    dacs
        Whether the frame headers give thresholds and DAC values.
    first_sequence
        Sequence number of the first frame.
    nav_shape
        Scan shape that the `.hdr` file gives, by default that of the frames. It may differ from
        the number of frames, as for a scan that was stopped, or end in 1, as for a scan with one
        trigger for each pixel.
    scan_keys
        Whether the `.hdr` file gives "ScanX" and "ScanY".
    """
    path = Path(path)
    sizes = (header_size or 0, dacs, first_sequence)
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
    """Write frames to several `.mib` files, whose sequence numbers go on from file to file.

    Parameters
    ----------
    prefix
        Path without number and extension: "scan" gives "scan1.mib", "scan2.mib", ... and
        "scan.hdr".
    digits
        Number of digits to which the file numbers are filled with zeros.
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
    camera.header(0, first.shape)  # refused before any file is touched

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
