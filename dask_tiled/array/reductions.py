"""Reductions on tiles: sums, means, extremes and spreads over all frames, or over all pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.array.utils import validate_axis

from dask_tiled.array.job_arrays import Reducible, job_array
from dask_tiled.engine.folding import Fold, are_narrow, can_fold

Array = npt.NDArray[Any]

COMBINED_BY: dict[str, np.ufunc] = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def reduce_array(
    x: Reducible, name: str, axis: Any, *, keepdims: bool, split_every: Any, ddof: float = 0
) -> da.Array | None:
    """Reduce over all navigation axes, all signal axes, or everything, or give None."""
    arr = x.arr
    nav, sig = tuple(range(x.nav_ndim)), tuple(range(x.nav_ndim, arr.ndim))
    axes = nav + sig if axis is None else validate_axis(axis, arr.ndim)
    axes = tuple(sorted(axes)) if isinstance(axes, tuple) else (axes,)
    if not can_fold(arr.dtype) or not arr.size or not axes or axes not in (nav, sig, nav + sig):
        return None
    dtype = getattr(np.empty(1, arr.dtype), name)().dtype
    if name in ("var", "std"):
        found = _moments(x, axes, split_every)
        found = da.map_blocks(
            _spread,
            found,
            name,
            ddof,
            dtype=np.float64,
            drop_axis=found.ndim - 1,
            meta=np.empty((0,) * (found.ndim - 1)),
        ).astype(dtype)
    elif name == "mean":
        count = math.prod(arr.shape[k] for k in axes)
        total = np.dtype(np.float64) if arr.dtype.itemsize == 8 else None  # or it may overflow
        found = (_simple(x, "sum", axes, split_every, total) / count).astype(dtype)
    else:
        found = _simple(x, name, axes, split_every).astype(dtype)
    if keepdims:
        found = found[tuple(None if k in axes else slice(None) for k in range(arr.ndim))]
    return found


def _simple(
    x: Reducible,
    name: str,
    axes: tuple[int, ...],
    split_every: Any,
    dtype: np.dtype | None = None,
) -> da.Array:
    """Fold the chunks, and what comes of them; sums of floats are float64 until the end."""
    if x.arr.dtype == bool:
        name = {"min": "all", "max": "any"}.get(name, name)
    dtype = dtype or getattr(np.empty(1, x.arr.dtype), name)().dtype
    if name == "sum" and dtype.kind == "f":
        dtype = np.dtype(np.float64)
    by_frame = axes[-1] >= x.nav_ndim
    frames = math.prod(x.arr.shape[: x.nav_ndim])
    if name == "sum" and not by_frame and are_narrow(x.arr.dtype, frames):
        dtype = np.dtype(f"{dtype.kind}4")
    fold = Fold(f"{name}_{'frames' if by_frame else 'pixels'}", dtype, (_neutral(name, dtype),))
    combine = partial(combine_by, ufunc=COMBINED_BY[name])
    return job_array(x, fold, gone=axes, combine=combine, split_every=split_every)


def combine_by(results: Sequence[Array], axes: tuple[int, ...], ufunc: np.ufunc) -> Array:
    """Reduce results one by one, without putting them side by side first."""
    total, *others = (ufunc.reduce(x, axes, dtype=x.dtype) if axes else x for x in results)
    for number, block in enumerate(others):
        own = number and isinstance(total, np.ndarray)  # the first is somebody else's
        total = ufunc(total, block, out=total if own else None)
    return total


def _moments(x: Reducible, axes: tuple[int, ...], split_every: Any) -> da.Array:
    """Give number, mean, and sum of squared differences from it, along a last axis."""
    name = f"moments_{'frames' if axes[-1] >= x.nav_ndim else 'pixels'}"
    fold = Fold(name, np.dtype(np.float64), (np.nan, 0, 0))
    return job_array(x, fold, gone=axes, tail=(3,), combine=_merge, split_every=split_every)


def _merge(results: Sequence[Array], axes: tuple[int, ...]) -> Array:
    """Merge the moments of several parts, after Chan, Golub and LeVeque."""
    n, mean, squares = _moments_along(results[0], axes)
    with np.errstate(all="ignore"):  # infinite pixels have no spread
        for other in results[1:]:
            m, centre, spread = _moments_along(other, axes)
            before, n = n, n + m
            step = (centre - mean) * (m / n)
            squares = squares + spread + (centre - mean) * step * before
            mean = mean + step
    return np.moveaxis(np.stack([n, mean, squares]), 0, -1)


def _moments_along(moments: Array, axes: tuple[int, ...]) -> Sequence[Array]:
    """Take number, mean and spread apart, and reduce them along axes."""
    count, mean, squares = np.moveaxis(moments, -1, 0)
    if not axes:
        return count, mean, squares
    n = count.sum(axes, keepdims=True)
    with np.errstate(all="ignore"):
        total = (count * mean).sum(axes, keepdims=True) / n
        squares = (squares + count * (mean - total) ** 2).sum(axes)
    return n.squeeze(axes), total.squeeze(axes), squares


def _spread(moments: Array, name: str, ddof: float) -> Array:
    """Make a variance or a standard deviation of moments."""
    with np.errstate(all="ignore"):
        variance = moments[..., 2] / np.maximum(moments[..., 0] - ddof, 0)
    return np.sqrt(variance) if name == "std" else variance


def _neutral(name: str, dtype: np.dtype) -> Any:
    """Give the value that changes nothing."""
    if name in ("sum", "any"):
        return 0
    if name == "all":
        return 1
    if dtype.kind == "f":
        return np.inf if name == "min" else -np.inf
    if dtype.kind == "b":
        return name == "min"
    limits = np.iinfo(dtype)
    return limits.max if name == "min" else limits.min
