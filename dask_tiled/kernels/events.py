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
from dask_tiled.kernels.words import inlined, little16, little32

NEXT_PIXEL = 0xFFFF
"""Word of a stream of Velox that ends a pixel; other words are channels."""


@inlined
def count(out, place, number):
    """Add events to a pixel; return whether it overflowed."""
    at, added = np.uint64(place), out.dtype.type(number)
    before = out[at]
    out[at] = before + added
    return (out[at] < before) | (np.int64(added) != number)


@inlined
def are_unknown(data, at, size, channels):
    """Return whether any words are no channels, except ends of pixels."""
    most = np.uint16(0)  # the largest word plus 1, which is 0 for the end of a pixel
    for i in range(size // 2):
        most = max(most, np.uint16(little16(data, at + 2 * i) + np.uint16(1)))
    return most > channels


def add_channels(data, places, sizes, starts, first, rows, words, channels, out):
    """Add the channels of each pixel; piece ``k`` begins in frame ``starts[k]``.

    ``words[word]`` is the column of a word, -1 if it is no event of the output. Ends of pixels come
    at random, so they are found without a branch.
    """
    stops, last = np.empty(sizes.max() // 2 + 1, np.int64), rows.size - 1
    for k in range(places.size):
        at, length, ends = places[k], sizes[k] // 2, np.int64(0)
        wrong = are_unknown(data, at, sizes[k], channels)
        for i in range(length):
            stops[np.uint64(ends)] = i
            ends += little16(data, at + 2 * i) == NEXT_PIXEL
        stops[ends] = length
        begin = np.int64(0)
        for pixel in range(ends + 1):
            row = rows[min(starts[k] - first + pixel, last)]
            if row >= 0:
                for i in range(begin, stops[pixel]):
                    column = np.int64(words[np.uint64(little16(data, at + 2 * i))])
                    wrong |= count(out, row + max(column, np.int64(0)), column >= 0)
            begin = stops[pixel] + 1
        if wrong:
            return at
    return -1


def add_pixels(data, places, sizes, starts, first, rows, words, channels, out):
    """Add the channels of each pixel like :func:`add_channels`, if all columns are 0."""
    totals, last = np.empty(sizes.max() // 2 + 1, np.int64), rows.size - 1
    for k in range(places.size):
        at, ends, total = places[k], np.int64(0), np.int64(0)
        wrong = are_unknown(data, at, sizes[k], channels)
        for i in range(sizes[k] // 2):
            word = little16(data, at + 2 * i)
            totals[np.uint64(ends)] = total
            total += words[np.uint64(word)] + 1
            ends += word == NEXT_PIXEL
        totals[ends] = total
        before = np.int64(0)
        for pixel in range(ends + 1):
            row = rows[min(starts[k] - first + pixel, last)]
            if row >= 0:
                wrong |= count(out, row, totals[pixel] - before)
            before = totals[pixel]
        if wrong:
            return at
    return -1


def count_words(data, places, sizes, numbers):
    """Count each word of some pieces, in two tables in turn: equal words often come together."""
    second = np.uint64(NEXT_PIXEL + 1)
    for k in range(places.size):
        at, words = places[k], sizes[k] // 2
        for i in range(words // 2):
            both = little32(data, at + 4 * i)
            numbers[np.uint64(both & np.uint32(NEXT_PIXEL))] += 1
            numbers[second + np.uint64(both >> np.uint32(16))] += 1
        if words % 2:
            numbers[np.uint64(little16(data, at + 2 * words - 2))] += 1


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
    arrays = BYTES, NUMBERS, NUMBERS, NUMBERS, NUMBER, NUMBERS, words, NUMBER, out
    return compiled(f"{__name__}:{name}", types.int64(*arrays))


@cache
def pixels_kernel() -> Any:
    """Compile :func:`count_pixels`."""
    return compiled(f"{__name__}:count_pixels", types.void(BYTES, *[NUMBERS] * 4))


@cache
def words_kernel() -> Any:
    """Compile :func:`count_words`."""
    return compiled(f"{__name__}:count_words", types.void(BYTES, *[NUMBERS] * 3))
