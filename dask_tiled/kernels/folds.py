"""Folds: accumulate the pixels of some frames, where a kernel of its own is faster than a program.

All folds have one signature::

    fold(data, offsets, width, rows, first, pixels, results, weights)

``data`` are bytes, in which ``width`` pixels of each frame, from number ``first`` on, lie at
``offsets``. ``pixels`` is empty and has their dtype; ``rows`` is the row of the results of each
frame. Products have a twin for pixels in reversed byte order.
"""

from __future__ import annotations

import numpy as np
from numba.extending import intrinsic

from dask_tiled.kernels.products import FRAMES, MASKS, multiply, product_type
from dask_tiled.kernels.words import both_orders, inlined, number, smaller, sum_nibbles, view

BLOCK, DEPTH = 1024, 32
"""Pixels and frames of a block of a weighted sum: four masks of it stay in the L1 cache."""
MOST_PRODUCT_FRAMES = 96
"""Frames for which several masks of a block stay in the L2 cache."""
FEW_BYTES = 1 << 19
"""Weights up to this size stay in the L2 cache, so four whole frames are processed at a time."""


@inlined
def _run(data, offset, low, high, pixels):
    """View pixels from ``low`` up to ``high`` of a frame."""
    return view(data, offset + low * pixels.itemsize, high - low, pixels)


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
        ps = _factor(ps + _factor(number(p[j], reverse), like) * weight, like)
        qs = _factor(qs + _factor(number(q[j], reverse), like) * weight, like)
        rs = _factor(rs + _factor(number(r[j], reverse), like) * weight, like)
        ss = _factor(ss + _factor(number(s[j], reverse), like) * weight, like)
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


dot_frames, dot_reversed_frames = both_orders(_dot_frames)
dots_frames, dots_reversed_frames = both_orders(_dots_frames)
