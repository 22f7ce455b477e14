"""Primitives that accumulate the pixels of files as they lie, in either byte order.

Those of rows have the form of :mod:`dask_tiled.kernels.primitives`, and are told the pixels of one
frame. Those of frames add several frames, which share their results, so that each result is loaded
and stored once for all of them::

    primitive(pixels, offsets, shape, results, n)

``pixels`` is the address of those of the first frame; ``offsets`` has the offset of each frame;
``shape`` has the number of frames, and of the pixels from one row of ``results`` to the next.
"""

from __future__ import annotations

from functools import partial
from math import isnan

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from dask_tiled.kernels.jit import njit
from dask_tiled.kernels.limits import AHEAD, FETCHED_BYTES
from dask_tiled.kernels.words import (
    LINE_BYTES,
    both_orders,
    fetch,
    inlined,
    inner,
    number,
    smaller,
    view,
)

EVERY_BYTE, EVERY_2_BYTES, EVERY_4_BYTES = 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0xFFFFFFFF
"""Masks of every other pixel of an 8-byte word."""


@inlined
def _fetch_ahead(row, at):
    """Prefetch for byte ``at`` of a row: hardware prefetch stops at the end of a page."""
    data = view(row, 0, row.size * row.itemsize, np.uint8)
    for line in range(at + AHEAD, at + AHEAD + FETCHED_BYTES, LINE_BYTES):
        fetch(data, line)


def _add_words(reverse):
    """Build a primitive that adds unsigned pixels of 1, 2 or 4 bytes, a word at a time.

    The even pixels of a word of 8 bytes are added to one sum and the odd ones to another, so each
    has twice its bits to grow into. The compiler vectorises the loop over words.
    """

    def primitive(a, b, c, out, n):
        row = carray(a, n)
        size = row.itemsize
        per_word = 8 // size
        bits = np.uint64(8 * size)
        every_other = np.uint64((0, EVERY_BYTE, EVERY_2_BYTES, 0, EVERY_4_BYTES)[size])
        count = row.size // per_word
        words = view(row, 0, count, np.uint64)
        total = np.uint64(0)
        step = 256 if size == 1 else 1 << 15  # words before the sums could overflow
        for first in range(0, count, step):
            even, odd = np.uint64(0), np.uint64(0)
            for start in range(first, smaller(first + step, count), FETCHED_BYTES // 8):
                _fetch_ahead(row, 8 * start)
                part = words[start : start + FETCHED_BYTES // 8]
                for j in range(part.size):
                    word = number(part[j], reverse)
                    even += word & every_other
                    odd += (word >> bits) & every_other
            for _ in range(per_word // 2):
                grown = (np.uint64(1) << (bits + bits - np.uint64(1))) * np.uint64(2) - np.uint64(1)
                total += (even & grown) + (odd & grown)
                even, odd = even >> bits >> bits, odd >> bits >> bits
        for j in range(count * per_word, row.size):
            total += number(row[j], reverse)
        carray(out, 1)[0] += total

    return primitive


def _count(above, reverse):
    """Build a primitive that counts the integers above b, or the others, in their own dtype."""

    def primitive(a, b, c, out, n):
        row, limit, total = carray(a, n), carray(b, 1)[0], 0
        kind = row.dtype.type
        step = (1 << (8 * smaller(row.itemsize, 2) - 1)) - 1  # before the counters could overflow
        pixels = smaller(step, FETCHED_BYTES // row.itemsize)
        for start in range(0, row.size, pixels):
            _fetch_ahead(row, start * row.itemsize)
            part, counted = row[start : start + pixels], kind(0)
            for j in range(part.size):
                counted = kind(counted + kind((number(part[j], reverse) > limit) == above))
            total += counted
        carray(out, 1)[0] += total

    return primitive


@inner
def _extreme(a, b, least):
    """Return the lesser or the greater of two values, or NaN if ``a`` is."""
    return a if (a < b if least else a > b) or a != a else b  # noqa: PLR0124


def _extreme_row(least, reverse):
    """Build a primitive that keeps the minimum or maximum of integers."""

    def primitive(a, b, c, out, n):
        row, best = carray(a, n), carray(out, 1)
        extreme = best[0]
        for start in range(0, n, FETCHED_BYTES // row.itemsize):
            _fetch_ahead(row, start * row.itemsize)
            part = row[start : start + FETCHED_BYTES // row.itemsize]
            for j in range(part.size):
                extreme = _extreme(number(part[j], reverse), extreme, least)
        best[0] = extreme

    return primitive


add_words, add_reversed_words = both_orders(_add_words)
count_above, count_reversed_above = both_orders(partial(_count, above=True))
count_below, count_reversed_below = both_orders(partial(_count, above=False))
min_row, min_reversed_row = both_orders(partial(_extreme_row, least=True))
max_row, max_reversed_row = both_orders(partial(_extreme_row, least=False))


@inlined
def _four(pixels, offsets, i, count, n):
    """Return pixels of four frames, or of one frame four times, and the number of frames.

    Of four frames together, the results are updated once.
    """
    k = 1 if i + 3 < count else 0
    a = view(pixels, offsets[i] - offsets[0], n, pixels)
    b = view(pixels, offsets[i + k] - offsets[0], n, pixels)
    c = view(pixels, offsets[i + 2 * k] - offsets[0], n, pixels)
    d = view(pixels, offsets[i + 3 * k] - offsets[0], n, pixels)
    return a, b, c, d, 3 * k + 1


def _add_frames(reverse):
    """Build a primitive that adds each pixel to its own sum."""

    def primitive(a, b, c, out, n):
        pixels, count, sums, i = carray(a, n), carray(c, 1)[0], carray(out, n), 0
        offsets = carray(b, count)
        while i < count:
            p, q, r, s, several = _four(pixels, offsets, i, count, n)
            i += several
            if several == 1:
                for j in range(n):
                    sums[j] += number(p[j], reverse)
                continue
            for j in range(n):
                total = sums[j] + number(p[j], reverse) + number(q[j], reverse)
                sums[j] = total + number(r[j], reverse) + number(s[j], reverse)

    return primitive


def _extreme_frames(least, reverse):
    """Build a primitive that keeps the minimum or maximum of each pixel; NaN propagates."""

    def primitive(a, b, c, out, n):
        pixels, count, best, i = carray(a, n), carray(c, 1)[0], carray(out, n), 0
        offsets = carray(b, count)
        while i < count:
            p, q, r, s, several = _four(pixels, offsets, i, count, n)
            i += several
            for j in range(n):
                pq = _extreme(number(p[j], reverse), number(q[j], reverse), least)
                rs = _extreme(number(r[j], reverse), number(s[j], reverse), least)
                best[j] = _extreme(_extreme(pq, rs, least), best[j], least)

    return primitive


@njit(nogil=True, fastmath={"contract"})
def _add_moments(a, shift, total, squares, reverse):
    """Add the differences of one frame from ``shift``, and their squares."""
    for j in range(shift.size):
        x = np.float64(number(a[j], reverse)) - shift[j]
        total[j] += x
        squares[j] += x * x


@njit(nogil=True, fastmath={"contract"})
def _add_moments_of_two(a, b, shift, total, squares, reverse):
    """Add the differences of two frames; of more, there are too many arrays to vectorise."""
    for j in range(shift.size):
        x, y = np.float64(number(a[j], reverse)), np.float64(number(b[j], reverse))
        x, y = x - shift[j], y - shift[j]
        total[j] = total[j] + x + y
        squares[j] = squares[j] + x * x + y * y


def _moments_frames(reverse):
    """Build a primitive that adds the differences of each pixel from its first value, and squares.

    The first value and the two sums have a row of the results each.
    """

    def primitive(a, b, c, out, n):
        count, apart, pixels, i = carray(c, 2)[0], carray(c, 2)[1], carray(a, n), 0
        offsets, results = carray(b, count), carray(out, 2 * apart + n)
        shift, total = results[:n], results[apart : apart + n]
        squares = results[2 * apart :]
        while i < count:
            p, q, r, s, several = _four(pixels, offsets, i, count, n)
            i += several
            if isnan(shift[0]):  # the first frame, or NaN: so are the sums
                for j in range(n):
                    shift[j] = number(p[j], reverse) if isnan(shift[j]) else shift[j]
            if several == 1:
                _add_moments(p, shift, total, squares, reverse)
            else:
                _add_moments_of_two(p, q, shift, total, squares, reverse)
                _add_moments_of_two(r, s, shift, total, squares, reverse)

    return primitive


add_frames, add_reversed_frames = both_orders(_add_frames)
min_frames, min_reversed_frames = both_orders(partial(_extreme_frames, least=True))
max_frames, max_reversed_frames = both_orders(partial(_extreme_frames, least=False))
moments_frames, moments_reversed_frames = both_orders(_moments_frames)
