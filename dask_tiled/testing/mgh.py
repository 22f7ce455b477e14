"""Writer of FreeSurfer volumes."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dask_tiled.testing.frames import StrPath, pixels_of

_TYPES = {"u1": 0, "i4": 1, "f4": 3, "i2": 4, "u2": 10}


def write_mgh(
    path: StrPath,
    volume: npt.ArrayLike,
    *,
    delta: tuple[float, float, float] = (1.0, 1.0, 1.0),
    directions: Sequence[float] = (-1, 0, 0, 0, 0, -1, 0, 1, 0),
    center: tuple[float, float, float] = (0.0, 0.0, 0.0),
    good: bool = True,
    repetition: float | None = None,
) -> Path:
    """Write a FreeSurfer volume (z, y, x) or (t, z, y, x), compressed if the suffix is ``.mgz``.

    Parameters
    ----------
    delta
        Sizes of a voxel in mm, x first.
    directions
        Directions of the axes x, y and z: three cosines each.
    center
        Coordinates of the center of the volume.
    good
        Value of the header's flag that `delta`, `directions` and `center` are valid.
    repetition
        Repetition time in ms, written after the pixels; by default nothing is written there.
    """
    path, array = Path(path), np.asarray(volume)
    sizes = array.shape[::-1] + (1,) * (4 - array.ndim)
    kind = _TYPES[array.dtype.str[1:]]
    header = struct.pack(">7ih15f", 1, *sizes, kind, 0, good, *delta, *directions, *center)
    tail = b"" if repetition is None else struct.pack(">5f", repetition, 0, 0, 0, 0)
    data = header.ljust(284, b"\0") + pixels_of(array, ">") + tail
    path.write_bytes(gzip.compress(data) if path.suffix == ".mgz" else data)
    return path
