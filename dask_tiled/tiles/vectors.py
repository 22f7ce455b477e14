"""Vectors on the detector, turned into the axes of the scan."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import TilingError
from dask_tiled.model.indexing import Array


class ScanRotation(NamedTuple):
    """Rotation of detector shifts into the axes of the scan.

    Attributes
    ----------
    rotation : float
        Angle in degrees, above -90 and up to 90.
    flip : bool
        Whether the y component is negated before the rotation.

    Examples
    --------
    >>> from dask_tiled import tiles
    >>> tiles.ScanRotation(rotation=12.0, flip=False).rotation
    12.0
    """

    rotation: float
    flip: bool = False


def turning(rotation: Any) -> Array:
    """Return the matrix of a rotation in degrees, or a :class:`ScanRotation`, of vectors (y, x).

    It turns clockwise, with y pointing down. Raise a TilingError if the rotation is invalid.
    """
    angle, flip = rotation if isinstance(rotation, ScanRotation) else (rotation, False)
    try:
        radians = math.radians(angle)
    except TypeError:
        radians = math.nan
    if not math.isfinite(radians) or isinstance(angle, bool):
        expected = "degrees, or a ScanRotation"
        raise TilingError("invalid rotation", expected=expected, found=repr(rotation))
    cos, sin = math.cos(radians), math.sin(radians)
    return np.array([[cos, sin], [-sin, cos]]) @ np.diag([-1.0 if flip else 1.0, 1.0])
