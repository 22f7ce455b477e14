"""Buffers before a protected page: access past their end crashes the process."""

import ctypes
import mmap
import sys

import numpy as np

PAGE = mmap.PAGESIZE


def guarded(size):
    """Return a buffer that ends at a protected page."""
    if sys.platform != "linux":
        return np.empty(size, "u1")
    pages = -(-size // PAGE)
    memory = np.frombuffer(mmap.mmap(-1, (pages + 1) * PAGE), "u1")
    end = memory.ctypes.data + pages * PAGE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), ctypes.c_size_t(PAGE), 0) == 0
    return memory[pages * PAGE - size : pages * PAGE]


def at_the_end(data):
    """Return a copy of bytes that ends at a protected page."""
    memory = guarded(len(data))
    memory[:] = np.frombuffer(data, "u1")
    return memory


def decode(kernel, chunks, nbytes, *settings):
    """Decode adjacent chunks; return how many were decoded, and the places of all.

    ``kernel()`` returns the compiled kernel. The bytes between the places must stay.
    """
    gap = 5
    sizes = np.array([len(chunk) for chunk in chunks])
    starts = np.cumsum(sizes) - sizes
    dests = (nbytes + gap) * np.arange(len(chunks))
    out = guarded((nbytes + gap) * len(chunks) - gap)
    out[:] = 0x5A
    done = kernel()(at_the_end(b"".join(chunks)), starts, sizes, *settings, out, dests, nbytes)
    between = np.concatenate([out[at + nbytes : at + nbytes + gap] for at in dests.tolist()])
    assert (between == 0x5A).all()
    return done, [out[at : at + nbytes] for at in dests.tolist()]
