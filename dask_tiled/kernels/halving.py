"""The numba kernels of pyramid levels: means and modes of pairs of pixels along some axes.

Arrays are (frames, z, y, x). The last axis is always halved; ``step_z`` and ``step_y`` are 2 for a
halved axis, else 1. At the end of an axis of odd length, means and modes are of those that exist.
Means of integers are rounded to nearest, ties to even.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import from_dtype, types

from dask_tiled.kernels.decoding import NUMBER, compiled
from dask_tiled.kernels.words import inlined


@inlined
def _pair(row, x):
    """Add two neighbours; unsigned indices need no wraparound, so loops are vectorised."""
    k = np.uint64(2) * x
    return np.int64(row[k]) + np.int64(row[k + np.uint64(1)])


@inlined
def _rounded(total, shift):
    """Divide an integer sum by ``2**shift``, rounding ties to even."""
    return (total + (1 << (shift - 1)) - 1 + ((total >> shift) & 1)) >> shift


def halve_counts(pixels, out, step_z, step_y, sums):
    """Set ``out`` to the means of integers of up to 32 bits; ``sums`` is not used."""
    depth, height, width = pixels.shape[1:]
    half, last, end = np.uint64(width // 2), width - 1, out.shape[3] - 1
    for f, z, y in np.ndindex(out.shape[:3]):
        # A pixel without a neighbour counts twice: the mean is the same. The end of a row of even
        # length is written twice, as a branch before the loop would prevent vectorising.
        z0, y0 = z * step_z, y * step_y
        z1, y1 = min(z0 + step_z, depth) - 1, min(y0 + step_y, height) - 1
        a, b = pixels[f, z0, y0], pixels[f, z0, y1]
        means = out[f, z, y]
        means[end] = _rounded(np.int64(a[last]) + np.int64(b[last]), 1)
        for x in range(half):
            means[x] = _rounded(_pair(a, x) + _pair(b, x), 2)
        if step_z > 1:
            c, d = pixels[f, z1, y0], pixels[f, z1, y1]
            total = np.int64(a[last]) + np.int64(b[last]) + np.int64(c[last]) + np.int64(d[last])
            means[end] = _rounded(total, 2)
            for x in range(half):
                total = _pair(a, x) + _pair(b, x) + _pair(c, x) + _pair(d, x)
                means[x] = _rounded(total, 3)


def halve_floats(pixels, out, step_z, step_y, sums):
    """Set ``out`` to the means of floats; ``sums`` is a float64 buffer of the length of a row."""
    depth, height, width = pixels.shape[1:]
    for f, z, y in np.ndindex(out.shape[:3]):
        planes = min(step_z, depth - z * step_z)
        lines = min(step_y, height - y * step_y)
        part = 1.0 / (planes * lines)  # a power of two: exact, and sums do not overflow
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
    """Set ``out`` to the means of 64-bit integers, without overflow; ``sums`` is not used."""
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


def halve_modes(pixels, out, step_z, step_y, sums):
    """Set ``out`` to the most frequent integers, the first of equals; ``sums`` is not used."""
    depth, height, width = pixels.shape[1:]
    window = np.empty(8, pixels.dtype)
    for f, z, y in np.ndindex(out.shape[:3]):
        for x in range(out.shape[3]):
            count = 0
            for k in range(z * step_z, min((z + 1) * step_z, depth)):
                for i in range(y * step_y, min((y + 1) * step_y, height)):
                    for j in range(2 * x, min(2 * x + 2, width)):
                        window[count] = pixels[f, k, i, j]
                        count += 1
            most = 0
            for n in range(count):
                if most >= count - most or most >= count - n:
                    break  # no later pixel is more frequent
                times = 0
                for m in range(n, count):
                    times += window[m] == window[n]
                if times > most:
                    most = times
                    out[f, z, y, x] = window[n]


@cache
def halving_kernel(dtype: np.dtype, *, modes: bool = False) -> Any:
    """Compile the kernel of means or modes for integers, or floats of 32 bits or more."""
    name = "halve_modes" if modes else "halve_floats"
    if dtype.kind in "iu" and not modes:
        name = "halve_long" if dtype.itemsize > 4 else "halve_counts"
    pixel = from_dtype(dtype)
    pixels = types.Array(pixel, 4, "C", readonly=True)
    signature = types.void(pixels, pixel[:, :, :, ::1], NUMBER, NUMBER, types.float64[::1])
    return compiled(f"{__name__}:{name}", signature)
