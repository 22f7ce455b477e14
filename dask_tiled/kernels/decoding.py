"""The numba kernels that decode bytes to pixels, a machine word at a time.

All have one signature, so that each is compiled once::

    kernel(src, starts, step, out, dests, out_step, count, nbytes, lag)

``src`` and ``out`` are bytes. Run ``r`` is ``count`` units; its unit ``k`` is the ``nbytes`` bytes
at ``src[starts[r] + k * step]``, and its pixels go to ``out[dests[r] + k * out_step]``. Offsets
may be any: loads and stores are unaligned. Nothing is checked here; the caller guarantees that
every run lies inside ``src`` and ``out``.
"""

from __future__ import annotations

import importlib
import threading
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
from numba import types

from dask_tiled.errors import DatasetError, warn_once
from dask_tiled.kernels.code_cache import CHANGED, IN_MEMORY, CodeCache
from dask_tiled.kernels.compiling import NOTICE
from dask_tiled.kernels.jit import compiler_on, njit
from dask_tiled.kernels.words import (
    big16,
    big32,
    big64,
    inlined,
    little16,
    little32,
    little64,
    look_ahead,
    move,
    reverse_bits,
    spread_bits,
    spread_nibbles,
    store16,
    store32,
    store64,
)
from dask_tiled.system.forks import held_at_fork

NUMBER, NUMBERS = types.int64, types.int64[::1]
BYTES = types.Array(types.uint8, 1, "C", readonly=True)
SIGNATURE = types.void(BYTES, NUMBERS, NUMBER, types.uint8[::1], NUMBERS, *[NUMBER] * 4)
REORDER = {"reassoc", "contract", "nsz"}
"""Fast-math flags of float sums: the compiler may reorder additions to vectorise them."""
_COMPILING = threading.Lock()
held_at_fork(_COMPILING)


def copy(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Copy units unchanged."""
    whole = step == nbytes and out_step == nbytes
    for r in range(starts.size):
        look_ahead(src, starts, r, step * count)
        s, d = starts[r], dests[r]
        if whole:
            move(out, d, src, s, count * nbytes)
            continue
        if nbytes == 2 and step == -2 and out_step == 2:  # 16-bit pixels of a rotated chip
            for k in range(count):
                store16(out, d + 2 * k, little16(src, s - 2 * k))
            continue
        for _ in range(count):
            if nbytes == 1:
                out[d] = src[s]
            elif nbytes == 2:
                store16(out, d, little16(src, s))
            elif nbytes == 4:
                store32(out, d, little32(src, s))
            elif nbytes == 8:
                store64(out, d, little64(src, s))
            else:
                move(out, d, src, s, nbytes)
            s += step
            d += out_step


def truth(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Set every nonzero byte to 1, as NumPy's booleans require."""
    if step == nbytes and out_step == nbytes:
        count, nbytes = 1, count * nbytes
    for r in range(starts.size):
        for k in range(count):
            s, d = starts[r] + k * step, dests[r] + k * out_step
            unit, pixels = src[s : s + nbytes], out[d : d + nbytes]
            for i in range(nbytes):
                pixels[i] = unit[i] != 0


@inlined
def _swap_lanes(word):
    """Reverse the bytes of each 16-bit lane."""
    even, eight = np.uint64(0x00FF00FF00FF00FF), np.uint64(8)
    return ((word & even) << eight) | ((word >> eight) & even)


def swap2(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Reverse the bytes of every 2-byte word."""
    whole = step == nbytes and out_step == nbytes
    units, size = (1, count * nbytes) if whole else (count, nbytes)
    for r in range(starts.size):
        look_ahead(src, starts, r, step * count)
        s, d = starts[r], dests[r]
        if nbytes == 8 and step == -8 and out_step == 8:  # 12-bit pixels of a rotated chip
            for k in range(count):
                store64(out, d + 8 * k, _swap_lanes(little64(src, s - 8 * k)))
        elif size == 2 and out_step == 2:
            for k in range(count):
                store16(out, d + 2 * k, big16(src, s + step * k))
        else:
            for _ in range(units):
                for i in range(0, size, 2):
                    store16(out, d + i, big16(src, s + i))
                s += step
                d += out_step


def swap4(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Reverse the bytes of every 4-byte word."""
    whole = step == nbytes and out_step == nbytes
    for r in range(starts.size):
        look_ahead(src, starts, r, step * count)
        s, d = starts[r], dests[r]
        if whole:
            for i in range(count * nbytes // 4):
                store32(out, d + 4 * i, big32(src, s + 4 * i))
        else:
            for _ in range(count):
                for i in range(0, nbytes, 4):
                    store32(out, d + i, big32(src, s + i))
                s += step
                d += out_step


def swap8(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Reverse the bytes of every 8-byte word.

    This alone decodes Merlin's raw 6- and 12-bit counters: their words are big-endian and hold
    pixel 0 in the lowest lane.
    """
    whole = step == nbytes and out_step == nbytes
    units, size = (1, count * nbytes) if whole else (count, nbytes)
    for r in range(starts.size):
        look_ahead(src, starts, r, step * count)
        s, d = starts[r], dests[r]
        for _ in range(units):
            for i in range(0, size, 8):
                store64(out, d + i, big64(src, s + i))
            s += step
            d += out_step


def biased(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Convert big-endian integers, and flip the sign bit: signed to unsigned or back."""
    sign = np.uint8(0x80)
    for r in range(starts.size):
        s, d = starts[r], dests[r]
        if nbytes == 2 and step == 2 and out_step == 2:  # constant strides are vectorised
            for k in range(count):
                store16(out, d + 2 * k, big16(src, s + 2 * k) ^ np.uint16(0x8000))
            continue
        for k in range(count):
            first, last = s + k * step, d + k * out_step + nbytes - 1
            for i in range(nbytes):
                out[last - i] = src[first + i]
            out[last] ^= sign


def bits(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Unpack 64 one-bit pixels from a big-endian word, pixel 0 in the lowest bit."""
    for r in range(starts.size):
        s, d = starts[r], dests[r]
        for k in range(count):
            spread_bits(out, d + k * out_step, big64(src, s + k * step))


def bits_reversed(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Unpack 64 one-bit pixels from a big-endian word, pixel 0 in the highest bit."""
    for r in range(starts.size):
        s, d = starts[r], dests[r]
        for k in range(count):
            spread_bits(out, d + k * out_step, reverse_bits(big64(src, s + k * step)))


def unpack12(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Unpack 12-bit pixels from little-endian bits, 16 from every 24 bytes."""
    if step == nbytes and 3 * out_step == 4 * nbytes:
        count, nbytes = count * nbytes // 24, 24
        step, out_step = 24, 32
    for r in range(starts.size):
        s, d = starts[r], dests[r]
        if nbytes == 24:
            for k in range(count):
                spread_nibbles(out, d + k * out_step, src, s + k * step)
            continue
        for k in range(count):
            for i in range(nbytes // 24):
                spread_nibbles(out, d + k * out_step + 32 * i, src, s + k * step + 24 * i)


@inlined
def _spread(word):
    """Widen the two lower 16-bit lanes of a word to 32 bits each."""
    return (word & np.uint64(0xFFFF)) | ((word & np.uint64(0xFFFF0000)) << np.uint64(16))


@inlined
def _join(out, d, high, low):
    """Store four 24-bit pixels, pixel 0 in the lowest lane of both words."""
    half, shift = np.uint64(32), np.uint64(12)
    store64(out, d, (_spread(high) << shift) + _spread(low))
    store64(out, d + 8, (_spread(high >> half) << shift) + _spread(low >> half))


def join24(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Join two 12-bit counters: the high one at the unit, the low one ``lag`` bytes after it."""
    for r in range(starts.size):
        s, d = starts[r], dests[r]
        if step == 8 and out_step == 16:  # constant strides are vectorised
            for k in range(count):
                _join(out, d + 16 * k, big64(src, s + 8 * k), big64(src, s + 8 * k + lag))
        else:
            for k in range(count):
                at = s + k * step
                _join(out, d + k * out_step, big64(src, at), big64(src, at + lag))


def join24_reversed(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Join two 12-bit counters whose words hold pixel 0 in the highest lane."""
    for r in range(starts.size):
        s, d = starts[r], dests[r]
        if step == -8 and out_step == 16:  # constant strides are vectorised
            for k in range(count):
                at = s - 8 * k
                high, low = _swap_lanes(little64(src, at)), _swap_lanes(little64(src, at + lag))
                _join(out, d + 16 * k, high, low)
        else:
            for k in range(count):
                at = s + k * step
                high, low = _swap_lanes(little64(src, at)), _swap_lanes(little64(src, at + lag))
                _join(out, d + k * out_step, high, low)


def conjugate(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Copy little-endian complex numbers, conjugated."""
    sign = np.uint8(0x80)
    for r in range(starts.size):
        for k in range(count):
            d = dests[r] + k * out_step
            move(out, d, src, starts[r] + k * step, nbytes)
            out[d + nbytes - 1] ^= sign


def real(src, starts, step, out, dests, out_step, count, nbytes, lag):
    """Copy real numbers to complex ones, with an imaginary part of 0."""
    for r in range(starts.size):
        for k in range(count):
            d = dests[r] + k * out_step
            move(out, d, src, starts[r] + k * step, nbytes)
            out[d + nbytes : d + 2 * nbytes] = 0


@cache
def compiled(
    name: str, signature: Any = SIGNATURE, *, reorder: bool = False, by_address: bool = False
) -> Any:
    """Compile a function of this module, or ``"module:function"``, for a signature.

    The machine code is cached on disk. If it is damaged, or the folder cannot be written to, the
    kernel is compiled again. A function that is only called ``by_address`` has no entry point for
    Python, which takes a fifth of the time.
    """
    options: Any = {"nogil": True, "fastmath": REORDER if reorder else False}
    options["no_cfunc_wrapper"] = True  # addresses are those of the functions themselves
    options["no_cpython_wrapper"] = by_address
    module, _, function = name.rpartition(":")
    python = getattr(importlib.import_module(module or __name__), function)
    python.__qualname__ = function  # names the cache file, also of a factory's functions
    with _COMPILING, NOTICE.timed(), compiler_on:
        kernel = njit(**options)(python)
        try:
            kernel._cache.__class__  # noqa: SLF001, B018 - raises if numba has no such attribute
            kernel._cache = CodeCache(python, reorder)  # noqa: SLF001 - as with cache=True
            kernel.compile(signature)
        except Exception as error:  # noqa: BLE001 - no cache folder, or a broken file
            if isinstance(error, CHANGED):
                numba_is = f"numba {version('numba')} stores machine code differently"
                warn_once(f"{numba_is} ({error}): {IN_MEMORY}", RuntimeWarning)
            kernel = njit(**options)(python)
            try:
                kernel.compile(signature)
            except FileNotFoundError as lost:  # numba looks up the working directory
                problem = "kernels cannot be compiled: the working directory does not exist"
                raise DatasetError(problem, hint="Change to another one with os.chdir.") from lost
        kernel.disable_compile()
    return kernel


def address_of(kernel: Any) -> int:
    """Return the address of a compiled function's machine code."""
    (made,) = kernel.overloads.values()
    address: int = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
    return address
