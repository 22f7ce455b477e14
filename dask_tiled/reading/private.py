"""Private pages of mapped files: writing to them changes no file."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from functools import cache

from dask_tiled.model.indexing import Bytes

FIXED, MAY_MOVE = 2, 1  # of mremap; not defined by Python


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
