"""The numba kernels of events: each adds to a pixel of an output with one axis.

All get the bytes of some pieces, ``places`` and ``sizes`` in them, and a table of the output::

    rows[k]     position in the output of frame ``first + k``, -1 if it is left out
    columns[c]  position of pixel ``c`` relative to its frame's, -1 if it is left out

They return -1, or the position in the bytes of an event that the output cannot hold.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import from_dtype, types

from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, compiled
from dask_tiled.kernels.words import inlined, little16

NEXT_PIXEL = 0xFFFF
"""Word of a stream of Velox that ends a pixel; other words are channels."""


@inlined
def count(out, place):
    """Add one event to a pixel; return whether the pixel overflowed."""
    out[place] += 1
    return out[place] <= 0


def add_channels(data, places, sizes, starts, first, rows, columns, out):
    """Add the channels of each pixel; piece ``k`` begins in frame ``starts[k]``."""
    for k in range(places.size):
        frame = starts[k] - first
        row = rows[frame] if frame < rows.size else -2
        for at in range(places[k], places[k] + sizes[k], 2):
            word = np.int64(little16(data, at))
            if word == NEXT_PIXEL:
                frame += 1
                row = rows[frame] if frame < rows.size else -2
                continue
            if word >= columns.size or row == -2:
                return at
            column = columns[word]
            if row >= 0 and column >= 0 and count(out, row + column):
                return at
    return -1


def count_pixels(data, places, sizes, counts, ends):
    """Count the pixels that end in each piece; ``ends`` is 1 where the last word ends one."""
    for k in range(places.size):
        found = 0
        for i in range(sizes[k] // 2):
            found += little16(data, places[k] + 2 * i) == NEXT_PIXEL
        counts[k] = found
        ends[k] = little16(data, places[k] + sizes[k] - 2) == NEXT_PIXEL


@cache
def channels_kernel(dtype: np.dtype) -> Any:
    """Compile :func:`add_channels` for the dtype of an output."""
    out = types.Array(from_dtype(dtype), 1, "C")
    arrays = BYTES, NUMBERS, NUMBERS, NUMBERS, NUMBER, NUMBERS, NUMBERS, out
    return compiled(f"{__name__}:add_channels", types.int64(*arrays))


def pixels_kernel() -> Any:
    """Compile :func:`count_pixels`."""
    return compiled(f"{__name__}:count_pixels", types.void(BYTES, *[NUMBERS] * 4))
