"""Folds: accumulate the pixels of some frames into the results of a reduction, in numba.

All folds have one signature::

    fold(data, offsets, width, rows, first, pixels, results, weights)

``data`` are bytes, in which ``width`` pixels of each frame, from number ``first`` on, lie at
``offsets``. ``pixels`` is empty and has their dtype; ``rows`` is the row of the results of each
frame. Folds by frame have one or several results in a row; folds by pixel have one for each pixel,
and process all frames block by block, so that the results of a block stay in the L1 cache. Most
folds have a twin for pixels in reversed byte order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isnan
from typing import Any

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from dask_tiled.kernels.jit import njit
from dask_tiled.kernels.products import FRAMES, MASKS, multiply, product_type
from dask_tiled.kernels.words import (
    AHEAD,
    LINE_BYTES,
    fetch,
    inlined,
    inner,
    smaller,
    sum_nibbles,
    view,
)

EVERY_BYTE, EVERY_2_BYTES, EVERY_4_BYTES = 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0xFFFFFFFF
"""Masks of every other pixel of an 8-byte word."""
BLOCK, DEPTH = 1024, 32
"""Pixels and frames of a block of a weighted sum: four masks of it stay in the L1 cache."""
MOST_PRODUCT_FRAMES = 96
"""Frames for which several masks of a block stay in the L2 cache."""
FEW_BYTES = 1 << 19
"""Weights up to this size stay in the L2 cache, so four whole frames are processed at a time."""
PIXEL_BLOCK = 4096
"""Pixels of a block of a fold by pixel: their results stay in the L1 cache."""
FETCHED_BYTES = 1024
"""Bytes processed between prefetches, where frames are folded one by one."""


def _both(make: Callable[..., Any]) -> tuple[Any, Any]:
    """Make a fold of pixels in native byte order, and its twin for reversed byte order."""
    return make(reverse=False), make(reverse=True)


@inlined
def _run(data, offset, low, high, pixels):
    """View pixels from ``low`` up to ``high`` of a frame."""
    return view(data, offset + low * pixels.itemsize, high - low, pixels)


@intrinsic
def _reversed(typingctx, value):
    """Reverse the bytes of a number."""

    def codegen(context, builder, signature, values):
        if value.bitwidth == 8:
            return values[0]
        bits = builder.bitcast(values[0], ir.IntType(value.bitwidth))
        return builder.bitcast(builder.bswap(bits), values[0].type)

    return value(value), codegen


@inlined
def _pixel(value, reverse):
    """Return the number that a pixel holds."""
    return _reversed(value) if reverse else value


@inlined
def fetch_runs(data, offsets, start, stop, first, nbytes, apart):
    """Prefetch lines of some frames, ``apart`` bytes from one another, from byte ``first`` on."""
    for i in range(start, smaller(stop, offsets.size)):
        for line in range(offsets[i] + first, offsets[i] + first + nbytes, apart):
            fetch(data, line)


@inlined
def _fetch_ahead(row, at):
    """Prefetch for byte ``at`` of a row: hardware prefetch stops at the end of a page."""
    data = view(row, 0, row.size * row.itemsize, np.uint8)
    for line in range(at + AHEAD, at + AHEAD + FETCHED_BYTES, LINE_BYTES):
        fetch(data, line)


@inlined
def sum_row(row, reverse):
    """Sum unsigned pixels of 1, 2 or 4 bytes, a word of 8 bytes at a time.

    The even pixels of a word are added to one sum and the odd ones to another, so each has twice
    its bits to grow into. The compiler vectorises the loop over words.
    """
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
                word = _pixel(part[j], reverse)
                even += word & every_other
                odd += (word >> bits) & every_other
        for _ in range(per_word // 2):
            grown = (np.uint64(1) << (bits + bits - np.uint64(1))) * np.uint64(2) - np.uint64(1)
            total += (even & grown) + (odd & grown)
            even, odd = even >> bits >> bits, odd >> bits >> bits
    for j in range(count * per_word, row.size):
        total += _pixel(row[j], reverse)
    return total


def _sum_frames(reverse):
    """Make the sum of the pixels of each frame: unsigned, of up to 4 bytes."""

    def fold(data, offsets, width, rows, first, pixels, results, weights):
        for i in range(offsets.size):
            results[rows[i], 0] += sum_row(_run(data, offsets[i], 0, width, pixels), reverse)

    return fold


sum_frames, sum_reversed_frames = _both(_sum_frames)


def sum_packed_frames(data, offsets, width, rows, first, pixels, results, weights):
    """Sum the pixels of each frame: packed, 16 pixels of 12 bits in 24 bytes."""
    size = width * pixels.itemsize
    for i in range(offsets.size):
        total, start = np.uint64(0), offsets[i]
        whole = start + size - size % 384
        for at in range(start, whole, 384):
            total += sum_nibbles(data, at)
        for at in range(whole, start + size, 3):
            middle = np.uint64(data[at + 1])
            total += data[at] + ((middle & np.uint64(15)) << np.uint64(8))
            total += (middle >> np.uint64(4)) + (np.uint64(data[at + 2]) << np.uint64(4))
        results[rows[i], 0] += total


@inlined
def _count_row(row, limit, reverse):
    """Count integer pixels greater than a limit, in their own dtype to keep vectors dense."""
    kind = row.dtype.type
    limit, total = kind(limit), 0
    step = (1 << (8 * smaller(row.itemsize, 2) - 1)) - 1  # before the counters could overflow
    pixels = smaller(step, FETCHED_BYTES // row.itemsize)
    for start in range(0, row.size, pixels):
        _fetch_ahead(row, start * row.itemsize)
        part, above = row[start : start + pixels], kind(0)
        for j in range(part.size):
            above = kind(above + kind(_pixel(part[j], reverse) > limit))
        total += above
    return total


def _count_frames(reverse):
    """Make the count of the pixels of each frame greater than the limit in column 1."""

    def fold(data, offsets, width, rows, first, pixels, results, weights):
        for i in range(offsets.size):
            row = results[rows[i]]
            row[0] += _count_row(_run(data, offsets[i], 0, width, pixels), row[1], reverse)

    return fold


count_frames, count_reversed_frames = _both(_count_frames)


@inlined
def _some(rows, i):
    """Return the end of some frames of one result row, which are processed block by block."""
    stop = i + 1
    while stop < smaller(rows.size, i + DEPTH) and rows[stop] == rows[i]:
        stop += 1
    return stop


@inlined
def _four(data, offsets, i, stop, low, high, pixels):
    """Return pixels of four frames, or of one frame four times, and the number of frames.

    Of four frames together, the results are updated once.
    """
    k = 1 if i + 3 < stop else 0
    a = _run(data, offsets[i], low, high, pixels)
    b = _run(data, offsets[i + k], low, high, pixels)
    c = _run(data, offsets[i + 2 * k], low, high, pixels)
    d = _run(data, offsets[i + 3 * k], low, high, pixels)
    return a, b, c, d, 3 * k + 1


def _sum_pixels(reverse):
    """Make the sum of each pixel over the frames."""

    def fold(data, offsets, width, rows, first, pixels, results, weights):
        start = 0
        while start < rows.size:
            row, stop = rows[start], _some(rows, start)
            for low in range(0, width, PIXEL_BLOCK):
                high, i = smaller(low + PIXEL_BLOCK, width), start
                part = results[row, first + low : first + high]
                while i < stop:
                    a, b, c, d, count = _four(data, offsets, i, stop, low, high, pixels)
                    i += count
                    if count == 1:
                        for j in range(part.size):
                            part[j] += _pixel(a[j], reverse)
                        continue
                    for j in range(part.size):
                        total = part[j] + _pixel(a[j], reverse) + _pixel(b[j], reverse)
                        part[j] = total + _pixel(c[j], reverse) + _pixel(d[j], reverse)
            start = stop

    return fold


sum_pixels, sum_reversed_pixels = _both(_sum_pixels)


@njit(nogil=True, fastmath={"contract"})
def _add_moments(a, shift, total, squares, reverse):
    """Add the differences of one frame from ``shift``, and their squares."""
    for j in range(shift.size):
        x = np.float64(_pixel(a[j], reverse)) - shift[j]
        total[j] += x
        squares[j] += x * x


@njit(nogil=True, fastmath={"contract"})
def _add_moments_of_two(a, b, shift, total, squares, reverse):
    """Add the differences of two frames; of more, there are too many arrays to vectorise."""
    for j in range(shift.size):
        x, y = np.float64(_pixel(a[j], reverse)), np.float64(_pixel(b[j], reverse))
        x, y = x - shift[j], y - shift[j]
        total[j] = total[j] + x + y
        squares[j] = squares[j] + x * x + y * y


def _moments_pixels(reverse):
    """Make the sum of the differences of each pixel from its first value, and of their squares.

    The first value and the two sums have a row of the results each.
    """

    def fold(data, offsets, width, rows, first, pixels, results, weights):
        start = 0
        while start < rows.size:
            row, stop = rows[start], _some(rows, start)
            for low in range(0, width, BLOCK):
                high, i = smaller(low + BLOCK, width), start
                begin, end = first + low, first + high
                shift, total = results[3 * row, begin:end], results[3 * row + 1, begin:end]
                squares = results[3 * row + 2, begin:end]
                while i < stop:
                    a, b, c, d, count = _four(data, offsets, i, stop, low, high, pixels)
                    i += count
                    if isnan(shift[0]):  # the first frame, or NaN: so are the sums
                        for j in range(shift.size):
                            shift[j] = _pixel(a[j], reverse) if isnan(shift[j]) else shift[j]
                    if count == 1:
                        _add_moments(a, shift, total, squares, reverse)
                    else:
                        _add_moments_of_two(a, b, shift, total, squares, reverse)
                        _add_moments_of_two(c, d, shift, total, squares, reverse)
            start = stop

    return fold


moments_pixels, moments_reversed_pixels = _both(_moments_pixels)


@inner
def _extreme(a, b, least):
    """Return the lesser or the greater of two values, or NaN if ``a`` is."""
    return a if (a < b if least else a > b) or a != a else b  # noqa: PLR0124


def _extreme_frames(least, reverse):
    """Make the minimum or maximum of each frame, of integer pixels."""

    def fold(data, offsets, width, rows, first, pixels, results, weights):
        for i in range(offsets.size):
            row, extreme = _run(data, offsets[i], 0, width, pixels), results[rows[i], 0]
            for start in range(0, width, FETCHED_BYTES // row.itemsize):
                _fetch_ahead(row, start * row.itemsize)
                part = row[start : start + FETCHED_BYTES // row.itemsize]
                for j in range(part.size):
                    extreme = _extreme(_pixel(part[j], reverse), extreme, least)
            results[rows[i], 0] = extreme

    return fold


def _extreme_pixels(least, reverse):
    """Make the minimum or maximum of each pixel over the frames; NaN propagates."""

    def fold(data, offsets, width, rows, first, pixels, results, weights):
        start = 0
        while start < rows.size:
            row, stop = rows[start], _some(rows, start)
            for low in range(0, width, PIXEL_BLOCK):
                high, i = smaller(low + PIXEL_BLOCK, width), start
                part = results[row, first + low : first + high]
                while i < stop:
                    a, b, c, d, count = _four(data, offsets, i, stop, low, high, pixels)
                    i += count
                    for j in range(part.size):
                        ab = _extreme(_pixel(a[j], reverse), _pixel(b[j], reverse), least)
                        cd = _extreme(_pixel(c[j], reverse), _pixel(d[j], reverse), least)
                        part[j] = _extreme(_extreme(ab, cd, least), part[j], least)
            start = stop

    return fold


min_frames, min_reversed_frames = _both(partial(_extreme_frames, least=True))
max_frames, max_reversed_frames = _both(partial(_extreme_frames, least=False))
min_pixels, min_reversed_pixels = _both(partial(_extreme_pixels, least=True))
max_pixels, max_reversed_pixels = _both(partial(_extreme_pixels, least=False))


@intrinsic
def _factor(typingctx, value, weight):
    """Convert a number to the dtype of products."""
    kind = product_type(weight)

    def codegen(context, builder, signature, values):
        return context.cast(builder, values[0], value, kind)

    return kind(value, weight), codegen


@inlined
def _dot_4_by_1(p, q, r, s, a, reverse):
    """Return the dot products of four frames and one mask: memory serves several streams faster."""
    like = a.dtype.type(0)
    zero = _factor(like, like)
    ps, qs, rs, ss = zero, zero, zero, zero
    for j in range(p.size):
        weight = _factor(a[j], like)
        ps = _factor(ps + _factor(_pixel(p[j], reverse), like) * weight, like)
        qs = _factor(qs + _factor(_pixel(q[j], reverse), like) * weight, like)
        rs = _factor(rs + _factor(_pixel(r[j], reverse), like) * weight, like)
        ss = _factor(ss + _factor(_pixel(s[j], reverse), like) * weight, like)
    return ps, qs, rs, ss


def _dot_frames(reverse):
    """Make the sum of the dot products of each frame with one row of weights.

    Within a block, sums have the dtype of products. If frames are left over, the last one is
    repeated, which costs less than a kernel for the remainder, and sums do not depend on the frames
    that are processed together.
    """

    def fold(data, offsets, width, rows, first, pixels, results, weights):
        depth = DEPTH if weights.size * weights.itemsize > FEW_BYTES else 4
        for top in range(0, offsets.size, depth):
            stop = smaller(top + depth, offsets.size)
            for start in range(0, width, BLOCK):
                end = smaller(start + BLOCK, width)
                mask = weights[0, first + start : first + end]
                for i in range(top, stop, 4):
                    p = _run(data, offsets[i], start, end, pixels)
                    q = _run(data, offsets[smaller(i + 1, stop - 1)], start, end, pixels)
                    r = _run(data, offsets[smaller(i + 2, stop - 1)], start, end, pixels)
                    s = _run(data, offsets[smaller(i + 3, stop - 1)], start, end, pixels)
                    sums = _dot_4_by_1(p, q, r, s, mask, reverse)
                    for n in range(smaller(4, stop - i)):
                        results[rows[i + n], 0] += sums[n]

    return fold


def _dots_frames(reverse):
    """Make the sums of the dot products of each frame with several rows of weights.

    Sums and remainders are as with one row. Masks of a block are used for many frames, and a part
    of the next frames is prefetched with each of them.
    """

    def fold(data, offsets, width, rows, first, pixels, results, weights):
        frames, masks, size = offsets.size, weights.shape[0], pixels.itemsize
        depth = MOST_PRODUCT_FRAMES if weights.size * weights.itemsize > FEW_BYTES else FRAMES
        sums = np.empty(FRAMES * MASKS, results.dtype)
        for top in range(0, frames, depth):
            stop = smaller(top + depth, frames)
            for start in range(0, width, BLOCK):
                end = smaller(start + BLOCK, width)
                for i in range(top, stop, FRAMES):
                    k, at = (i + FRAMES, start) if i + FRAMES < stop else (top, end)
                    if at == width:
                        k, at = stop, 0
                    for m in range(0, masks, MASKS):
                        # Frames to prefetch: two with each few masks
                        sooner = k + FRAMES * m // masks
                        later = k + FRAMES * (2 * m + MASKS) // (2 * masks)
                        ahead = (
                            offsets[smaller(sooner, frames - 1)] + at * size,
                            offsets[smaller(later, frames - 1)] + at * size,
                        )
                        multiply(
                            sums,
                            data,
                            offsets,
                            i,
                            stop,
                            start * size,
                            weights,
                            m,
                            first + start,
                            end - start,
                            ahead,
                            pixels,
                            reverse,
                        )
                        for n in range(smaller(FRAMES, stop - i)):
                            for j in range(smaller(MASKS, masks - m)):
                                results[rows[i + n], m + j] += sums[n * MASKS + j]

    return fold


dot_frames, dot_reversed_frames = _both(_dot_frames)
dots_frames, dots_reversed_frames = _both(_dots_frames)
