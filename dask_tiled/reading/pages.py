"""A mapped part of a file."""

from __future__ import annotations

import mmap

import numpy as np

from dask_tiled.model.indexing import Bytes
from dask_tiled.system.pages import expect_single, refuses

POPULATED_BYTES = 1 << 18
"""Bytes populated by one madvise call."""


class Map:
    """A mapped part of a file; unmapped with the last array that refers to it."""

    def __init__(
        self,
        fd: int,
        start: int,
        stop: int,
        *,
        sparse: bool = False,
        access: int = mmap.ACCESS_READ,
    ) -> None:
        self.start, self.stop = start - start % mmap.ALLOCATIONGRANULARITY, stop
        view = mmap.mmap(fd, stop - self.start, access=access, offset=self.start)
        if sparse:
            expect_single(view)
        self.data: Bytes = np.frombuffer(view, np.uint8)
        self._populated = np.zeros(-(-len(self.data) // POPULATED_BYTES), bool)

    def populate(self, start: int, stop: int) -> bool:
        """Populate pages before they are touched, once; return whether all are readable.

        Other systems, and Linux before 5.14, load pages when they are touched.
        """
        first = (start - self.start) // POPULATED_BYTES
        last = -(-(stop - self.start) // POPULATED_BYTES)
        if not self._populated[first:last].all():
            low, high = first * POPULATED_BYTES, min(last * POPULATED_BYTES, len(self.data))
            if refuses(self.data.ctypes.data + low, high - low):
                return False
            self._populated[first:last] = True
        return True
