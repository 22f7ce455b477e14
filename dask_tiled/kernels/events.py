"""The numba kernels of events: each adds to a pixel of an output with one axis.

All get the bytes of some pieces, ``places`` and ``sizes`` in them, and a table of the output::

    rows[k]     position in the output of frame ``first + k``, -1 if it is left out
    columns[c]  position of pixel ``c`` relative to its frame's, -1 if it is left out

They return -1, or the place of the first piece with an event that the output cannot hold.
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
UNKNOWN = -2
"""Column of words that are no channels."""


@inlined
def count(out, place, number):
    """Add events to a pixel; return whether it overflowed."""
    before, added = out[place], out.dtype.type(number)
    out[place] = before + added
    return (out[place] < before) | (np.int64(added) != number)


def add_channels(data, places, sizes, starts, first, rows, words, out):
    """Add the channels of each pixel; piece ``k`` begins in frame ``starts[k]``.

    ``words[word]`` is the column of a word, -1 if it is no event of the output. Ends of pixels are
    added as 0 events: they come at random, and a branch would be mispredicted.
    """
    last = rows.size - 1
    for k in range(places.size):
        frame, wrong = starts[k] - first, 0
        for i in range(sizes[k] // 2):
            word = little16(data, places[k] + 2 * i)
            column, row = np.int64(words[word]), rows[min(frame, last)]
            wanted = np.int64((row | column) >= 0)
            wrong |= count(out, (row + column) * wanted, wanted) | (column == UNKNOWN)
            frame += word == NEXT_PIXEL
        if wrong:
            return places[k]
    return -1


def add_pixels(data, places, sizes, starts, first, rows, words, out):
    """Add the channels of each pixel like :func:`add_channels`, if all columns are 0."""
    ends = np.empty(rows.size + 1, np.int64)
    last = rows.size - 1
    for k in range(places.size):
        frame, wrong, total = starts[k] - first, 0, 0
        begin = min(frame, last)
        for i in range(sizes[k] // 2):
            word = little16(data, places[k] + 2 * i)
            column = words[word]
            total += column >= 0
            wrong |= column == UNKNOWN
            ends[min(frame, last)] = total
            frame += word == NEXT_PIXEL
        if little16(data, places[k] + sizes[k] - 2) == NEXT_PIXEL:
            frame -= 1
        before = 0
        for at in range(begin, min(frame, last) + 1):
            if rows[at] >= 0:
                wrong |= count(out, rows[at], ends[at] - before)
            before = ends[at]
        if wrong:
            return places[k]
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
def channels_kernel(dtype: np.dtype, *, by_pixel: bool) -> Any:
    """Compile :func:`add_channels`, or :func:`add_pixels`, for the dtype of an output."""
    out, words = (types.Array(from_dtype(x), 1, "C") for x in (dtype, np.dtype("i4")))
    name = "add_pixels" if by_pixel else "add_channels"
    arrays = BYTES, NUMBERS, NUMBERS, NUMBERS, NUMBER, NUMBERS, words, out
    return compiled(f"{__name__}:{name}", types.int64(*arrays))


def pixels_kernel() -> Any:
    """Compile :func:`count_pixels`."""
    return compiled(f"{__name__}:count_pixels", types.void(BYTES, *[NUMBERS] * 4))
