"""Pages of files: find cached ones, populate maps, make private ones independent of the file."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from functools import cache

import numpy as np

from dask_tiled.model.indexing import Bytes

POPULATED_BYTES = 1 << 18
"""Bytes populated by one madvise call."""
MADV_POPULATE_READ, EHWPOISON = 22, 133  # not defined by Python
FIXED, MAY_MOVE = 2, 1  # of mremap; not defined by Python


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
            view.madvise(mmap.MADV_RANDOM)
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
            if _refuses(self.data.ctypes.data + low, high - low):
                return False
            self._populated[first:last] = True
        return True


def _refuses(address: int, nbytes: int) -> bool:
    """Populate mapped pages; return whether one of them cannot be read."""
    if sys.platform != "linux":
        return False
    # Python's ``mmap.madvise`` would hold the GIL while the disk is read.
    pages = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
    status = libc().madvise(*pages, MADV_POPULATE_READ)
    return bool(status) and ctypes.get_errno() in {errno.EFAULT, EHWPOISON}


def is_cached(fd: int, place: int) -> bool:
    """Return whether a byte of a file is in the page cache; True where the system does not tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    try:
        os.preadv(fd, [bytearray(1)], place, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # not supported by the file system
        return True
    return True


def detach(memory: Bytes) -> None:
    """Replace private pages by memory with the same content, at the same address.

    Truncating a file takes away even private pages that were written.
    """
    size = len(memory)
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    fresh = libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, anonymous, -1, 0)
    failed = ctypes.c_void_p(-1).value
    if fresh == failed:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    ctypes.memmove(fresh, memory.ctypes.data, size)
    if libc().mremap(fresh, size, size, MAY_MOVE | FIXED, memory.ctypes.data) == failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@cache
def libc() -> ctypes.CDLL:
    """Load the C library, with the types of what maps memory."""
    library = ctypes.CDLL(None, use_errno=True)
    size, address = ctypes.c_size_t, ctypes.c_void_p
    library.mmap.restype = library.mremap.restype = address
    library.mmap.argtypes = address, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    library.mremap.argtypes = address, size, size, ctypes.c_int, address
    return library
