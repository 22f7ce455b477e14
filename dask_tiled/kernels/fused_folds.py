"""Decode and fold in one go: a few thousand pixels at a time, which never leave the inner cache.

Decoders and folds are compiled by themselves, and handed over as addresses, so that every pair of
them works together without being compiled again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dask_tiled.kernels.decoding import NUMBER, NUMBERS, SIGNATURE
from dask_tiled.kernels.words import LINE_BYTES, add_nibbles, fetch, view

PACKED_FRAMES = 8
"""Packed frames that are added up together: more streams than this slow the memory down."""


def fold_signature(pixel: Any, result: Any, weight: Any) -> Any:
    """Return the types of a fold: see :mod:`dask_tiled.kernels.folds`."""
    tile = types.Array(pixel, 2, "C", readonly=True)
    return types.void(tile, NUMBERS, NUMBER, result[:, ::1], weight[:, ::1])


def call_address(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Call the function of a signature whose address is the first of the values."""
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
    """Run a decoder."""

    def codegen(context, builder, signature, values):
        return call_address(context, builder, SIGNATURE, values)

    return types.void(types.int64, *SIGNATURE.args), codegen


@intrinsic
def call_fold(typingctx, address, tile, rows, first, results, weights):
    """Run a fold."""
    fold = fold_signature(tile.dtype, results.dtype, weights.dtype)

    def codegen(context, builder, signature, values):
        return call_address(context, builder, fold, values)

    return types.void(types.int64, *fold.args), codegen


def fold_units(
    decode,
    fold,
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
    src : array of uint8
    offsets : int64 array
        Where in ``src`` each frame begins.
    rows : int64 array
        Number of each frame in the results.
    starts : int64 array
        Where in a frame each run of ``count`` units begins; the units are ``step`` bytes apart.
    firsts : int64 array
        Position in a frame of the first pixel of each run; its pixels are neighbours.
    nbytes, out_nbytes, lag : int
        Bytes of a unit, encoded and decoded, and what the decoder needs to know.
    block, group, depth : int
        Units of a run, runs and frames in a block. If there are several runs, they are whole, and
        the fold takes their pixels for neighbours.
    scratch : array
        Room for a block.
    results, weights : 2D arrays
        What the fold works on.
    """
    out = view(scratch, 0, scratch.size * scratch.itemsize, np.uint8)
    pixels = out_nbytes // scratch.itemsize
    all_places = np.empty(depth * group, np.int64)
    all_dests = np.empty(depth * group, np.int64)
    for first in range(0, offsets.size, depth):
        frames = min(depth, offsets.size - first)
        some = rows[first : first + frames]
        for r in range(0, starts.size, group):
            runs = min(group, starts.size - r)
            places, dests = all_places[: frames * runs], all_dests[: frames * runs]
            for unit in range(0, count, block):
                units = min(block, count - unit)
                width = runs * units * pixels
                for k in range(frames):
                    for g in range(runs):
                        i = k * runs + g
                        places[i] = offsets[first + k] + starts[r + g] + unit * step
                        dests[i] = i * units * out_nbytes
                call_decoder(decode, src, places, step, out, dests, out_nbytes, units, nbytes, lag)
                if frames == 1 and starts.size == 1:  # what comes next, while this is folded
                    at = places[0] + units * step
                    if unit + units == count:
                        at = offsets[min(first + 1, offsets.size - 1)] + starts[0]
                    for line in range(at, at + units * nbytes, LINE_BYTES):
                        fetch(src, line)
                tile = scratch[: frames * width].reshape((frames, width))
                call_fold(fold, tile, some, firsts[r] + unit * pixels, results, weights)


def fold_in_place(fold, src, offsets, rows, starts, firsts, nbytes, pixels, results, weights):
    """Fold frames where they lie; arguments are those of :func:`fold_units`.

    ``nbytes`` are those of a run, and ``pixels``, an empty array, tells the type of its pixels.
    """
    for k in range(offsets.size):
        row = rows[k : k + 1]
        for r in range(starts.size):
            first = offsets[k] + starts[r]
            run = src[first : first + nbytes].view(pixels.dtype)
            call_fold(fold, run.reshape((1, run.size)), row, firsts[r], results, weights)


def add_packed(src, offsets, starts, step, firsts, count, nbytes, results):
    """Add up frames of packed pixels of 12 bits, which are unpacked in registers and nowhere else.

    Arguments are those of :func:`fold_units`. A unit has 16 pixels in every 24 bytes, and
    ``results`` is a row of whole numbers.
    """
    sums = view(results, 0, results.size, results)
    for r in range(starts.size):
        for first in range(0, offsets.size, PACKED_FRAMES):
            some = offsets[first : first + PACKED_FRAMES]
            place = firsts[r]
            for k in range(count):
                for i in range(nbytes // 24):
                    add_nibbles(sums, place, src, some, starts[r] + k * step + 24 * i)
                    place += 16
