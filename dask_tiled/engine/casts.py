"""Primitives that cast pixels, with NumPy's results for values out of range."""

from __future__ import annotations

from functools import cache

import numpy as np

ODD = (-1.0, 200.0, 7e4, -7e4, 3e9, -3e9, 1e10, 1e19, 1e20, np.inf, -np.inf, np.nan)
"""Floats out of range of some integer types, none exactly at a limit."""


def primitive_of(pixel: np.dtype, dtype: np.dtype) -> str | None:
    """Return the primitive that casts pixels as NumPy does.

    None for complex pixels cast to real ones, and if NumPy casts floats out of range differently on
    this machine: C leaves them undefined.
    """
    if pixel.kind == "c" != dtype.kind:  # NumPy warns that it discards imaginary parts
        return None
    if dtype.kind == "b":
        return "truth"
    if pixel.kind != "f" or dtype.kind not in "iu":
        return "cast"
    if not _is_as_here(pixel, dtype):
        return None
    if dtype.itemsize < 4 or dtype == np.int32:
        return "truncate32"
    return "truncate_u64" if dtype == np.uint64 else "truncate64"


@cache
def _is_as_here(pixel: np.dtype, dtype: np.dtype) -> bool:
    """Return whether NumPy casts floats out of range, one by one, as the primitives do."""
    with np.errstate(all="ignore"):
        odd = [np.array([x], pixel) for x in ODD]
        return all(int(x.astype(dtype)[0]) == _truncated(float(x[0]), dtype) for x in odd)


def _truncated(x: float, dtype: np.dtype) -> int:
    """Return the integer to which the primitives cast a float."""
    half = 1 << (31 if dtype.itemsize < 4 or dtype == np.int32 else 63)
    most = 2 * half if dtype == np.uint64 else half
    number = int(x) if -half <= x < most else most if x >= most else -half
    size = 8 * dtype.itemsize
    number %= 1 << size
    return number - (1 << size) if dtype.kind == "i" and number >> (size - 1) else number
