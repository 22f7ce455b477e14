"""The numba kernel of sparse masks: weighted sums of the pixels of each frame."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import from_dtype, types

from dask_tiled.kernels.decoding import compiled

AT_ONCE = 4
"""Frames summed together, so that no addition waits for the one before it."""


def weighted_sums(frames, places, masks, weights, sums):
    """Set ``sums[f, m]`` to the weighted sum of frame ``f``, one row of pixels, under mask ``m``.

    Entry ``k`` is the weight of pixel ``places[k]`` in mask ``masks[k]``. Places ascend, so frames
    are read from start to end. Nothing is checked: entries must lie in bounds.
    """
    count = frames.shape[0]
    whole = count - count % AT_ONCE
    totals = np.zeros((sums.shape[1], AT_ONCE))
    for f in range(0, whole, AT_ONCE):
        a, b, c, d = frames[f], frames[f + 1], frames[f + 2], frames[f + 3]
        totals[...] = 0.0
        for k in range(places.size):
            place, mask, weight = np.uint64(places[k]), np.uint64(masks[k]), weights[k]
            totals[mask, 0] += a[place] * weight
            totals[mask, 1] += b[place] * weight
            totals[mask, 2] += c[place] * weight
            totals[mask, 3] += d[place] * weight
        sums[f : f + AT_ONCE] = totals.T
    sums[whole:] = 0.0
    for f in range(whole, count):
        for k in range(places.size):
            sums[f, masks[k]] += frames[f, places[k]] * weights[k]


@cache
def sums_kernel(pixel: np.dtype) -> Any:
    """Compile :func:`weighted_sums` for one pixel dtype; sums and weights are float64."""
    frames = types.Array(from_dtype(pixel), 2, "C", readonly=True)
    numbers = types.Array(types.int32, 1, "C", readonly=True)
    weights = types.Array(types.float64, 1, "C", readonly=True)
    signature = types.void(frames, numbers, numbers, weights, types.float64[:, ::1])
    return compiled(f"{__name__}:weighted_sums", signature)
