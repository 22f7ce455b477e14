"""Writer of MRC files (MRC2014, IMOD) and of movies of Direct Electron cameras."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dask_tiled.testing.frames import Frames, StrPath, alike, pixels_of
from dask_tiled.testing.records import write_records

MODES = {"i1": 0, "u1": 0, "i2": 1, "f4": 2, "c8": 4, "u2": 6, "f2": 12}


def write_mrc(
    path: StrPath,
    frames: Frames,
    *,
    byte_order: Literal["<", ">"] = "<",
    stamp: bool = True,
    imod: bool | None = None,
    space_group: int = 0,
    depth: int | None = None,
    pixel_size: Sequence[float] = (0.0, 0.0, 0.0),
    axes: tuple[int, int, int] = (1, 2, 3),
    origin: Sequence[float] = (0.0, 0.0, 0.0),
    extended: bytes = b"",
    extended_type: bytes = b"",
    sig_dims: int = 2,
) -> Path:
    """Write frames to one MRC file.

    Frames are int8, uint8, int16, uint16, float16, float32 or complex64. With ``sig_dims=3``, int16
    frames of shape (y, x, 2) are written in mode 3, complex numbers of two int16.

    Parameters
    ----------
    stamp
        Whether the header has a machine stamp and the map identifier; old files have neither.
    imod
        Whether the header has IMOD's stamp, whose flags distinguish signed from unsigned bytes; by
        default for uint8 only.
    space_group
        0 for a stack of images, 1 for a volume, 401 for a stack of volumes.
    depth
        MZ; by default 1 for images and all sections otherwise.
    pixel_size, origin
        Pixel size and origin along x, y and z of the cell, in Angstrom.
    axes
        MAPC, MAPR and MAPS.
    extended, extended_type
        Extended header and its type, for example ``b"FEI1"``.
    """
    first, every = alike(frames, sig_dims)
    kind = f"{first.dtype.kind}{first.dtype.itemsize}"
    if kind not in MODES:
        raise TypeError(f"expected a dtype that MRC files have, found {first.dtype}")
    mode = 3 if first.ndim == 3 else MODES[kind]
    flags = (1146047817, int(kind == "i1")) if (kind == "u1" if imod is None else imod) else (0, 0)
    stamps = (b"MAP ", b"DD" if byte_order == "<" else b"\x11\x11") if stamp else (b"", b"")

    def header(count: int) -> bytes:
        sizes = (first.shape[1], first.shape[0], count)
        steps = [sizes[axes.index(k)] for k in (1, 2, 3)]
        steps[2] = depth or (1 if space_group == 0 else steps[2])
        cell = (size * n for size, n in zip(pixel_size, steps, strict=True))
        fields = (*sizes, mode, *steps, *cell, 90, 90, 90, *axes, 0, -1, -2)  # not determined
        kinds = (space_group, len(extended), extended_type, 20140, *flags)
        ends = (*origin, *stamps, -1, 1, b"synthetic".ljust(80))
        form = f"{byte_order}4i12x3i6f3i3f2i8x4si40x2i36x3f4s4sfi80s"
        return struct.pack(form, *fields, *kinds, *ends).ljust(1024, b"\0") + extended

    write_records(path, every, lambda _, frame: pixels_of(frame, byte_order), header=header)
    return Path(path)


def write_direct_electron(
    folder: StrPath,
    frames: Frames,
    info: Mapping[str, object],
    *,
    coordinates: Sequence[tuple[int, int]] | None = None,
    name: str = "20250101_00001",
    **options: Any,
) -> Path:
    """Write a movie of a Direct Electron camera and its ``_info.txt`` file.

    Parameters
    ----------
    folder
        Folder of ``<name>_movie.mrc`` and the files beside it.
    info
        Keys and values of the ``_info.txt`` file.
    coordinates
        x and y of each frame, for a ``_scan_coordinates.csv`` file.
    name
        Start of the file names.
    **options
        As for `write_mrc`.
    """
    stem = Path(folder) / name
    lines = [f"{key:<64}= {value}\n" for key, value in info.items()]
    stem.with_name(f"{name}_info.txt").write_text("".join(lines), "utf8")
    if coordinates is not None:
        pairs = [f"{x},{y}\n" for x, y in coordinates]
        stem.with_name(f"{name}_scan_coordinates.csv").write_text("".join(pairs), "utf8")
    return write_mrc(stem.with_name(f"{name}_movie.mrc"), frames, space_group=1, **options)
