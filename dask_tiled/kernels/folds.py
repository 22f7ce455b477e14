"""Folds: accumulate the pixels of a tile into the results of a reduction, in numba.

All folds have one signature::

    fold(tile, rows, first, results, weights)

``tile`` holds the pixels of some frames from number ``first`` on, and ``rows`` the row of the
results of each frame. Folds by frame have one or several results in a row; folds by pixel have one
for each pixel. A tile larger than the L1 cache is processed block by block.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import intrinsic

from dask_tiled.kernels.words import inlined, inner, sum_nibbles, view

EVERY_BYTE, EVERY_2_BYTES, EVERY_4_BYTES = 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0xFFFFFFFF
"""Masks of every other pixel of an 8-byte word."""
BLOCK, DEPTH = 1024, 32
"""Pixels and frames of a block of a weighted sum: four masks of it stay in the L1 cache."""
FEW_BYTES = 1 << 19
"""Weights up to this size stay in the L2 cache, so two whole frames are processed at a time."""


@intrinsic
def _reversed(typingctx, value):
    """Reverse the bytes of an integer."""

    def codegen(context, builder, signature, values):
        return values[0] if value.bitwidth == 8 else builder.bswap(values[0])

    return value(value), codegen


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
        part = words[first : first + step]
        for j in range(part.size):
            word = _reversed(part[j]) if reverse else part[j]
            even += word & every_other
            odd += (word >> bits) & every_other
        for _ in range(per_word // 2):
            grown = (np.uint64(1) << (bits + bits - np.uint64(1))) * np.uint64(2) - np.uint64(1)
            total += (even & grown) + (odd & grown)
            even, odd = even >> bits >> bits, odd >> bits >> bits
    for j in range(count * per_word, row.size):
        total += _reversed(row[j]) if reverse else row[j]
    return total


def sum_frames(tile, rows, first, results, weights):
    """Sum the pixels of each frame: unsigned, of up to 4 bytes."""
    for i in range(tile.shape[0]):
        results[rows[i], 0] += sum_row(tile[i], reverse=False)


def sum_reversed_frames(tile, rows, first, results, weights):
    """Sum the pixels of each frame: unsigned, of up to 4 bytes, in reversed byte order."""
    for i in range(tile.shape[0]):
        results[rows[i], 0] += sum_row(tile[i], reverse=True)


def sum_packed_frames(tile, rows, first, results, weights):
    """Sum the pixels of each frame: packed, 16 pixels of 12 bits in 24 bytes."""
    for i in range(tile.shape[0]):
        data = view(tile[i], 0, tile[i].size * tile.itemsize, np.uint8)
        total = np.uint64(0)
        whole = data.size - data.size % 384
        for at in range(0, whole, 384):
            total += sum_nibbles(data, at)
        for at in range(whole, data.size, 3):
            middle = np.uint64(data[at + 1])
            total += data[at] + ((middle & np.uint64(15)) << np.uint64(8))
            total += (middle >> np.uint64(4)) + (np.uint64(data[at + 2]) << np.uint64(4))
        results[rows[i], 0] += total


@inlined
def _count_row(row, limit, reverse):
    """Count integer pixels greater than a limit, in their own dtype to keep vectors dense."""
    kind = row.dtype.type
    limit, total = kind(limit), 0
    step = (1 << (8 * min(row.itemsize, 2) - 1)) - 1  # pixels before the counters could overflow
    for start in range(0, row.size, step):
        part, found = row[start : start + step], kind(0)
        for j in range(part.size):
            value = _reversed(part[j]) if reverse else part[j]
            found = kind(found + kind(value > limit))
        total += found
    return total


def count_frames(tile, rows, first, results, weights):
    """Count the pixels of each frame greater than the limit in column 1 of the results."""
    for i in range(tile.shape[0]):
        row = results[rows[i]]
        row[0] += _count_row(tile[i], row[1], reverse=False)


def count_reversed_frames(tile, rows, first, results, weights):
    """Count the pixels of each frame greater than the limit, in reversed byte order."""
    for i in range(tile.shape[0]):
        row = results[rows[i]]
        row[0] += _count_row(tile[i], row[1], reverse=True)


@inlined
def _have_one_row(rows, i):
    """Return whether the next four frames share a result row, which is then updated once."""
    return i + 3 < rows.size and rows[i] == rows[i + 1] == rows[i + 2] == rows[i + 3]


def sum_pixels(tile, rows, first, results, weights):
    """Sum each pixel over the frames."""
    i = 0
    while i < tile.shape[0]:
        part, a = results[rows[i], first : first + tile.shape[1]], tile[i]
        if _have_one_row(rows, i):
            b, c, d = tile[i + 1], tile[i + 2], tile[i + 3]
            for j in range(part.size):
                part[j] = part[j] + a[j] + b[j] + c[j] + d[j]
            i += 4
        else:
            for j in range(part.size):
                part[j] += a[j]
            i += 1


@inner
def _less(a, b):
    """Return the lesser of two values, or NaN if ``a`` is."""
    return a if a < b or a != a else b  # noqa: PLR0124


@inner
def _greater(a, b):
    """Return the greater of two values, or NaN if ``a`` is."""
    return a if a > b or a != a else b  # noqa: PLR0124


def min_frames(tile, rows, first, results, weights):
    """Find the minimum of each frame, of integer pixels."""
    for i in range(tile.shape[0]):
        least = results[rows[i], 0]
        for j in range(tile.shape[1]):
            least = _less(tile[i, j], least)
        results[rows[i], 0] = least


def max_frames(tile, rows, first, results, weights):
    """Find the maximum of each frame, of integer pixels."""
    for i in range(tile.shape[0]):
        greatest = results[rows[i], 0]
        for j in range(tile.shape[1]):
            greatest = _greater(tile[i, j], greatest)
        results[rows[i], 0] = greatest


def min_reversed_frames(tile, rows, first, results, weights):
    """Find the minimum of each frame, of integer pixels in reversed byte order."""
    for i in range(tile.shape[0]):
        least = results[rows[i], 0]
        for j in range(tile.shape[1]):
            least = _less(_reversed(tile[i, j]), least)
        results[rows[i], 0] = least


def max_reversed_frames(tile, rows, first, results, weights):
    """Find the maximum of each frame, of integer pixels in reversed byte order."""
    for i in range(tile.shape[0]):
        greatest = results[rows[i], 0]
        for j in range(tile.shape[1]):
            greatest = _greater(_reversed(tile[i, j]), greatest)
        results[rows[i], 0] = greatest


@inlined
def _some_frames(tile, rows, i):
    """Return four frames of one result row, or one frame four times, and the index after them."""
    k = 1 if _have_one_row(rows, i) else 0
    return tile[i], tile[i + k], tile[i + 2 * k], tile[i + 3 * k], i + 3 * k + 1


def min_pixels(tile, rows, first, results, weights):
    """Find the minimum of each pixel over the frames; NaN propagates."""
    i = 0
    while i < tile.shape[0]:
        part = results[rows[i], first : first + tile.shape[1]]
        a, b, c, d, i = _some_frames(tile, rows, i)
        for j in range(part.size):
            part[j] = _less(_less(_less(a[j], b[j]), _less(c[j], d[j])), part[j])


def max_pixels(tile, rows, first, results, weights):
    """Find the maximum of each pixel over the frames; NaN propagates."""
    i = 0
    while i < tile.shape[0]:
        part = results[rows[i], first : first + tile.shape[1]]
        a, b, c, d, i = _some_frames(tile, rows, i)
        for j in range(part.size):
            part[j] = _greater(_greater(_greater(a[j], b[j]), _greater(c[j], d[j])), part[j])


@intrinsic
def _factor(typingctx, value, weight):
    """Convert a number to the dtype of products: int64 for integer weights, else theirs.

    Otherwise numba would promote to float64.
    """
    kind = types.int64 if isinstance(weight, types.Integer) else weight

    def codegen(context, builder, signature, values):
        return context.cast(builder, values[0], value, kind)

    return kind(value, weight), codegen


@inlined
def _dot(p, a):
    """Return the dot product of a frame's pixels and one mask."""
    one = a.dtype.type(0)
    total = _factor(one, one)
    for j in range(p.size):
        total += _factor(p[j], one) * _factor(a[j], one)
    return total


@inlined
def _dot_2_by_4(p, q, a, b, c, d):
    """Return the dot products of two frames and four masks.

    Each loaded value is used several times; larger blocks would exceed the registers of some CPUs.
    """
    one = a.dtype.type(0)
    zero = _factor(one, one)
    pa, pb, pc, pd, qa, qb, qc, qd = zero, zero, zero, zero, zero, zero, zero, zero
    for j in range(p.size):
        x, y = _factor(p[j], one), _factor(q[j], one)
        pa += x * _factor(a[j], one)
        pb += x * _factor(b[j], one)
        pc += x * _factor(c[j], one)
        pd += x * _factor(d[j], one)
        qa += y * _factor(a[j], one)
        qb += y * _factor(b[j], one)
        qc += y * _factor(c[j], one)
        qd += y * _factor(d[j], one)
    return (pa, pb, pc, pd), (qa, qb, qc, qd)


def dot_frames(tile, rows, first, results, weights):
    """Add the dot products of each frame with each row of weights to the results.

    Within a block, sums have the dtype of the weights. If frames or masks are left over, the last
    one is repeated, which costs less than a kernel for the remainder; a single mask has its own
    path.
    """
    frames, masks = tile.shape[0], weights.shape[0]
    last = masks - 1
    depth = DEPTH if weights.size * weights.itemsize > FEW_BYTES else 2
    for top in range(0, frames, depth):
        stop = min(top + depth, frames)
        for start in range(0, tile.shape[1], BLOCK):
            end = min(start + BLOCK, tile.shape[1])
            low, high = first + start, first + end
            if masks == 1:
                for i in range(top, stop):
                    results[rows[i], 0] += _dot(tile[i, start:end], weights[0, low:high])
                continue
            for m in range(0, masks, 4):
                # Slice rows, not slices: numba does not know that slices of slices are contiguous.
                a, b = weights[m, low:high], weights[min(m + 1, last), low:high]
                c, d = weights[min(m + 2, last), low:high], weights[min(m + 3, last), low:high]
                for i in range(top, stop, 2):
                    p, q = tile[i, start:end], tile[min(i + 1, stop - 1), start:end]
                    sums = _dot_2_by_4(p, q, a, b, c, d)
                    for n in range(min(2, stop - i)):
                        for k in range(min(4, masks - m)):
                            results[rows[i + n], m + k] += sums[n][k]
