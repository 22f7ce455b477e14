"""Folds: accumulate the pixels of some frames, where a kernel of its own is faster than a program.

All folds have one signature::

    fold(data, offsets, width, rows, first, pixels, results, weights)

``data`` are bytes, in which ``width`` pixels of each frame, from number ``first`` on, lie at
``offsets``. ``pixels`` is empty and has their dtype; ``rows`` is the row of the results of each
frame. Products have a twin for pixels in reversed byte order.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dask_tiled.kernels.limits import (
    AHEAD,
    BLOCK,
    FEW_BYTES,
    FRAMES_OF_ONE,
    LONG_BLOCK,
    MOST_PRODUCT_FRAMES,
)
from dask_tiled.kernels.products import FRAMES, MASKS, multiply
from dask_tiled.kernels.words import both_orders, smaller, sum_nibbles

NATIVE = False
"""Byte order of pixels that are not reversed."""
SPAN = 2
"""Columns that the span of the other weights in a row takes."""


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


def _dots(at_once, few, reverse):
    """Make the sums of the dot products of each frame with the rows of weights.

    Within a block, sums have the dtype of products. If frames are left over, the last one is
    repeated, which costs less than a kernel for the remainder, and sums do not depend on the frames
    and masks that are processed together. Masks of a block are used for many frames, and a part of
    the next frames is prefetched with each of them.
    """

    def fold(data, offsets, width, rows, first, pixels, results, weights):
        frames, masks, bytes_of = offsets.size, weights.shape[0], pixels.itemsize
        depth = MOST_PRODUCT_FRAMES if weights.size * weights.itemsize > FEW_BYTES else at_once
        block = LONG_BLOCK if weights.itemsize == 2 else BLOCK
        goes_on = first + width < weights.shape[1]  # the next pixels of all frames come next
        sums = np.empty(at_once * few, results.dtype)
        for top in range(0, frames, depth):
            stop = smaller(top + depth, frames)
            for start in range(0, width, block):
                end = smaller(start + block, width)
                for i in range(top, stop, at_once):
                    k, at = (i + at_once, start) if i + at_once < stop else (top, end)
                    if goes_on:
                        k, at = i, start + width
                    elif at == width:
                        k, at = stop, 0
                    for m in range(0, masks, few):
                        # Frames to prefetch: two with each few masks
                        sooner = k + at_once * m // masks
                        later = k + at_once * (2 * m + few) // (2 * masks)
                        ahead = (
                            offsets[smaller(sooner, frames - 1)] + at * bytes_of,
                            offsets[smaller(later, frames - 1)] + at * bytes_of,
                        )
                        multiply(
                            sums,
                            data,
                            offsets,
                            i,
                            stop,
                            start * bytes_of,
                            weights,
                            m,
                            first + start,
                            end - start,
                            ahead,
                            pixels,
                            reverse,
                            at_once,
                            few,
                        )
                        for n in range(smaller(at_once, stop - i)):
                            for j in range(smaller(few, masks - m)):
                                results[rows[i + n], m + j] += sums[n * few + j]

    return fold


dot_frames, dot_reversed_frames = both_orders(partial(_dots, FRAMES_OF_ONE, 1))
dots_frames, dots_reversed_frames = both_orders(partial(_dots, FRAMES, MASKS))


def shifted_frames(data, offsets, width, rows, first, pixels, results, weights):
    """Sum the pixels of each frame, weighted by masks that are moved by whole pixels.

    The last two columns of ``results`` are the shift of each frame, (y, x). A row of ``weights`` is
    that of a mask: the first column that is not 0, the last one plus 1, and the weights. What a
    shift moves out of the frame does not count. A row is summed in the type of products.
    """
    masks, columns = results.shape[1] - 2, weights.shape[1] - SPAN
    height, size = weights.shape[0] // masks, pixels.itemsize
    part = np.empty(1, results.dtype)
    for i in range(offsets.size):
        row = rows[i]
        down, across = np.int64(results[row, masks]), np.int64(results[row, masks + 1])
        for y in range(first // columns, -(-(first + width) // columns)):
            if y < down or y >= height + down:
                continue
            low, high = max(0, first - y * columns), smaller(first + width - y * columns, columns)
            for line in range(y - down, masks * height, height):
                start = max(np.int64(weights[line, 0]) + across, low)
                stop = smaller(np.int64(weights[line, 1]) + across, high)
                if start < stop:
                    at = (y * columns + start - first) * size
                    multiply(
                        part,
                        data,
                        offsets,
                        i,
                        i + 1,
                        at,
                        weights,
                        line,
                        SPAN + start - across,
                        stop - start,
                        (offsets[i] + at + AHEAD,),
                        pixels,
                        NATIVE,
                        1,
                        1,
                    )
                    results[row, line // height] += part[0]
