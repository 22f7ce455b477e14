"""The affine of NIfTI and Analyze files, and slice times."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_tiled.formats.nifti.header import HeaderKind
from dask_tiled.model.indexing import Array


def affine_of(kind: HeaderKind, header: Any) -> Array | None:
    """Return the affine from (x, y, z) to space; None if it is invalid."""
    if not kind.version:
        return _about(_origin(header), header["pixdim"][1:4])
    if header["sform_code"]:
        affine = np.eye(4)
        affine[:3] = [header[f"srow_{axis}"] for axis in "xyz"]
        return affine
    if header["qform_code"]:
        return _turned(header, np.float64 if kind.version == 2 else np.float32)
    ndim = min(3, int(header["dim"][0]))
    sizes, steps = np.ones(3), np.ones(3, header["pixdim"].dtype if ndim == 3 else float)
    sizes[:ndim], steps[:ndim] = header["dim"][1 : ndim + 1], header["pixdim"][1 : ndim + 1]
    return _about((sizes - 1) / 2, steps)


def _origin(header: Any) -> Any:
    """Return SPM's origin as a voxel, counted from 0; by default the middle."""
    origin, sizes = header["origin"][:3], header["dim"][1:4]
    near = (origin > -sizes.astype(int)).all() and (origin < 2 * sizes.astype(int)).all()
    return origin - 1 if origin.any() and near else (sizes - 1) / 2


def _about(origin: Any, steps: Any) -> Array:
    """Return the default affine, in which x runs to the left."""
    flipped = steps * np.array([-1, 1, 1], steps.dtype)
    affine = np.eye(4)
    affine[:3, :3] = np.diag(flipped)
    with np.errstate(all="ignore"):
        affine[:3, 3] = -origin * flipped
    return affine


def _turned(header: Any, precision: Any) -> Array | None:
    """Return the affine of a rotation, given three components of a quaternion."""
    b, c, d = (np.longdouble(header[f"quatern_{name}"]) for name in "bcd")
    steps, side = header["pixdim"][1:4].copy(), header["pixdim"][0]
    rest = 1 - (b * b + c * c + d * d)
    nothing = abs(rest) < 3 * np.finfo(precision).eps
    if (rest < 0 and not nothing) or (steps < 0).any() or side not in (-1, 1):
        return None
    a = np.longdouble(0) if nothing else np.sqrt(rest)
    x, y, z = (2 / (a * a + b * b + c * c + d * d) * n for n in (b, c, d))
    turn = [
        [1 - (c * y + d * z), b * y - a * z, b * z + a * y],
        [b * y + a * z, 1 - (b * x + d * z), c * z - a * x],
        [b * z - a * y, c * z + a * x, 1 - (b * x + c * y)],
    ]
    steps[2] *= side
    affine = np.eye(4)
    affine[:3, :3] = np.array(turn) @ np.diag(steps)
    affine[:3, 3] = [header[f"qoffset_{axis}"] for axis in "xyz"]
    return affine


def slice_times(header: Any, count: int) -> Array | None:
    """Return the acquisition times of ``count`` slices along z; None if unknown.

    In units of the header; NaN for slices outside the given range.
    """
    first, last, code = (int(header[f"slice_{name}"]) for name in ("start", "end", "code"))
    duration, along_z = float(header["slice_duration"]), header["dim_info"] >> 4 & 3 == 3
    if not (along_z and 0 <= first <= last < count and 0 < duration < np.inf and 1 <= code <= 6):
        return None
    last = last or count - 1
    numbers = np.arange(last - first + 1)[:: -1 if code % 2 == 0 else 1]
    parity = int(code > 4)  # codes 5 and 6 begin with the second slice
    order = numbers if code < 3 else np.concatenate((numbers[parity::2], numbers[1 - parity :: 2]))
    times = np.full(count, np.nan)
    times[first : last + 1] = np.argsort(order) * duration
    return times
