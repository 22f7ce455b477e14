"""Write files of the ESRF data format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dask_tiled.testing.frames import Frames, iter_frames

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

_TYPES = {"i1": "SignedByte", "u1": "UnsignedByte", "i2": "SignedShort", "u2": "UnsignedShort"}
_TYPES |= {"i4": "SignedInteger", "u4": "UnsignedLong", "i8": "Signed64", "u8": "Unsigned64"}
_TYPES |= {"f4": "FloatValue", "f8": "DoubleValue"}


def write_edf(
    path: str | os.PathLike[str],
    frames: Frames,
    *,
    order: Literal["<", ">"] = "<",
    sig_dims: int = 2,
    keys: Mapping[str, Any] | None = None,
    general: Mapping[str, Any] | None = None,
    gap: int = 0,
) -> Path:
    """Write an EDF file.

    Parameters
    ----------
    path
        The file to write; an existing one is replaced.
    frames
        Array of shape nav + sig, or iterable of frames; gone through once, one frame in memory at a
        time.
    order
        Byte order of the pixels.
    sig_dims
        Number of trailing axes of an array that make a frame.
    keys
        Further keys of every header.
    general
        Keys of a general block at the start; by default there is none.
    gap
        Bytes behind the pixels of each frame, which count as its own.

    Returns
    -------
    pathlib.Path
        The file.
    """
    path = Path(path)
    with path.open("wb") as file:
        if general is not None:
            file.write(_header({"EDF_DataFormatVersion": "2.40", **general}))
        for number, frame in enumerate(iter_frames(frames, sig_dims), 1):
            header: dict[str, Any] = {
                "HeaderID": f"EH:{number:06}:000000:000000",
                "Image": number,
                "ByteOrder": "LowByteFirst" if order == "<" else "HighByteFirst",
                "DataType": _TYPES[frame.dtype.str[1:]],
                **{f"Dim_{n}": size for n, size in enumerate(reversed(frame.shape), 1)},
                "Size": frame.nbytes + gap,
            }
            file.write(_header({**header, **(keys or {})}))
            file.write(frame.astype(frame.dtype.newbyteorder(order)).tobytes() + b"\xff" * gap)
    return path


def _header(keys: Mapping[str, Any]) -> bytes:
    text = "{\n" + "".join(f"{key} = {value} ;\n" for key, value in keys.items())
    return (text.ljust(-(-(len(text) + 2) // 512) * 512 - 2) + "}\n").encode("latin1")
