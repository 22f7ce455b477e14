"""Read frames of a file outside Python, some at a time."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dask_tiled.kernels.words import inlined, inner, place_in, smaller
from dask_tiled.model.requests import (
    ALIGN,
    CALL,
    DEPTH,
    DONE,
    FD,
    HIGH,
    LOW,
    NEAR,
    READY,
    START,
    STOP,
)


@intrinsic
def pread(typingctx, call, fd, out, at, count, offset):
    """Call a function like ``pread``: read bytes at an offset of a file into an array."""

    def codegen(context, builder, signature, values):
        call, fd, *_, count, offset = values
        number, byte = ir.IntType(64), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(number, [ir.IntType(32), byte, number, number])
        function = builder.inttoptr(call, kind.as_pointer())
        place = place_in(context, builder, signature, values, 2, ir.IntType(8))
        return builder.call(function, [builder.trunc(fd, ir.IntType(32)), place, count, offset])

    number = types.int64
    return number(number, number, out, number, number, number), codegen


@inner
def _gather(request, out, offsets, places):
    """Read frames into memory, near ones at once; return whether all could be read.

    Parameters
    ----------
    request : int64 array
        See ``dask_tiled.model.requests``.
    out : array of uint8
    offsets : int64 array
        Offset of each frame in the file.
    places : int64 array
        Set to the offset of each frame in ``out``, which is as aligned as that in the file.
    """
    low, high, align = request[LOW], request[HIGH], request[ALIGN]
    at = first = 0
    while first < offsets.size:
        start, stop, end = offsets[first] + low, offsets[first] + high, first + 1
        while end < offsets.size and abs(offsets[end] - offsets[end - 1]) <= request[NEAR]:
            start, stop = smaller(start, offsets[end] + low), max(stop, offsets[end] + high)
            end += 1
        start -= start % align
        size, done = stop - start + (start - stop) % align, 0
        while done < stop - start:
            count = pread(request[CALL], request[FD], out, at + done, size - done, start + done)
            if count <= 0:
                request[START], request[STOP] = start, stop
                return False
            done += count
        for k in range(first, end):
            places[k] = offsets[k] - start + at
        at, first = at + size, end
    return True


@inlined
def depth_of(request, depth):
    """Return how many frames to process at a time: at most ``depth``."""
    return depth if request[FD] < 0 else smaller(depth, request[DEPTH])


@inlined
def places_of(request, offsets):
    """Return an array for the places of frames: their offsets, if they are in memory."""
    return offsets if request[FD] < 0 else np.empty_like(offsets)


@inner
def are_there(request, out, offsets, first, stop, places):
    """Read frames from ``first`` on, unless they are in memory; return whether they could be."""
    if request[FD] < 0 or smaller(stop, offsets.size) <= request[READY]:
        return True
    end = smaller(first + request[DEPTH], offsets.size)
    request[DONE] = request[READY] = first
    if _gather(request, out, offsets[first:end], places[first:end]):
        request[DONE] = request[READY] = end
    return request[READY] == end
