"""Write FITS images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tiled.testing.frames import Array, pixels_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import numpy.typing as npt

_BITS = {"u1": 8, "i2": 16, "i4": 32, "i8": 64, "f4": -32, "f8": -64}
_MOVED = {"i1": 7, "u2": 15, "u4": 31, "u8": 63}


def write_fits(
    path: str | os.PathLike[str],
    *images: npt.ArrayLike | None,
    cards: Mapping[str, Any] | None = None,
) -> Path:
    """Write a FITS file: the first image is the primary one, the others are extensions.

    Parameters
    ----------
    *images
        Arrays of integers or floats, or None for a header without pixels. Types that FITS has not
        are moved by half of their range, as the standard says.
    cards
        Further keys and values of all headers.
    """
    path = Path(path)
    with path.open("wb") as file:
        for number, image in enumerate(images):
            array = None if image is None else np.asarray(image)
            data = b"" if array is None else pixels_of(_stored(array), ">")
            file.write(_header(array, number, cards or {}))
            file.write(data.ljust(-(-len(data) // 2880) * 2880, b"\0"))
    return path


def _stored(array: Array) -> Array:
    """Flip the highest bit of what FITS has not."""
    kind = array.dtype.str[1:]
    if kind not in _MOVED:
        return array
    unsigned, signed = f"u{array.itemsize}", f"i{array.itemsize}"
    flipped = array.view(unsigned) ^ np.array(1 << _MOVED[kind], unsigned)
    return flipped.view(unsigned if kind == "i1" else signed)


def _header(array: Array | None, number: int, further: Mapping[str, Any]) -> bytes:
    first = {"XTENSION": "IMAGE"} if number else {"SIMPLE": True}
    bits, sizes = (8, ()) if array is None else (_BITS[_stored(array).dtype.str[1:]], array.shape)
    cards: dict[str, Any] = {**first, "BITPIX": bits, "NAXIS": len(sizes)}
    cards |= {f"NAXIS{n}": size for n, size in enumerate(reversed(sizes), 1)}
    cards |= {"PCOUNT": 0, "GCOUNT": 1} if number else {}
    kind = "" if array is None else array.dtype.str[1:]
    if kind in _MOVED:
        cards |= {"BSCALE": 1, "BZERO": -128 if kind == "i1" else 1 << _MOVED[kind]}
    lines = [
        f"{key:8}= {_value(value):>20}".ljust(80) for key, value in {**cards, **further}.items()
    ]
    text = "".join([*lines, "END".ljust(80)])
    return text.ljust(-(-len(text) // 2880) * 2880).encode("ascii")


def _value(value: Any) -> str:
    if isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"'{quoted:8}'".ljust(20)
    return "FT"[value] if isinstance(value, bool) else str(value).upper()
