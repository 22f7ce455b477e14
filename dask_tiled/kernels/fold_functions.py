"""Compiled folds by dtype of pixels, results and weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from numba import from_dtype, types

from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, compiled
from dask_tiled.kernels.fused_folds import fold_signature

FRAMES = NUMBERS, BYTES, NUMBERS, NUMBERS
"""A request, bytes, and the offset and the row of each frame."""


@cache
def fold(name: str, pixel: np.dtype, result: np.dtype, weight: np.dtype) -> Callable[..., None]:
    """Compile a function of :mod:`dask_tiled.kernels.folds`, or ``run_program``."""
    module = {"run_program": "primitives", "fold_each": "fused_folds"}.get(name, "folds")
    signature = fold_signature(*map(from_dtype, (pixel, result, weight)))
    by_pixel = name.endswith("_pixels")  # sums of pixels are added up in the order of the frames
    return compiled(f"dask_tiled.kernels.{module}:{name}", signature, reorder=not by_pixel)


@cache
def address(name: str, pixel: np.dtype, result: np.dtype, weight: np.dtype) -> int:
    """Compile a fold; return its address."""
    return _address_of(fold(name, pixel, result, weight))


@cache
def primitive(name: str, *dtypes: np.dtype) -> int:
    """Compile a function of :mod:`dask_tiled.kernels.primitives`; return its address."""
    signature = types.void(*(types.CPointer(from_dtype(one)) for one in dtypes), NUMBER)
    return _address_of(compiled(f"dask_tiled.kernels.primitives:{name}", signature, reorder=True))


@cache
def fold_units(
    name: str, pixel: np.dtype, result: np.dtype, weight: np.dtype, decoder: str
) -> Callable[..., None]:
    """Bind :func:`dask_tiled.kernels.fused_folds.fold_units` to a decoder and a fold."""
    arrays = from_dtype(pixel)[::1], from_dtype(result)[:, ::1], from_dtype(weight)[:, ::1]
    runs = NUMBERS, NUMBER, NUMBERS, *[NUMBER] * 7
    signature = types.void(NUMBER, NUMBER, *FRAMES, *runs, *arrays)
    driver = compiled("dask_tiled.kernels.fused_folds:fold_units", signature)
    return partial(driver, _address_of(compiled(decoder)), address(name, pixel, result, weight))


@cache
def fold_in_place(
    name: str, pixel: np.dtype, result: np.dtype, weight: np.dtype
) -> Callable[..., None]:
    """Bind :func:`dask_tiled.kernels.fused_folds.fold_in_place` to a fold."""
    arrays = from_dtype(pixel)[::1], from_dtype(result)[:, ::1], from_dtype(weight)[:, ::1]
    signature = types.void(NUMBER, *FRAMES, NUMBERS, NUMBERS, NUMBER, NUMBER, *arrays)
    driver = compiled("dask_tiled.kernels.fused_folds:fold_in_place", signature)
    return partial(driver, address(name, pixel, result, weight))


@cache
def add_packed(result: np.dtype) -> Callable[..., None]:
    """Compile :func:`dask_tiled.kernels.fused_folds.add_packed` for results of one dtype."""
    runs = NUMBERS, NUMBER, NUMBERS, NUMBER, NUMBER
    signature = types.void(*FRAMES, *runs, from_dtype(result)[:, ::1])
    return compiled("dask_tiled.kernels.fused_folds:add_packed", signature)


def _address_of(kernel: Any) -> int:
    """Return the address of a compiled function's machine code."""
    (made,) = kernel.overloads.values()
    address: int = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
    return address
