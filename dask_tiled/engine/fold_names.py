"""Which function does the work of a fold, for pixels as they lie in a file."""

from __future__ import annotations

import numpy as np

from dask_tiled.model.decoders import Decoder

ANY_ORDER = {"sum_frames", "min_frames", "max_frames", "any_frames", "all_frames"}
"""Folds that the order of a frame's pixels is nothing to."""


def function_of(name: str, pixel: np.dtype) -> str:
    """Name the function of :mod:`dask_tiled.kernels.folds` for pixels of a type."""
    short = pixel.kind == "u" and pixel.itemsize <= 4
    return "sum_short_frames" if name == "sum_frames" and short else name


def as_is(name: str, decoder: Decoder, pixel: np.dtype) -> str:
    """Name the function that does the same to undecoded pixels; empty where there is none.

    The order of a frame's pixels makes no difference to sums and extremes, and that of their bytes
    none to whether whole numbers are zero; of floats, -0.0 is zero, and has a bit set.
    """
    kernel = decoder.kernel
    if kernel == "unpack12" and name == "sum_frames":
        return "sum_packed_frames"
    if kernel not in {"copy", "swap2", "swap4", "swap8"} or name not in ANY_ORDER:
        return ""
    zeros_show = pixel.kind != "f" and name in {"any_frames", "all_frames"}
    if kernel == "copy" or pixel.itemsize == 1 or zeros_show:
        return function_of(name, pixel)
    return "sum_reversed_frames" if function_of(name, pixel) == "sum_short_frames" else ""


def adds_packed(name: str, decoder: Decoder, result: np.dtype) -> bool:
    """Tell whether packed pixels can be added up without being unpacked into memory first."""
    packed = decoder.kernel == "unpack12"
    return packed and name == "sum_pixels" and result.kind in "iu"
