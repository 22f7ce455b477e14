"""Compiled folds by dtype of pixels, results and weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
from numba import from_dtype, types

from dask_tiled.kernels import accumulating
from dask_tiled.kernels.decoding import BYTES, NUMBER, NUMBERS, address_of, compiled
from dask_tiled.kernels.fused_folds import fold_signature

FRAMES = NUMBERS, BYTES, NUMBERS, NUMBERS
"""A request, bytes, and the offset and the row of each frame."""
OF_BYTES = {"run_program": "primitives", "fold_each": "fused_folds"}
"""Modules of the folds that are told the bytes of a pixel, and compiled once for all types."""
OF_BITS = {"spread", "select", "look_up", "count"}
"""Primitives that copy or count pixels of a size, whatever their type."""


@cache
def address(name: str, pixel: np.dtype, result: np.dtype, weight: np.dtype) -> int:
    """Compile a fold; return its address.

    ``name`` is that of a function of :mod:`dask_tiled.kernels.folds`, ``run_program``, or
    ``fold_each``.
    """
    module = OF_BYTES.get(name, "folds")
    seen = np.dtype(np.uint8) if name in OF_BYTES else pixel
    signature = fold_signature(*map(from_dtype, (seen, result, weight)))
    name = f"dask_tiled.kernels.{module}:{name}"
    return address_of(compiled(name, signature, reorder=True, by_address=True))


@cache
def primitive(name: str, *dtypes: np.dtype) -> int:
    """Compile a function of ``primitives`` or ``accumulating``; return its address.

    Integers whose sign does not matter have the code of unsigned ones.
    """
    return _compiled_primitive(name, *_compiled_types(name, dtypes))


def _compiled_types(name: str, dtypes: tuple[np.dtype, ...]) -> tuple[np.dtype, ...]:
    pixel, *_, out = dtypes
    casts_integers = name == "cast" and pixel.kind in "iu" and out.kind in "iu"
    if name in OF_BITS or (casts_integers and out.itemsize <= pixel.itemsize):
        return tuple(map(_unsigned, dtypes))
    if casts_integers:  # only the sign of what becomes wider matters
        return *dtypes[:-1], _unsigned(out)
    if name == "truth" and pixel.kind == "i":
        return *map(_unsigned, dtypes[:-1]), out
    return dtypes


def _unsigned(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")


@cache
def _compiled_primitive(name: str, *dtypes: np.dtype) -> int:
    signature = types.void(*(types.CPointer(from_dtype(one)) for one in dtypes), NUMBER)
    module = "accumulating" if hasattr(accumulating, name) else "primitives"
    in_order = name.endswith("_frames")  # floats are added in the order of the frames
    name = f"dask_tiled.kernels.{module}:{name}"
    return address_of(compiled(name, signature, reorder=not in_order, by_address=True))


@cache
def reversed_twin(primitive: str) -> str | None:
    """Name the twin of a primitive for pixels in reversed byte order; None if there is none."""
    twin = primitive.replace("_", "_reversed_", 1)
    return twin if hasattr(accumulating, twin) else None


@cache
def fold_units(decoder: str) -> Callable[..., None]:
    """Bind :func:`dask_tiled.kernels.fused_folds.fold_units` to a decoder."""
    return partial(_unit_driver(), address_of(compiled(decoder)))


@cache
def _unit_driver() -> Callable[..., None]:
    runs = NUMBERS, NUMBER, NUMBERS, *[NUMBER] * 7
    signature = types.void(NUMBER, NUMBERS, *FRAMES, *runs, types.uint8[::1])
    return compiled("dask_tiled.kernels.fused_folds:fold_units", signature)


@cache
def fold_in_place() -> Callable[..., None]:
    """Compile :func:`dask_tiled.kernels.fused_folds.fold_in_place`."""
    signature = types.void(NUMBERS, *FRAMES, NUMBERS, NUMBERS, NUMBER, NUMBER)
    return compiled("dask_tiled.kernels.fused_folds:fold_in_place", signature)


@cache
def packed_pixels(name: str, result: np.dtype) -> Callable[..., None]:
    """Compile a kernel of packed pixels, such as ``add_packed``, for results of one dtype."""
    runs = NUMBERS, NUMBER, NUMBERS, NUMBER, NUMBER
    signature = types.void(*FRAMES, *runs, from_dtype(result)[:, ::1])
    return compiled(f"dask_tiled.kernels.fused_folds:{name}", signature)
