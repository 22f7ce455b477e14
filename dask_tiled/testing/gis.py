"""Writer of GIS volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath

_CODES = {"i1": "S8", "u1": "U8", "i2": "S16", "u2": "U16", "i4": "S32", "u4": "U32", "i8": "S64"}
_CODES |= {"u8": "U64", "f4": "FLOAT", "f8": "DOUBLE", "c8": "CFLOAT", "c16": "CDOUBLE"}


def write_gis(
    path: StrPath,
    volume: npt.ArrayLike,
    *,
    kind: str | None = None,
    order: Literal["<", ">"] | None = "<",
    ascii: bool = False,
    voxel_size: Sequence[float] = (),
    minf: Mapping[str, Any] | None = None,
    further: str = "",
) -> list[Path]:
    """Write a GIS volume: a ``.dim`` file and a ``.ima`` file.

    Parameters
    ----------
    volume
        Array of 1 to 8 axes in C order, for example (t, z, y, x), and a further axis for the
        components if pixels of `kind` have several.
    kind
        Type of the pixels in the header, for example ``"RGB"`` or ``"VECTOR_OF_3_SHORT"``; by
        default the type of the array.
    order
        Byte order; None writes native byte order and leaves it out of the header.
    ascii
        Whether pixels are written as text.
    voxel_size
        Sizes of a voxel, x first.
    minf
        Attributes for a ``.ima.minf`` file.
    further
        Text at the end of the header.
    """
    array = np.asarray(volume)
    several = kind is not None and kind.startswith(("RGB", "HSV", "POINT", "VECTOR"))
    sizes = array.shape[: array.ndim - several][::-1]
    lines = [" ".join(map(str, sizes)), f"-type {kind or _CODES[array.dtype.str[1:]]}"]
    keys = ("dx", "dy", "dz", "dt", "dx4", "dx5", "dx6", "dx7")
    scales = [f"-{key} {size:g}" for key, size in zip(keys, voxel_size, strict=False)]
    lines += [" ".join(scales)] if scales else []
    if order is not None:
        lines.append("-bo DCBA" if order == "<" else "-bo ABCD")
    lines.append("-om ascii" if ascii else "-om binar")
    pixels, header = Path(path).with_suffix(".ima"), Path(path).with_suffix(".dim")
    header.write_text("\n".join([*lines, further]), "utf8")
    stored = np.ascontiguousarray(array, array.dtype.newbyteorder(order or "="))
    if ascii:
        parts = stored.reshape(-1).view(stored.real.dtype) if array.dtype.kind == "c" else stored
        text = " ".join(map(repr, parts.ravel().tolist()))
        pixels.write_text(text + "\n", "ascii")
    else:
        pixels.write_bytes(stored.tobytes())
    if minf is None:
        return [pixels, header]
    attributes = pixels.with_name(pixels.name + ".minf")
    attributes.write_text(f"attributes = {dict(minf)!r}\n", "utf8")
    return [pixels, header, attributes]
