"""The numba kernels that make a level of a pyramid: means of two pixels along some axes.

Arrays are (frames, z, y, x). The last axis is halved; ``step_z`` and ``step_y`` are 2 where the
others are, else 1. At the end of an axis of odd length, a mean is of what is there. Means of whole
numbers are rounded to the nearest, halves to the even one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import from_dtype, njit, types

from dask_tiled.kernels.decoding import NUMBER, compiled


@njit
def _rounded(total, shift):
    """Divide a sum by a power of two."""
    if shift == 0:
        return total
    return (total + (1 << (shift - 1)) - 1 + ((total >> shift) & 1)) >> shift


def halve_counts(pixels, out, step_z, step_y, sums):
    """Set ``out`` to means; ``sums``, as long as a row, are of a type that holds eight pixels."""
    depth, height, width = pixels.shape[1:]
    for f, z, y in np.ndindex(out.shape[:3]):
        planes = min(step_z, depth - z * step_z)
        lines = min(step_y, height - y * step_y)
        sums[:] = 0
        for k in range(planes):
            for i in range(lines):
                row = pixels[f, z * step_z + k, y * step_y + i]
                for x in range(width):
                    sums[x] += row[x]
        shift = planes * lines >> 1  # 1, 2 or 4 pixels, whose logarithm that is
        means = out[f, z, y]
        for x in range(width // 2):
            means[x] = _rounded(sums[2 * x] + sums[2 * x + 1], shift + 1)
        if width % 2:
            means[width // 2] = _rounded(sums[width - 1], shift)


def halve_floats(pixels, out, step_z, step_y, sums):
    """Set ``out`` to means; ``sums``, as long as a row, are of float64."""
    depth, height, width = pixels.shape[1:]
    for f, z, y in np.ndindex(out.shape[:3]):
        planes = min(step_z, depth - z * step_z)
        lines = min(step_y, height - y * step_y)
        part = 1.0 / (planes * lines)  # a power of two: nothing is rounded, or too large
        sums[:] = 0
        for k in range(planes):
            for i in range(lines):
                row = pixels[f, z * step_z + k, y * step_y + i]
                for x in range(width):
                    sums[x] += row[x] * part
        means = out[f, z, y]
        for x in range(width // 2):
            means[x] = sums[2 * x] * 0.5 + sums[2 * x + 1] * 0.5
        if width % 2:
            means[width // 2] = sums[width - 1]


def halve_long(pixels, out, step_z, step_y, sums):
    """Set ``out`` to means of numbers of 64 bits, whose sum would be too long; no ``sums``."""
    number = out.dtype.type
    depth, height, width = pixels.shape[1:]
    for f, z, y in np.ndindex(out.shape[:3]):
        for x in range(out.shape[3]):
            planes = min(step_z, depth - z * step_z)
            lines = min(step_y, height - y * step_y)
            count = planes * lines * min(2, width - 2 * x)
            shift = number((count > 1) + (count > 2) + (count > 4))
            low = number(count - 1)
            whole, rest = number(0), number(0)
            for k in range(z * step_z, z * step_z + planes):
                for i in range(y * step_y, y * step_y + lines):
                    for j in range(2 * x, min(2 * x + 2, width)):
                        pixel = pixels[f, k, i, j]
                        whole += pixel >> shift
                        rest += pixel & low
            whole += rest >> shift
            twice = (rest & low) << number(1)
            if twice > number(count) or (twice == number(count) and whole & number(1)):
                whole += number(1)
            out[f, z, y, x] = whole


@cache
def halving_kernel(dtype: np.dtype) -> tuple[Any, np.dtype]:
    """Compile the kernel for whole numbers or floats of 32 bits or more; give the type of sums."""
    name, sums = "halve_floats", "f8"
    if dtype.kind in "iu":
        name = "halve_long" if dtype.itemsize > 4 else "halve_counts"
        sums = "i4" if dtype.itemsize < 4 else "i8"
    pixel = from_dtype(dtype)
    pixels = types.Array(pixel, 4, "C", readonly=True)
    row = from_dtype(np.dtype(sums))[::1]
    signature = types.void(pixels, pixel[:, :, :, ::1], NUMBER, NUMBER, row)
    return compiled(f"{__name__}:{name}", signature), np.dtype(sums)
