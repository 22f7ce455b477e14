"""Memory for decoded chunks, used again when a result is gone.

Fresh memory comes in zeroed pages, and making them takes about as long as decoding into them.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

IDLE_BYTES = 256 << 20
"""As much memory, and no more, waits to be used again."""
SMALL_BYTES = 1 << 20
"""Less than this is left to numpy."""

# A deque, because results can go, and come back here, in any thread and at any moment: its two
# operations need no lock, which a garbage collection in the middle of one would wait for for ever.
_idle: deque[npt.NDArray[np.uint8]] = deque()


def empty(shape: tuple[int, ...], dtype: np.dtype) -> npt.NDArray[Any]:
    """Make an array like :func:`numpy.empty`, of memory that no other array uses.

    The memory can be used again as soon as the array and all views of it are gone.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < SMALL_BYTES:
        return np.empty(shape, dtype)
    lease = np.asarray(_Lease(_block(nbytes)))
    return lease[:nbytes].view(dtype).reshape(shape)


def _block(nbytes: int) -> npt.NDArray[np.uint8]:
    while _idle:
        try:
            block = _idle.pop()
        except IndexError:  # another thread was quicker
            break
        if nbytes <= block.nbytes <= 2 * nbytes:
            return block
    return np.empty(nbytes, np.uint8)


class _Lease:
    """What an array keeps alive while it, or a view of it, uses a block."""

    def __init__(self, block: npt.NDArray[np.uint8]) -> None:
        self._block = block
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        if sum(block.nbytes for block in tuple(_idle)) + self._block.nbytes <= IDLE_BYTES:
            _idle.append(self._block)
