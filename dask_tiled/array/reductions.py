"""Reductions on tiles: sums, means, extremes and spreads over all frames, or over all pixels."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.array.utils import validate_axis
from dask.core import flatten

from dask_tiled.array.job_arrays import job_array
from dask_tiled.engine.folding import Fold, are_narrow, can_fold
from dask_tiled.model.description import Description
from dask_tiled.reading.loader import Source
from dask_tiled.tiling import machine
from dask_tiled.tiling.chunking import merged

Array = npt.NDArray[Any]

SMALL_RESULTS = 1 << 20
"""Results of so many bytes stay in the cache, however many there are."""
RESULTS_READ = 32
"""So many times the bytes of its results a chunk should have, as long as no thread goes without."""

COMBINED_BY: dict[str, np.ufunc] = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "any": np.logical_or,
    "all": np.logical_and,
}


class Reducible(NamedTuple):
    """An array and what is known of it.

    Attributes
    ----------
    arr : dask.array.Array
    nav_ndim : int
    source : tuple of (Description, Source), or None
        Where its chunks are read from.
    """

    arr: da.Array
    nav_ndim: int
    source: tuple[Description, Source] | None

    def fold(self, fold: Fold, *, tail: tuple[int, ...] = ()) -> da.Array:
        """Fold every chunk."""
        nav, sig = tuple(range(self.nav_ndim)), tuple(range(self.nav_ndim, self.arr.ndim))
        x = self if fold.by_frame else self._with_long_chunks(fold)
        return job_array(
            x.arr,
            x.nav_ndim,
            fold,
            fold.dtype,
            gone=sig if fold.by_frame else nav,
            tail=tail,
            source=x.source,
        )

    def _with_long_chunks(self, fold: Fold) -> Reducible:
        """Merge chunks whose results would take as long to write and combine as they to read."""
        arr: Any = self.arr
        chunks = arr.chunks
        pixels = math.prod(max(axis) for axis in chunks[self.nav_ndim :])
        results = pixels * len(fold.initial) * fold.dtype.itemsize
        if self.source is None or results <= SMALL_RESULTS:
            return self
        frames = math.prod(max(axis) for axis in chunks[: self.nav_ndim])
        wanted = -(-RESULTS_READ * results // (frames * pixels * arr.dtype.itemsize))
        share = -(-arr.npartitions // machine.thread_count())
        longer = merged(chunks[: self.nav_ndim], min(wanted, share))
        found: Reducible = arr.with_chunks(longer + chunks[self.nav_ndim :]).reducible()
        return found


def reduce_array(
    x: Reducible, name: str, axis: Any, *, keepdims: bool, split_every: Any, ddof: float = 0
) -> da.Array | None:
    """Reduce over all navigation axes, all signal axes, or everything.

    Parameters
    ----------
    x : Reducible
    name : {"sum", "mean", "min", "max", "any", "all", "var", "std"}
        The method of an array that gives the same.
    axis, keepdims, split_every, ddof
        As in that method.

    Returns
    -------
    dask.array.Array or None
        None for other axes, for types that cannot be folded, and for arrays without pixels.
    """
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
    found = x.fold(fold)
    left = _left(x, axes, found.ndim, by_frame=by_frame)
    if left:
        combine = partial(_combine, ufunc=COMBINED_BY[name])
        found = da.reduction(
            found,
            partial(_within, ufunc=COMBINED_BY[name]),
            combine,
            combine=combine,
            axis=left,
            dtype=dtype,
            split_every=split_every,
            concatenate=False,
            meta=np.empty((0,) * (found.ndim - len(left)), dtype),
        )
    return found


def _within(block: Array, axis: Any, keepdims: bool, ufunc: np.ufunc) -> Array:  # noqa: ARG001, FBT001
    """Reduce a block, unless it has one position along the axes already."""
    if all(block.shape[k] == 1 for k in axis):
        return block
    reduced: Array = ufunc.reduce(block, axis, keepdims=True, dtype=block.dtype)
    return reduced


def _combine(blocks: Any, axis: Any, keepdims: bool, ufunc: np.ufunc) -> Array:  # noqa: FBT001
    """Combine blocks one by one, without putting them side by side first."""
    first, *others = flatten(blocks, container=list) if isinstance(blocks, list) else [blocks]
    found = ufunc(first, others[0]) if others else first
    for block in others[1:]:
        ufunc(found, block, out=found)
    return found if keepdims else found.squeeze(axis)


def _moments(x: Reducible, axes: tuple[int, ...], split_every: Any) -> da.Array:
    """Give number, mean, and sum of squared differences from it, along a last axis."""
    by_frame = axes[-1] >= x.nav_ndim
    name = f"moments_{'frames' if by_frame else 'pixels'}"
    found = x.fold(Fold(name, np.dtype(np.float64), (np.nan, 0, 0)), tail=(3,))
    left = _left(x, axes, found.ndim - 1, by_frame=by_frame)
    if left:
        found = da.reduction(
            found,
            _merge,
            _merge,
            axis=left,
            dtype=np.float64,
            split_every=split_every,
            meta=np.empty((0,) * (found.ndim - len(left)), np.float64),
        )
    return found


def _left(x: Reducible, axes: tuple[int, ...], ndim: int, *, by_frame: bool) -> tuple[int, ...]:
    """Say which axes of the chunks' results are still to be reduced."""
    if ndim == x.arr.ndim:  # there are several results along the axes that are gone
        return axes
    there = range(x.nav_ndim) if by_frame else range(x.nav_ndim, x.arr.ndim)
    return tuple(i for i, k in enumerate(there) if k in axes)


def _merge(moments: Array, axis: Any, keepdims: bool) -> Array:  # noqa: FBT001 - dask's call
    """Merge the moments of several parts, after Chan, Golub and LeVeque."""
    count, mean, squares = (moments[..., k] for k in range(3))
    n = count.sum(axis, keepdims=True)
    with np.errstate(all="ignore"):  # infinite pixels have no spread
        total = (count * mean).sum(axis, keepdims=True) / n
        spread = (squares + count * (mean - total) ** 2).sum(axis, keepdims=True)
    merged = np.stack([n, total, spread], axis=-1)
    return merged if keepdims else merged.squeeze(axis)


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
