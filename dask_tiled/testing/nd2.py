"""Write Nikon ND2 files of version 3."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath

_MAP, _END = b"ND2 FILEMAP SIGNATURE NAME 0001!", b"ND2 CHUNK MAP SIGNATURE 0000001!"
_KINDS = {"t": 1, "p": 2, "z": 4}


def write_nd2(
    path: StrPath,
    array: npt.ArrayLike,
    axes: str,
    *,
    channels: Sequence[str] = (),
    colours: Sequence[int] = (),
    positions: Sequence[str] = (),
    pixel_size: float = 0.25,
    step: float = 2.0,
    period: float = 0.5,
    padding: int = 0,
    compressed: bool = False,
    missing: Collection[int] = (),
    version: str = "3.0",
    facts: Mapping[str, Any] | None = None,
    in_turn: Mapping[str, int] | None = None,
) -> Path:
    """Write an ND2 file of version 3.

    Parameters
    ----------
    axes
        A letter for each axis: some of t, p and z, optionally c, then y and x, optionally s.
    channels, positions
        Names of channels and of positions.
    colours
        Colours of the channels, as 0xBBGGRR.
    pixel_size, step, period
        Pixel size and distance of planes in µm, and time between frames in seconds.
    padding
        Bytes that pad each row.
    compressed
        Compress each frame by zlib.
    missing
        Numbers of frames to leave out.
    version
        Version stated in the file.
    facts
        Further metadata of the picture.
    in_turn
        Letters and lengths of loops that take turns with the innermost one.
    """
    path, every = Path(path), np.asarray(array)
    sizes = dict(zip(axes, every.shape, strict=True))
    count, samples = sizes.get("c", 1), sizes.get("s", 1)
    height, width = sizes["y"], sizes["x"]
    shape = (-1, count, height, width, samples)
    frames = every.reshape(shape).transpose(0, 2, 3, 1, 4)
    dtype = every.dtype.newbyteorder("<")
    row = width * count * samples * dtype.itemsize + padding
    names = list(channels) or [f"channel {k}" for k in range(count)]
    told = {"a0": names[0]} if count == 1 else {f"a{k}": name for k, name in enumerate(names)}
    planes: dict[str, dict[str, Any]] = {
        key: {"uiCompCount": samples, "sDescription": name} for key, name in told.items()
    }
    for plane, colour in zip(planes.values(), colours, strict=False):
        plane["uiColor"] = colour
    trees = {
        "ImageAttributesLV!": {
            "SLxImageAttributes": {
                "uiWidth": width, "uiWidthBytes": row, "uiHeight": height,
                "uiComp": count * samples, "uiBpcInMemory": 8 * dtype.itemsize,
                "uiBpcSignificant": 8 * dtype.itemsize, "uiSequenceCount": len(frames),
                "eCompression": 0 if compressed else 2,
            }
        },
        "ImageMetadataSeqLV|0!": {
            "SLxPictureMetadata": {
                "dCalibration": pixel_size, "bCalibrated": True, "dAspect": 1.0,
                "dTimeAbsolute": 2460000.25,
                "sPicturePlanes": {"uiCount": count, "sPlaneNew": planes}, **(facts or {}),
            }
        },
    }  # fmt: skip
    loops = [
        {"eType": _KINDS[axis], "uLoopPars": _loop(axis, size, positions, step, period)}
        for axis, size in sizes.items()
        if axis in _KINDS
    ]
    others = {
        axis: {"eType": _KINDS[axis], "uLoopPars": _loop(axis, size, (), step, period)}
        for axis, size in (in_turn or {}).items()
    }
    if loops:
        trees["ImageMetadataLV!"] = {"SLxExperiment": _nested(loops, others)}
    entries = b""
    with path.open("wb") as file:

        def put(name: bytes, data: bytes, room: int) -> None:
            nonlocal entries
            file.write(bytes(-file.tell() % 4096))
            entries += name + struct.pack("<QQ", file.tell(), len(data))
            file.write(struct.pack("<IIQ", 0x0ABECEDA, room, len(data)) + name.ljust(room, b"\0"))
            file.write(data)

        signature = b"ND2 FILE SIGNATURE CHUNK NAME01!"
        put(signature, f"Ver{version}".encode().ljust(64, b"\0"), 32)
        for number, frame in enumerate(frames):
            if number in missing:
                continue
            rows = np.ascontiguousarray(frame, dtype).reshape(height, -1).view(np.uint8)
            data = np.pad(rows, [(0, 0), (0, padding)], constant_values=0x77).tobytes()
            data = zlib.compress(data) if compressed else data
            time = struct.pack("<d", 1000 * period * number)
            put(f"ImageDataSeq|{number}!".encode(), time + data, 4072)
        for name, tree in trees.items():
            put(name.encode(), b"".join(_value(key, value) for key, value in tree.items()), 48)
        times = 1000 * period * np.arange(len(frames), dtype="<f8")
        put(b"CustomData|AcqTimesCache!", times.tobytes(), 48)
        file.write(bytes(-file.tell() % 4096))
        at = file.tell()
        entries += _END + struct.pack("<QQ", at, 0)
        file.write(struct.pack("<IIQ", 0x0ABECEDA, len(_MAP), len(entries)) + _MAP + entries)
        file.write(_END + struct.pack("<Q", at))
    return path


def _nested(loops: Sequence[dict[str, Any]], others: dict[str, Any]) -> dict[str, Any]:
    """Return the first loop with the others inside, each in the one before."""
    first, *inner = loops
    if not inner:
        return first
    every = {"": _nested(inner, others), **(others if len(inner) == 1 else {})}
    return {**first, "ppNextLevelEx": every}


def _loop(
    axis: str, count: int, positions: Sequence[str], step: float, period: float
) -> dict[str, Any]:
    if axis == "z":
        return {"uiCount": count, "dZStep": step}
    if axis == "t":
        return {"uiCount": count, "dStart": 0.0, "dPeriod": 1000 * period, "dDuration": 0.0}
    names = list(positions) or [""] * count
    points = {f"a{k}": {"dPosX": 0.5 * k, "dPosName": name} for k, name in enumerate(names)}
    return {"uiCount": count, "Points": points}


def _value(name: str, value: Any) -> bytes:
    """Encode a named value: an integer, boolean, float, text, bytes or tree."""
    text = f"{name}\0".encode("utf-16-le")
    head = bytes([len(text) // 2]) + text
    if isinstance(value, bool):
        return b"\x01" + head + bytes([value])
    if isinstance(value, int):
        return b"\x03" + head + struct.pack("<I", value)
    if isinstance(value, float):
        return b"\x06" + head + struct.pack("<d", value)
    if isinstance(value, str):
        return b"\x08" + head + f"{value}\0".encode("utf-16-le")
    if isinstance(value, bytes):
        return b"\x09" + head + struct.pack("<Q", len(value)) + value
    inner = b"".join(_value(key, one) for key, one in value.items())
    length = 1 + len(head) + 12 + len(inner)
    level = b"\x0b" + head + struct.pack("<IQ", len(value), length)
    return level + inner + bytes(8 * len(value))
