"""Writer of Norpix sequences and of the files that Direct Electron cameras add."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.model.indexing import Array
from dask_tiled.testing.frames import Frames, StrPath, alike, pixels_of
from dask_tiled.testing.records import write_records

_ALIGNMENT = {4: 512, 5: 8192}
_FIRST = {4: 1024, 5: 8192}


def write_seq(
    path: StrPath,
    frames: Frames,
    *,
    version: int = 5,
    depth: int | None = None,
    promised: int | None = None,
    room: int = 0,
    compression: int = 0,
    image_format: int = 100,
) -> Path:
    """Write a Norpix sequence of unsigned frames, each followed by its time stamp and padding.

    Parameters
    ----------
    version
        4, with 1024 bytes before the first frame, or 5, with 8192 and finer time stamps.
    depth
        Bit depth of the camera, by default all bits of a stored pixel.
    promised
        Number of frames in the header, by default the number written; 0 means unknown.
    room
        Number of preallocated frames of zeros at the end.
    compression, image_format
        Values for the header. Only 0 and 100 are true: frames are neither compressed nor coloured.
    """
    path = Path(path)
    first, every = alike(frames)
    if first.dtype.kind != "u":
        raise ValueError(f"expected unsigned frames, found {first.dtype}")
    unit, (height, width), bits = _ALIGNMENT[version], first.shape, 8 * first.itemsize
    stride = -(-(first.nbytes + 8) // unit) * unit

    def record(number: int, frame: Array) -> bytes:
        stamp = struct.pack("<IHH", 1_660_245_687, number % 1000, 646)
        return (pixels_of(frame) + stamp[: 8 if version >= 5 else 6]).ljust(stride, b"\xfe")

    def header(count: int) -> bytes:
        names = ("Norpix seq".encode("utf-16-le"), version, 1024, "synthetic".encode("utf-16-le"))
        sizes = (width, height, bits, depth or bits, first.nbytes, image_format)
        frames = (count if promised is None else promised, 0, stride, 30.0)
        head = struct.pack("<I24sii512s9Id", 0xFEED, *names, *sizes, *frames)
        head += struct.pack("<i3IiiiIiHH", 0, 0, 0, 16, 0, 0, 0, compression, 0, 0, 0)
        return head.ljust(_FIRST[version], b"\0")

    write_records(path, every, record, header=header)
    with path.open("ab") as file:
        file.write(bytes(room * stride))
    return path


def write_seq_corrections(
    path: StrPath,
    *,
    dark: npt.ArrayLike | None = None,
    gain: npt.ArrayLike | None = None,
    maps: Sequence[dict[str, Any]] = (),
    shape: tuple[int, int] = (0, 0),
    offset: tuple[int, int] = (0, 0),
    binning: int = 1,
    at: int = 272,
    sections: int = 32766,
) -> list[Path]:
    """Write the correction files of a Direct Electron sequence and return their paths.

    Parameters
    ----------
    path
        The sequence, named ``*.seq`` or ``*.seq.seq``. Existing files beside it are replaced.
    dark, gain
        Frames for the ``.dark.mrc`` and ``.gain.mrc`` files; by default there are none.
    maps
        Maps of bad pixels: attributes of each map, for example ``{"Rows": 8, "Columns": 8,
        "Binning": 2}``, with the attributes of its defects as a list under ``"defects"``. By
        default there is no map.
    shape, offset, binning
        Contents of the ``.metadata`` file: shape of the sensor region in the frames, and its first
        pixel, (y, x), before binning.
    at
        Position of these values in the ``.metadata`` file in bytes; it differs between cameras.
    sections
        Number of sections in the headers of the ``.mrc`` files: by default far more than the one
        they hold, as in the files of a camera.
    """
    root = str(path).removesuffix(".seq").removesuffix(".seq") + ".seq"
    references = {f"{root}.dark.mrc": dark, f"{root}.gain.mrc": gain}
    files = {
        name: _reference(np.asarray(frame), sections)
        for name, frame in references.items()
        if frame is not None
    }
    if maps:
        xml = '<?xml version="1.0" encoding="UTF-8" standalone="yes" ?>\n<Configuration>'
        xml += f"<BadPixels>{''.join(map(_map_text, maps))}</BadPixels></Configuration>"
        files[f"{root}.Config.Metadata.xml"] = xml.encode()
        record = struct.pack("<11i?", 208, 16, *shape[::-1], *offset[::-1], binning, 12, 0, 0, 0, 0)
        header = struct.pack("<4I", 1, 256, 1, 224).ljust(at, b"\0")
        files[f"{root}.metadata"] = (header + record).ljust(512, b"\0")
    for name, content in files.items():
        Path(name).write_bytes(content)
    return list(map(Path, files))


def _reference(frame: Array, sections: int) -> bytes:
    height, width = frame.shape
    header = struct.pack("<10i", width, height, sections, 2, 0, 0, 0, width, height, 1)
    header += struct.pack("<3i3f3i", width, height, 1, 90, 90, 90, 1, 2, 3)
    header = header.ljust(208, b"\0") + b"MAP DA\0\0"
    return header.ljust(1024, b"\0") + frame.astype("<f4").tobytes() + bytes(512)


def _map_text(attributes: dict[str, Any]) -> str:
    others = {key: value for key, value in attributes.items() if key != "defects"}
    defects = "".join(f"<Defect {_text(defect)}/>" for defect in attributes.get("defects", ()))
    return f"<BadPixelMap {_text(others)}>{defects}</BadPixelMap>"


def _text(attributes: dict[str, Any]) -> str:
    return " ".join(f'{key}="{value}"' for key, value in attributes.items())
