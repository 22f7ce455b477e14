"""Writer of FITS images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath, pixels_of

_BITS = {"u1": 8, "i2": 16, "i4": 32, "i8": 64, "f4": -32, "f8": -64}
_MOVED = {"i1": "u1", "u2": "i2", "u4": "i4", "u8": "i8"}


def write_fits(
    path: StrPath, *images: npt.ArrayLike | None, cards: Mapping[str, Any] | None = None
) -> Path:
    """Write a FITS file: the first array as the primary image, the others as extensions.

    Parameters
    ----------
    *images
        Arrays of integers or floats, or None for a header without pixels. Integer types that FITS
        lacks are stored with an offset of half their range (BZERO), as in the standard.
    cards
        Further keys and values of all headers.
    """
    with Path(path).open("wb") as file:
        file.writelines(_hdu(image, number, cards or {}) for number, image in enumerate(images))
    return Path(path)


def _hdu(image: npt.ArrayLike | None, number: int, further: Mapping[str, Any]) -> bytes:
    array = np.empty(0, "u1") if image is None else np.asarray(image)
    sizes = () if image is None else array.shape
    kind = array.dtype.str[1:]
    pixels = np.frombuffer(bytearray(pixels_of(array, ">")), "u1")
    cards: dict[str, Any] = {"XTENSION": "IMAGE"} if number else {"SIMPLE": True}
    cards |= {"BITPIX": _BITS[_MOVED.get(kind, kind)], "NAXIS": len(sizes)}
    cards |= {f"NAXIS{n}": size for n, size in enumerate(reversed(sizes), 1)}
    cards |= {"PCOUNT": 0, "GCOUNT": 1} if number else {}
    if kind in _MOVED:
        pixels[:: array.itemsize] ^= 0x80  # flip the highest bit
        cards |= {"BSCALE": 1, "BZERO": -128 if kind == "i1" else 1 << (8 * array.itemsize - 1)}
    lines = [f"{k:8}= {_value(v):>20}".ljust(80) for k, v in {**cards, **further}.items()]
    text = "".join([*lines, "END".ljust(80)]).encode("ascii")
    return _filled(text, b" ") + _filled(pixels.tobytes(), b"\0")


def _filled(data: bytes, fill: bytes) -> bytes:
    return data.ljust(-(-len(data) // 2880) * 2880, fill)


def _value(value: Any) -> str:
    if isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"'{quoted:8}'".ljust(20)
    return "FT"[value] if isinstance(value, bool) else str(value).upper()
