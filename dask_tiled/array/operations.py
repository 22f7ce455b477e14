"""Elementwise functions of chunks, as expressions of the engine."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dask_tiled.array.tasks import Function, Kwargs
from dask_tiled.engine.expressions import Call, Cast, Pixels, Select, call, call_operator
from dask_tiled.model.indexing import Array

OPERATORS = {
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"),
        *("lshift", "rshift", "lt", "le", "eq", "ne", "ge", "gt", "neg", "pos", "abs", "invert"),
    )
}


def astype(pixels: Array, astype_dtype: npt.DTypeLike) -> Array:
    """Cast a chunk."""
    return pixels.astype(astype_dtype)


def is_elementwise(function: Function, kwargs: Kwargs) -> bool:
    """Return whether a chunk function is elementwise."""
    if function is astype:
        return kwargs.keys() == {"astype_dtype"}
    if function is np.round:
        return kwargs.keys() <= {"decimals"}
    known = function in OPERATORS or function in MADE_OF
    return not kwargs and (known or isinstance(function, np.ufunc))


def node_of(function: Function, kwargs: Kwargs, operands: Sequence[object]) -> Pixels | None:
    """Build the expression of an elementwise function; None if the engine has none."""
    if isinstance(function, np.ufunc):
        return call(function, operands)
    if function in MADE_OF:
        make, count = MADE_OF[function]
        return make(*operands, **kwargs) if len(operands) == count else None
    return call_operator(function, operands)


def _converted(pixels: Pixels, astype_dtype: npt.DTypeLike) -> Pixels | None:
    dtype = np.dtype(astype_dtype)
    return pixels if pixels.dtype == dtype else call(Cast(dtype), [pixels])


def _rounded(pixels: Pixels, decimals: int = 0) -> Pixels | None:
    is_whole = pixels.dtype.kind in "iu"
    if is_whole and decimals >= 0:
        return pixels
    known = is_whole or pixels.dtype.kind == "f"
    if not known or abs(decimals) > np.finfo(np.float64).precision:
        return None
    if not decimals:
        return call(np.rint, [pixels])
    steps = [np.multiply, np.true_divide][:: 1 if decimals > 0 else -1]
    found: Pixels | None = pixels
    for ufunc in (steps[0], np.rint, steps[1]):
        found = found and call(ufunc, [found, 10.0 ** abs(int(decimals))][: ufunc.nin])
    return found and _converted(found, pixels.dtype)


def _finite(pixels: Pixels) -> Pixels | None:
    if pixels.dtype.kind in "iu":
        return pixels
    if pixels.dtype.kind != "f":
        return None
    limits = np.finfo(pixels.dtype)
    numbers = _select(call(np.isnan, [pixels]), pixels.dtype.type(0), pixels)
    return _clip(numbers, limits.min, limits.max)


def _select(*operands: object) -> Call | None:
    return call(Select(), operands)


def _clip(pixels: Pixels | None, low: object, high: object) -> Pixels | None:
    found = pixels
    for ufunc, limit in ((np.maximum, low), (np.minimum, high)):
        found = found if limit is None or found is None else call(ufunc, [found, limit])
    return found


MADE_OF: dict[Function, tuple[Callable[..., Pixels | None], int]] = {
    astype: (_converted, 1),
    np.where: (_select, 3),
    np.clip: (_clip, 3),
    np.round: (_rounded, 1),
    np.nan_to_num: (_finite, 1),
}
"""Functions composed of ufuncs: how to build them, and their number of operands."""
