"""Decoders by name: what turns the bytes of a unit into pixels.

A :class:`Decoder` is a value. The numba function behind it is imported where pixels are made, in
the task, so describing and graph building never load numba.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Decoder:
    """How one unit of bytes becomes pixels.

    Attributes
    ----------
    kernel : str
        The numba function: its name in :mod:`dask_tiled.kernels.decoding`, which tells the
        signature, or ``"module:function"``.
    dtype : numpy.dtype
        Type of the pixels that come out, in native byte order.
    nbytes : int
        Bytes of a unit.
    pixels : int
        Pixels in a unit. They are neighbours along the last axis.
    lag : int
        Distance in bytes to a second unit that is read together with the first; 0 where there is
        none.
    """

    kernel: str
    dtype: np.dtype
    nbytes: int
    pixels: int = 1
    lag: int = 0

    @property
    def width(self) -> int:
        """Bytes of the pixels of a unit."""
        return self.pixels * self.dtype.itemsize

    @property
    def is_copy(self) -> bool:
        """Whether pixels are stored just as they come out."""
        return self.kernel == "copy" and self.pixels == 1

    @property
    def reach(self) -> int:
        """Bytes from the start of a unit to the end of all that is read with it."""
        return self.nbytes + self.lag


@dataclass(frozen=True, slots=True)
class BlockDecoder:
    """How a piece becomes pixels that decodes only as a whole, because it is compressed.

    Attributes
    ----------
    function : str
        A Python function, as ``"module:function"``. ``function(block, fetch, **options)`` gives the
        pixels of a :class:`~dask_tiled.model.blocks.Block`; ``fetch(file, start, stop)`` reads
        bytes, and ``fetch.keep(key, make)`` keeps open what the other blocks of a task need, too.
    dtype : numpy.dtype
        Type of the pixels that it gives, in native byte order.
    options : tuple of (str, value)
        Further arguments of the function: plain values.
    object_bytes : int
        Bytes of a Python object that it gives, in the mean, where these are its pixels.
    """

    function: str
    dtype: np.dtype
    options: tuple[tuple[str, Any], ...] = ()
    object_bytes: int = 0


def plain(dtype: np.dtype) -> Decoder:
    """Give the decoder of pixels that are stored as numpy would store them.

    Parameters
    ----------
    dtype : numpy.dtype
        Type in the file, of either byte order. Records, text and long doubles keep the byte order
        of the file; everything else comes out native.
    """
    if dtype.kind == "b":
        return Decoder("truth", dtype, 1)
    native = dtype.newbyteorder("=")
    word = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    swappable = dtype.kind in "iufcmM" and word in {2, 4, 8}
    if dtype == native:
        return Decoder("copy", native, dtype.itemsize)
    if swappable:
        return Decoder(f"swap{word}", native, dtype.itemsize)
    return Decoder("copy", dtype, dtype.itemsize)


def function_at(name: str) -> Any:
    """Import what a name as ``"module:function"`` stands for."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
