"""Numba kernels for complex pixels that are not stored as such: see :mod:`dask_tiled.kernels`."""

from __future__ import annotations

import numpy as np

from dask_tiled.kernels import move


def conjugate(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Copy little-endian numbers, and change the sign of their imaginary part."""
    sign = np.uint8(0x80)
    for r in range(starts.size):
        for k in range(count):
            d = dests[r] + k * out_step
            move(out, d, src, starts[r] + k * step, nbytes)
            out[d + nbytes - 1] ^= sign


def real(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Copy real numbers, and give them an imaginary part of 0."""
    for r in range(starts.size):
        for k in range(count):
            d = dests[r] + k * out_step
            move(out, d, src, starts[r] + k * step, nbytes)
            out[d + nbytes : d + 2 * nbytes] = 0
