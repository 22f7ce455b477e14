"""Pages of files: find cached ones, populate maps, make private ones independent of the file."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.system.names import libc, offered

_FIXED, _MAY_MOVE = 2, 1  # of mremap; not defined by Python
_POPULATE_READ, _EHWPOISON = 22, 133  # of Linux; not defined by Python
_IF_CACHED: int | None = offered("os", "RWF_NOWAIT")
_RANDOM: int | None = offered("mmap", "MADV_RANDOM")
_preadv: Any = offered("os", "preadv")
_madvise, _mmap, _mremap = libc("madvise"), libc("mmap"), libc("mremap")
HAS_PRIVATE_PAGES = _mmap is not None and _mremap is not None
"""Whether `detach` is available; Linux only."""
if HAS_PRIVATE_PAGES:
    _number, _address = ctypes.c_size_t, ctypes.c_void_p
    _mmap.restype = _mremap.restype = _address
    _mmap.argtypes = _address, _number, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    _mremap.argtypes = _address, _number, _number, ctypes.c_int, _address


def expect_single(view: mmap.mmap) -> None:
    """Announce that single pages of a map are needed, not those around them."""
    if _RANDOM is not None:
        view.madvise(_RANDOM)


def refuses(address: int, nbytes: int) -> bool:
    """Populate mapped pages, on Linux; return whether one of them cannot be read."""
    if _madvise is None or not HAS_PRIVATE_PAGES:
        return False
    # Python's ``mmap.madvise`` would hold the GIL while the disk is read.
    pages = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
    status = _madvise(*pages, _POPULATE_READ)
    return bool(status) and ctypes.get_errno() in {errno.EFAULT, _EHWPOISON}


def is_cached(fd: int, place: int) -> bool:
    """Return whether a byte of a file is in the page cache; True where the system does not tell."""
    if _IF_CACHED is None or _preadv is None:
        return True
    try:
        _preadv(fd, [bytearray(1)], place, _IF_CACHED)
    except BlockingIOError:
        return False
    except OSError:  # not supported by the file system
        return True
    return True


def detach(memory: npt.NDArray[np.uint8]) -> None:
    """Replace private pages by memory with the same content, at the same address.

    Truncating a file takes away even private pages that were written.
    """
    size = len(memory)
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    fresh = _mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, anonymous, -1, 0)
    failed = ctypes.c_void_p(-1).value
    if fresh == failed:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    ctypes.memmove(fresh, memory.ctypes.data, size)
    if _mremap(fresh, size, size, _MAY_MOVE | _FIXED, memory.ctypes.data) == failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
