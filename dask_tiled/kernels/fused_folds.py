"""Decode and fold a few thousand pixels at a time, which stay in the L1 cache.

Decoders and folds are compiled separately and passed as addresses, so that any pair works without
another compilation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, SIGNATURE
from dask_tiled.kernels.gathering import are_there, depth_of, places_of
from dask_tiled.kernels.words import (
    LINE_BYTES,
    add_nibbles,
    fetch,
    little64,
    matrix_at,
    smaller,
    view,
)
from dask_tiled.model.requests import DONE

PACKED_FRAMES = 8
"""Packed frames added at once: with more streams than this, memory slows down."""


def fold_signature(pixel: Any, result: Any, weight: Any) -> Any:
    """Return numba's signature of a fold; see :mod:`dask_tiled.kernels.folds`."""
    frames = BYTES, NUMBERS, NUMBER, NUMBERS, NUMBER
    return types.void(*frames, pixel[::1], result[:, ::1], weight[:, ::1])


def call_address(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Emit a call of the function whose address is the first of ``values``."""
    address, *values = values
    convention = context.call_conv
    kind = convention.get_function_type(signature.return_type, signature.args)
    function = builder.inttoptr(address, ir.PointerType(kind))
    status, _ = convention.call_function(
        builder, function, signature.return_type, signature.args, values
    )
    with builder.if_then(status.is_error, likely=False):
        convention.return_status_propagate(builder, status)
    return context.get_dummy_value()


@intrinsic
def call_decoder(typingctx, address, src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Call a decoder by its address."""

    def codegen(context, builder, signature, values):
        return call_address(context, builder, SIGNATURE, values)

    return types.void(types.int64, *SIGNATURE.args), codegen


@intrinsic
def call_fold(typingctx, address, data, offsets, width, rows, first, pixels, results, weights):
    """Call a fold by its address."""
    fold = fold_signature(pixels.dtype, results.dtype, weights.dtype)

    def codegen(context, builder, signature, values):
        return call_address(context, builder, fold, values)

    return types.void(types.int64, *fold.args), codegen


def fold_units(
    decode,
    fold,
    request,
    src,
    offsets,
    rows,
    starts,
    step,
    firsts,
    count,
    nbytes,
    out_nbytes,
    lag,
    block,
    group,
    depth,
    scratch,
    results,
    weights,
):
    """Decode frames block by block, and fold each block.

    Parameters
    ----------
    decode, fold : int
        Addresses of the decoder and of the fold.
    request : int64 array
        What to read into ``src``; see ``dask_tiled.model.requests``.
    src : array of uint8
    offsets : int64 array
        Offset of each frame, in ``src`` or in the file that is read.
    rows : int64 array
        Row of each frame in the results.
    starts : int64 array
        Offset in a frame of each run of ``count`` units; the units are ``step`` bytes apart.
    firsts : int64 array
        Number in the frame of the first pixel of each run; the pixels of a run are contiguous.
    nbytes, out_nbytes, lag : int
        Encoded and decoded bytes of a unit, and the last argument of the decoder.
    block, group, depth : int
        Units of a run, runs, and frames in a block. With several runs, a block holds whole
        runs, and the fold treats their pixels as contiguous.
    scratch : array
        Memory for a decoded block.
    results, weights : 2D arrays
        Arguments of the fold.
    """
    out = view(scratch, 0, scratch.size * scratch.itemsize, np.uint8)
    pixels = out_nbytes // scratch.itemsize
    here, depth = places_of(request, offsets), depth_of(request, depth)
    all_places = np.empty(depth * group, np.int64)
    all_dests = np.empty(depth * group, np.int64)
    all_frames = np.empty(depth, np.int64)
    for first in range(request[DONE], offsets.size, depth):
        if not are_there(request, src, offsets, first, first + depth, here):
            return
        frames = smaller(depth, offsets.size - first)
        some = rows[first : first + frames]
        for r in range(0, starts.size, group):
            runs = smaller(group, starts.size - r)
            places, dests = all_places[: frames * runs], all_dests[: frames * runs]
            for unit in range(0, count, block):
                units = smaller(block, count - unit)
                width = runs * units * pixels
                for k in range(frames):
                    all_frames[k] = k * width * scratch.itemsize
                    for g in range(runs):
                        i = k * runs + g
                        places[i] = here[first + k] + starts[r + g] + unit * step
                        dests[i] = i * units * out_nbytes
                call_decoder(decode, src, places, step, out, dests, out_nbytes, units, nbytes, lag)
                if frames == 1 and starts.size == 1:  # prefetch the next block during the fold
                    at = places[0] + units * step
                    if unit + units == count:
                        at = here[smaller(first + 1, offsets.size - 1)] + starts[0]
                    for line in range(at, at + units * nbytes, LINE_BYTES):
                        fetch(src, line)
                tile, at = all_frames[:frames], firsts[r] + unit * pixels
                call_fold(fold, out, tile, width, some, at, scratch[:0], results, weights)


def fold_in_place(
    fold, request, src, offsets, rows, starts, firsts, width, depth, pixels, results, weights
):
    """Fold frames where they lie in ``src``, ``depth`` at a time; see :func:`fold_units`.

    ``width`` is the number of pixels of a run; ``pixels``, an empty array, has their dtype.
    """
    here, depth = places_of(request, offsets), depth_of(request, depth)
    for first in range(request[DONE], offsets.size, depth):
        if not are_there(request, src, offsets, first, first + depth, here):
            return
        some, which = here[first : first + depth], rows[first : first + depth]
        for r in range(starts.size):
            places = some + starts[r]
            call_fold(fold, src, places, width, which, firsts[r], pixels, results, weights)


def fold_each(data, offsets, width, rows, first, pixels, results, weights):
    """Call several folds by their addresses: a fold, see :mod:`dask_tiled.kernels.folds`.

    ``rows`` are numbers of frames. A row of ``results`` has the address of a fold, that of the row
    of its results for each frame, and the address, the shape and the bytes of an element of its
    results and of its weights.
    """
    own = np.empty_like(rows)
    for k in range(results.shape[0]):
        fold, places = results[k, 0], results[k, 1]
        for i in range(rows.size):
            own[i] = little64(matrix_at(places, 1, 8 * rows[i] + 8, 1), 8 * rows[i])
        these = matrix_at(results[k, 2], results[k, 3], results[k, 4], results[k, 5])
        those = matrix_at(results[k, 6], results[k, 7], results[k, 8], results[k, 9])
        call_fold(fold, data, offsets, width, own, first, pixels, these, those)


def add_packed(request, src, offsets, rows, starts, step, firsts, count, nbytes, results):
    """Add packed frames of 12-bit pixels, unpacked in registers only.

    See :func:`fold_units` for the arguments. A unit has 16 pixels in every 24 bytes, and
    ``results`` is one row of integers.
    """
    sums = view(results, 0, results.size, results)
    here, depth = places_of(request, offsets), depth_of(request, PACKED_FRAMES)
    for first in range(request[DONE], offsets.size, depth):
        if not are_there(request, src, offsets, first, first + depth, here):
            return
        some = here[first : first + depth]
        for r in range(starts.size):
            place = firsts[r]
            for k in range(count):
                for i in range(nbytes // 24):
                    add_nibbles(sums, place, src, some, starts[r] + k * step + 24 * i)
                    place += 16
