"""Writer of files of the ESRF data format (EDF)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dask_tiled.model.indexing import Array
from dask_tiled.testing.frames import Frames, StrPath, iter_frames, pixels_of
from dask_tiled.testing.records import write_records

_TYPES = {"i1": "SignedByte", "u1": "UnsignedByte", "i2": "SignedShort", "u2": "UnsignedShort"}
_TYPES |= {"i4": "SignedInteger", "u4": "UnsignedLong", "i8": "Signed64", "u8": "Unsigned64"}
_TYPES |= {"f4": "FloatValue", "f8": "DoubleValue"}


def write_edf(
    path: StrPath,
    frames: Frames,
    *,
    order: Literal["<", ">"] = "<",
    sig_dims: int = 2,
    keys: Mapping[str, Any] | None = None,
    general: Mapping[str, Any] | None = None,
    gap: int = 0,
) -> Path:
    """Write a file of the ESRF data format (EDF).

    Parameters
    ----------
    keys
        Further keys of every header.
    general
        Keys of a general block at the start; by default there is none.
    gap
        Number of padding bytes after the pixels of each frame, included in its size.
    """

    def record(number: int, frame: Array) -> bytes:
        header: dict[str, Any] = {
            "HeaderID": f"EH:{number + 1:06}:000000:000000",
            "Image": number + 1,
            "ByteOrder": "LowByteFirst" if order == "<" else "HighByteFirst",
            "DataType": _TYPES[frame.dtype.str[1:]],
            **{f"Dim_{n}": size for n, size in enumerate(reversed(frame.shape), 1)},
            "Size": frame.nbytes + gap,
            **(keys or {}),
        }
        return _header(header) + pixels_of(frame, order) + b"\xff" * gap

    version = {"EDF_DataFormatVersion": "2.40"}
    header = b"" if general is None else _header({**version, **general})
    write_records(path, iter_frames(frames, sig_dims), record, header=header)
    return Path(path)


def _header(keys: Mapping[str, Any]) -> bytes:
    text = "{\n" + "".join(f"{key} = {value} ;\n" for key, value in keys.items())
    return (text.ljust(-(-(len(text) + 2) // 512) * 512 - 2) + "}\n").encode("latin1")
