"""The numba kernels of corrections: dark and gain, and the repair of excluded pixels.

Arrays are (frames, pixels), the pixels of a frame in C order. As in the decoders' kernels, nothing
is checked here: positions come from a plan, which keeps them in bounds.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import from_dtype, types

from dask_tiled.kernels.decoding import compiled
from dask_tiled.kernels.limits import CORRECTED_PIXELS


def correct(tile, dark, gain, out):
    """Set ``out`` to ``(tile - dark) * gain`` in the type of ``out``, which dark and gain share."""
    frames, pixels = tile.shape
    for start in range(0, pixels, CORRECTED_PIXELS):
        stop = min(start + CORRECTED_PIXELS, pixels)
        for f in range(frames):
            # Slices in local variables: otherwise the loop is not vectorised.
            src, dst = tile[f, start:stop], out[f, start:stop]
            offsets, factors = dark[start:stop], gain[start:stop]
            for p in range(stop - start):
                dst[p] = (out.dtype.type(src[p]) - offsets[p]) * factors[p]


def repair(src, pixels, bounds, neighbours, out):
    """Set pixel ``pixels[i]`` to the mean of its neighbours in ``src``.

    The neighbours are ``neighbours[bounds[i]:bounds[i + 1]]``, summed in float64, in that order.
    ``src`` and ``out`` may be the same array, if a repaired neighbour comes earlier in ``pixels``.
    """
    for f in range(src.shape[0]):
        for i in range(pixels.size):
            total = 0.0
            for k in range(bounds[i], bounds[i + 1]):
                total += src[f, neighbours[k]]
            out[f, pixels[i]] = total / (bounds[i + 1] - bounds[i])


@cache
def correct_kernel(native: np.dtype, out: np.dtype) -> Any:
    """Compile :func:`correct` for tiles of one dtype and float32 or float64 results."""
    real = from_dtype(out)
    tile = types.Array(from_dtype(native), 2, "C", readonly=True)
    plane = types.Array(real, 1, "C", readonly=True)
    return compiled(f"{__name__}:correct", types.void(tile, plane, plane, real[:, ::1]))


@cache
def repair_kernel(out: np.dtype) -> Any:
    """Compile :func:`repair` for float32 or float64."""
    frames = from_dtype(out)[:, ::1]
    positions = types.Array(types.int64, 1, "C", readonly=True)
    return compiled(
        f"{__name__}:repair", types.void(frames, positions, positions, positions, frames)
    )
