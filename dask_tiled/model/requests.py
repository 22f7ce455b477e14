"""Requests: numbers that tell a kernel which bytes of a file to read, and what it has read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FD, DEPTH, LOW, HIGH, NEAR, ALIGN, DONE, READY, START, STOP, CALL = range(11)
"""Entries of a request: the file descriptor, or -1 if the bytes are in memory; the frames read at a
time; the bytes of a frame, relative to its offset; the largest step between frames that are read at
once; the alignment of reads; the number of frames that are done, and of those in memory; the
bytes that could not be read; and the address of a function like ``pread``."""

IN_MEMORY: npt.NDArray[np.int64] = np.array([-1, *[0] * CALL])
"""The request for bytes that are in memory."""


def request(depth: int, low: int, high: int, near: int, align: int) -> npt.NDArray[np.int64]:
    """Return a request without a file."""
    return np.array([-1, depth, low, high, near, align, *[0] * (CALL - ALIGN)])
