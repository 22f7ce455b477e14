"""Write Merlin (Medipix3) MIB acquisitions: `.mib` files with a `.hdr` file beside them.

The layout follows captures of Merlin single and quad cameras, and what independent readers of
the format make of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING

from dask_tiled.testing.frames import Array, Frames, iter_frames
from dask_tiled.testing.mib_headers import frame_header, hdr_text
from dask_tiled.testing.mib_pixels import DEPTHS, check_frame, encode_frame, stored_shape

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence


def write_mib(
    path: str | os.PathLike[str],
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
    """Write frames to one `.mib` file, and the `.hdr` file that belongs to it.

    Parameters
    ----------
    path
        The `.mib` file to write; the `.hdr` file has the same stem. Existing files are replaced.
    frames
        Integer frames as they are to be read back: array of shape nav + (height, width), or
        iterable of (height, width) frames; gone through once, one frame in memory at a time.
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
    hdr
        Whether to write the `.hdr` file.
    nav_shape
        Scan shape that the `.hdr` file gives, by default that of the frames. It may differ from
        the number of frames, as for a scan that was stopped, or end in 1, as for a scan with one
        trigger for each pixel.
    scan_keys
        Whether the `.hdr` file gives "ScanX" and "ScanY".

    Returns
    -------
    pathlib.Path
        The `.mib` file.

    Raises
    ------
    TypeError
        If the frames are not integers.
    ValueError
        If there are no frames, they differ in shape or do not fit the options, or the header
        text does not fit into `header_size`.
    """
    path = Path(path)
    acquisition, pixels = _prepare(
        frames,
        kind=kind,
        depth=depth,
        quad=quad,
        layout=layout,
        header_size=header_size,
        dacs=dacs,
        first_sequence=first_sequence,
    )
    written = acquisition.write(path, pixels, 0)
    if hdr:
        scan_shape = _scan_shape(nav_shape, frames, written)
        path.with_suffix(".hdr").write_bytes(acquisition.hdr(scan_shape, scan_keys=scan_keys))
    return path


def write_mib_series(
    prefix: str | os.PathLike[str],
    frames: Frames,
    *,
    frames_per_file: int,
    digits: int = 1,
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
) -> list[Path]:
    """Write frames to several `.mib` files, whose sequence numbers go on from file to file.

    Parameters
    ----------
    prefix
        Path without number and extension: "scan" gives "scan1.mib", "scan2.mib", ... and
        "scan.hdr".
    frames
        As for `write_mib`.
    frames_per_file
        Number of frames in each file but the last, which has the rest.
    digits
        Number of digits to which the file numbers are filled with zeros.
    kind, depth, quad, layout, header_size, dacs, first_sequence, hdr, nav_shape, scan_keys
        As for `write_mib`.

    Returns
    -------
    list of pathlib.Path
        The `.mib` files in the order of their frames.

    Raises
    ------
    TypeError, ValueError
        As for `write_mib`; ValueError also if `frames_per_file` is below 1.
    """
    if frames_per_file < 1:
        raise ValueError(f"frames_per_file: expected 1 or more, found {frames_per_file}")
    prefix = Path(prefix)
    acquisition, pixels = _prepare(
        frames,
        kind=kind,
        depth=depth,
        quad=quad,
        layout=layout,
        header_size=header_size,
        dacs=dacs,
        first_sequence=first_sequence,
    )
    paths: list[Path] = []
    written = 0
    for number in count(1):
        first = next(pixels, None)
        if first is None:
            break
        path = prefix.with_name(f"{prefix.name}{number:0{digits}d}.mib")
        of_file = chain([first], islice(pixels, frames_per_file - 1))
        written += acquisition.write(path, of_file, written)
        paths.append(path)
    if hdr:
        scan_shape = _scan_shape(nav_shape, frames, written)
        hdr_path = prefix.with_name(f"{prefix.name}.hdr")
        hdr_path.write_bytes(acquisition.hdr(scan_shape, scan_keys=scan_keys))
    return paths


@dataclass(frozen=True)
class _Acquisition:
    """What all frames of an acquisition have in common."""

    shape: tuple[int, ...]
    kind: str
    depth: int
    quad: bool
    layout: str
    header_size: int
    dacs: bool
    first_sequence: int

    @property
    def chips(self) -> int:
        return 4 if self.quad else 1

    def header(self, index: int) -> bytes:
        return frame_header(
            index=index,
            sequence=self.first_sequence + index,
            size=self.header_size,
            chips=self.chips,
            stored=stored_shape(self.shape, kind=self.kind, depth=self.depth, quad=self.quad),
            kind=self.kind,
            layout=self.layout,
            depth=self.depth,
            dacs=self.dacs,
        )

    def write(self, path: Path, frames: Iterable[Array], start: int) -> int:
        """Write `frames` to one file, the first as frame `start`; return their number."""
        index = start
        with path.open("wb") as file:
            for frame in frames:
                if frame.shape != self.shape:
                    raise ValueError(
                        f"frame {index}: expected shape {self.shape}, found {frame.shape}"
                    )
                check_frame(frame, kind=self.kind, depth=self.depth)
                file.write(self.header(index))
                file.write(encode_frame(frame, kind=self.kind, depth=self.depth, quad=self.quad))
                index += 1
        return index - start

    def hdr(self, nav_shape: tuple[int, ...], *, scan_keys: bool) -> bytes:
        return hdr_text(
            nav_shape, chips=self.chips, layout=self.layout, depth=self.depth, scan_keys=scan_keys
        )


def _prepare(
    frames: Frames,
    *,
    kind: str,
    depth: int | None,
    quad: bool,
    layout: str | None,
    header_size: int | None,
    dacs: bool,
    first_sequence: int,
) -> tuple[_Acquisition, Iterator[Array]]:
    """Check the options against the first frame, before any file is touched."""
    if kind not in DEPTHS:
        raise ValueError(f"kind: expected one of {', '.join(DEPTHS)}, found {kind!r}")
    if depth is None:
        depth = DEPTHS[kind][0]
    if depth not in DEPTHS[kind]:
        raise ValueError(f"depth: expected one of {DEPTHS[kind]} for {kind}, found {depth}")
    if layout is None:
        layout = "2x2" if quad else "1x1"
    if not re.fullmatch(r"[0-9N]x[0-9]G?", layout):
        raise ValueError(f"layout: expected one like '2x2' or '2x2G', found {layout!r}")
    if header_size is None:
        header_size = 768 if quad else 384
    pixels = iter_frames(frames)
    first = next(pixels, None)
    if first is None:
        raise ValueError("expected at least one frame, found none")
    acquisition = _Acquisition(
        first.shape, kind, depth, quad, layout, header_size, dacs, first_sequence
    )
    acquisition.header(0)
    return acquisition, chain([first], pixels)


def _scan_shape(nav_shape: Sequence[int] | None, frames: Frames, written: int) -> tuple[int, ...]:
    if nav_shape is None:
        nav_shape = getattr(frames, "shape", ())[:-2]
    return tuple(nav_shape) or (written,)
