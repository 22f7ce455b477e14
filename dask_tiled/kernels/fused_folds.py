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

from dask_tiled.kernels import fold_layout as layout
from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, SIGNATURE
from dask_tiled.kernels.gathering import are_there, depth_of, places_of
from dask_tiled.kernels.limits import PACKED_FRAMES
from dask_tiled.kernels.words import (
    LINE_BYTES,
    add_nibbles,
    fetch,
    inlined,
    little64,
    matrix_at,
    no_pixels,
    smaller,
    view,
)
from dask_tiled.model.requests import DONE


def fold_signature(pixel: Any, result: Any, weight: Any) -> Any:
    """Return numba's signature of a fold; see :mod:`dask_tiled.kernels.folds`."""
    frames = BYTES, NUMBERS, NUMBER, NUMBERS, NUMBER
    return types.void(*frames, pixel[::1], result[:, ::1], weight[:, ::1])


OF_BYTES = fold_signature(types.uint8, types.uint8, types.uint8)
"""Signature of all folds to those who call them by address, whatever the types of their arrays."""


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
def _call_fold(typingctx, address, data, offsets, width, rows, first, pixels, results, weights):
    """Call a fold by its address; of its arrays, only the memory counts."""

    def codegen(context, builder, signature, values):
        return call_address(context, builder, OF_BYTES, values)

    return types.void(types.int64, *OF_BYTES.args), codegen


@inlined
def call_fold(call, data, offsets, width, rows, first):
    """Call a fold on some frames; see ``dask_tiled.kernels.fold_layout``."""
    at, also = layout.RESULTS, layout.WEIGHTS
    results = matrix_at(call[at], call[at + 1], call[at + 2], call[at + 3])
    weights = matrix_at(call[also], call[also + 1], call[also + 2], call[also + 3])
    pixels = no_pixels(call[layout.PIXEL_BYTES])
    _call_fold(call[layout.FOLD], data, offsets, width, rows, first, pixels, results, weights)


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
):
    """Decode frames block by block, and fold each block.

    Parameters
    ----------
    decode : int
        Address of the decoder.
    fold : int64 array
        Call of the fold; see ``dask_tiled.kernels.fold_layout``.
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
    scratch : array of uint8
        Memory for a decoded block.
    """
    pixel_bytes = fold[layout.PIXEL_BYTES]
    pixels = out_nbytes // pixel_bytes
    here, depth = places_of(request, offsets), depth_of(request, depth)
    all_places = np.empty(depth * group, np.int64)
    all_dests = np.empty(depth * group, np.int64)
    all_frames = np.empty(depth, np.int64)
    for first in range(request[DONE], offsets.size, depth):
        if not are_there(request, src, offsets, first, first + depth, here):
            return
        frames = smaller(depth, offsets.size - first)
        frame_rows = rows[first : first + frames]
        for r in range(0, starts.size, group):
            runs = smaller(group, starts.size - r)
            places, dests = all_places[: frames * runs], all_dests[: frames * runs]
            for unit in range(0, count, block):
                units = smaller(block, count - unit)
                width = runs * units * pixels
                for k in range(frames):
                    all_frames[k] = k * width * pixel_bytes
                    for g in range(runs):
                        i = k * runs + g
                        places[i] = here[first + k] + starts[r + g] + unit * step
                        dests[i] = i * units * out_nbytes
                call_decoder(
                    decode, src, places, step, scratch, dests, out_nbytes, units, nbytes, lag
                )
                if frames == 1 and starts.size == 1:  # prefetch the next block during the fold
                    at = places[0] + units * step
                    if unit + units == count:
                        at = here[smaller(first + 1, offsets.size - 1)] + starts[0]
                    for line in range(at, at + units * nbytes, LINE_BYTES):
                        fetch(src, line)
                tile, at = all_frames[:frames], firsts[r] + unit * pixels
                call_fold(fold, scratch, tile, width, frame_rows, at)


def fold_in_place(fold, request, src, offsets, rows, starts, firsts, width, depth):
    """Fold frames where they lie in ``src``, ``depth`` at a time; see :func:`fold_units`.

    ``width`` is the number of pixels of a run.
    """
    here, depth = places_of(request, offsets), depth_of(request, depth)
    for first in range(request[DONE], offsets.size, depth):
        if not are_there(request, src, offsets, first, first + depth, here):
            return
        frame_places, frame_rows = here[first : first + depth], rows[first : first + depth]
        for r in range(starts.size):
            call_fold(fold, src, frame_places + starts[r], width, frame_rows, firsts[r])


def fold_each(data, offsets, width, rows, first, pixels, results, weights):
    """Call several folds on some pixels of all frames, then on the next ones.

    It is a fold, see :mod:`dask_tiled.kernels.folds`. ``rows`` are numbers of frames. A row of
    ``results`` is a call of a fold; see ``dask_tiled.kernels.fold_layout``. ``weights`` has one
    element, the number of pixels.
    """
    own, places = np.empty_like(rows), np.empty_like(offsets)
    part, size = weights[0, 0], results[0, layout.PIXEL_BYTES]
    for start in range(0, width, part):
        for i in range(offsets.size):
            places[i] = offsets[i] + start * size
        for k in range(results.shape[0]):
            call = results[k]
            for i in range(rows.size):
                numbers = matrix_at(call[layout.ROWS], 1, 8 * rows[i] + 8, 1)
                own[i] = little64(numbers, 8 * rows[i])
            call_fold(call, data, places, smaller(part, width - start), own, first + start)


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
        frame_places = here[first : first + depth]
        for r in range(starts.size):
            place = firsts[r]
            for k in range(count):
                for i in range(nbytes // 24):
                    add_nibbles(sums, place, src, frame_places, starts[r] + k * step + 24 * i)
                    place += 16
