"""Read frames of a file and decode them, a few at a time, while their bytes are in the cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
from numba import types

from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, address_of, compiled
from dask_tiled.kernels.fused_folds import call_decoder
from dask_tiled.kernels.gathering import are_there, places_of
from dask_tiled.kernels.words import smaller
from dask_tiled.model.requests import DEPTH, DONE

_SIGNATURE = types.void(
    *(NUMBER, NUMBERS, BYTES, NUMBERS, NUMBERS, NUMBERS, NUMBER),
    *(types.uint8[::1], NUMBERS, *[NUMBER] * 4),
)


@cache
def frame_decoder(decoder: str) -> Callable[..., None]:
    """Bind :func:`decode_frames` to a decoder."""
    return partial(compiled(f"{__name__}:decode_frames", _SIGNATURE), address_of(compiled(decoder)))


def decode_frames(
    decode,
    request,
    src,
    offsets,
    places,
    starts,
    step,
    out,
    dests,
    out_step,
    count,
    nbytes,
    lag,
):
    """Read frames into ``src``, and decode them into ``out``, until all are done or a read fails.

    Parameters
    ----------
    decode : int
        Address of the decoder.
    request : int64 array
        What to read into ``src``; see ``dask_tiled.model.requests``.
    src : array of uint8
    offsets, places : int64 array
        Offset of each frame in the file, and in ``out``.
    starts, dests : int64 array
        Offset in a frame of each run of ``count`` units, encoded and decoded.
    step, out_step, nbytes, lag : int
        As for decoders.
    """
    here, depth = places_of(request, offsets), request[DEPTH]
    all_starts = np.empty(depth * starts.size, np.int64)
    all_dests = np.empty(depth * starts.size, np.int64)
    for first in range(request[DONE], offsets.size, depth):
        if not are_there(request, src, offsets, first, first + depth, here):
            return
        frames = smaller(depth, offsets.size - first)
        for k in range(frames):
            for r in range(starts.size):
                all_starts[k * starts.size + r] = here[first + k] + starts[r]
                all_dests[k * starts.size + r] = places[first + k] + dests[r]
        runs = frames * starts.size
        from_, to = all_starts[:runs], all_dests[:runs]
        call_decoder(decode, src, from_, step, out, to, out_step, count, nbytes, lag)
