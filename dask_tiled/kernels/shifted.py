"""The numba kernel of masks that follow the beam: weighted sums, with a shift for each frame."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import from_dtype, types

from dask_tiled.kernels.decoding import compiled


def shifted_sums(pixels, weights, spans, shifts, width, zero, sums):
    """Set ``sums[f, m]`` to the sum of frame ``f`` weighted by mask ``m``, moved by a shift.

    Frames and masks lie in one row each, all of them one after the other. Row ``y`` of mask ``m``
    has weights other than 0 from ``spans[m, y, 0]`` to ``spans[m, y, 1]``. What a shift moves out
    of the frame does not count. A row is summed in the type of the weights, that of ``zero``.
    """
    height = spans.shape[1]
    size = height * width
    for f in range(shifts.shape[0]):
        down, across = shifts[f, 0], shifts[f, 1]
        for m in range(spans.shape[0]):
            total = 0.0
            for row in range(max(0, -down), min(height, height - down)):
                start = max(spans[m, row, 0], -across)
                stop = min(spans[m, row, 1], width - across)
                if start < stop:
                    pixel = np.uint64(f * size + (row + down) * width + start + across)
                    weight = np.uint64(m * size + row * width + start)
                    part = zero
                    for k in range(np.uint64(stop - start)):
                        part += weights.dtype.type(pixels[pixel + k]) * weights[weight + k]
                    total += part
            sums[f, m] = total


@cache
def shifted_kernel(pixel: np.dtype, weight: np.dtype) -> Any:
    """Compile :func:`shifted_sums` for pixels and weights, float32 or float64, of a dtype."""
    pixels, weights = (types.Array(from_dtype(x), 1, "C", readonly=True) for x in (pixel, weight))
    integers = types.Array(types.int64, 3, "C", readonly=True)
    shifts = types.Array(types.int64, 2, "C", readonly=True)
    numbers = types.int64, from_dtype(weight)
    signature = types.void(pixels, weights, integers, shifts, *numbers, types.float64[:, ::1])
    return compiled(f"{__name__}:shifted_sums", signature, reorder=True)
