"""Compiled folds, for pixels and results of some types; imported where they are used."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numba
import numpy as np

from dask_tiled.kernels.decoding import SIGNATURE, compiled
from dask_tiled.kernels.fused_folds import (
    add_packed_signature,
    address_of,
    fold_in_place_signature,
    fold_signature,
    fold_units_signature,
)


@cache
def fold(name: str, pixel: np.dtype, result: np.dtype, weight: np.dtype) -> Callable[..., None]:
    """Give a function of :mod:`dask_tiled.kernels.folds`."""
    return compiled(
        f"dask_tiled.kernels.folds:{name}", _fold_types(pixel, result, weight), reorder=True
    )


@cache
def fold_units(
    name: str, pixel: np.dtype, result: np.dtype, weight: np.dtype, decoder: str
) -> Callable[..., None]:
    """Give :func:`dask_tiled.kernels.fused_folds.fold_units` for a decoder and a fold."""
    types = map(numba.from_dtype, (pixel, result, weight))
    driver = compiled("dask_tiled.kernels.fused_folds:fold_units", fold_units_signature(*types))
    decode = address_of(compiled(decoder), SIGNATURE)
    return partial(driver, decode, _fold_address(name, pixel, result, weight))


@cache
def fold_in_place(
    name: str, pixel: np.dtype, result: np.dtype, weight: np.dtype
) -> Callable[..., None]:
    """Give :func:`dask_tiled.kernels.fused_folds.fold_in_place` for a fold."""
    types = map(numba.from_dtype, (pixel, result, weight))
    driver = compiled(
        "dask_tiled.kernels.fused_folds:fold_in_place", fold_in_place_signature(*types)
    )
    return partial(driver, _fold_address(name, pixel, result, weight))


@cache
def add_packed(result: np.dtype) -> Callable[..., None]:
    """Give :func:`dask_tiled.kernels.fused_folds.add_packed` for sums of a type."""
    signature = add_packed_signature(numba.from_dtype(result))
    return compiled("dask_tiled.kernels.fused_folds:add_packed", signature)


def _fold_address(name: str, pixel: np.dtype, result: np.dtype, weight: np.dtype) -> int:
    return address_of(fold(name, pixel, result, weight), _fold_types(pixel, result, weight))


def _fold_types(pixel: np.dtype, result: np.dtype, weight: np.dtype) -> Any:
    return fold_signature(*map(numba.from_dtype, (pixel, result, weight)))
