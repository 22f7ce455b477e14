"""Expressions as users write them, on one dask array (nav y, nav x, sig y, sig x).

They work on every such array, whatever library created it. A new expression needs one new line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from comparison.file_format import Array
from comparison.scans import segments


def masks(a: da.Array) -> Array:
    """Return 16 detector masks, (16, y, x), float32."""
    return segments(a.shape[2:])


def dark(a: da.Array) -> Array:
    """Return a dark frame, (y, x), float32."""
    return masks(a)[1] * np.float32(20)


def disk(a: da.Array) -> Array:
    """Return a detector mask, (y, x), bool."""
    return masks(a)[0] > 0


def some(a: da.Array) -> Array:
    """Select every third scan position, (y, x), bool."""
    return np.arange(a.shape[0] * a.shape[1]).reshape(a.shape[:2]) % 3 == 0


def frame_sums(block: Array) -> Array:
    """Sum the frames of a block, as a user of map_blocks would."""
    return block.sum(axis=(2, 3), dtype="f4")


Expression = Callable[[da.Array], Any]

WHOLE: dict[str, Expression] = {
    "sum": lambda a: a.sum(),
    "sum-nav": lambda a: a.sum(axis=(0, 1)),
    "sum-sig": lambda a: a.sum(axis=(2, 3)),
    "sum-y": lambda a: a.sum(axis=0),
    "sum-mixed": lambda a: a.sum(axis=(1, 2)),
    "sum-dtype": lambda a: a.sum(axis=(2, 3), dtype="u8"),
    "sum-keepdims": lambda a: a.sum(axis=(2, 3), keepdims=True),
    "sum-np": lambda a: np.sum(a, axis=(2, 3)),
    "sum-xarray": lambda a: xr.DataArray(a, dims=("y", "x", "ky", "kx")).sum(("ky", "kx")),
    "nansum": lambda a: da.nansum(a, axis=(2, 3)),
    "mean": lambda a: a.mean(),
    "mean-da": lambda a: da.mean(a, axis=(2, 3)),
    "mean-f4": lambda a: a.astype("f4").mean(axis=(2, 3)),
    "std-nav": lambda a: a.std(axis=(0, 1)),
    "var-sig": lambda a: da.var(a, axis=(2, 3)),
    "min": lambda a: a.min(),
    "max": lambda a: a.max(),
    "max-nav": lambda a: a.max(axis=(0, 1)),
    "max-np": lambda a: np.max(a, axis=(2, 3)),
    "ptp": lambda a: da.ptp(a, axis=3),
    "any": lambda a: (a > 250).any(axis=(2, 3)),
    "all": lambda a: (a < 4096).all(),
    "argmax": lambda a: a.argmax(axis=3),
    "argmax-frame": lambda a: a.reshape(*a.shape[:2], -1).argmax(axis=-1),
    "count-nonzero": lambda a: da.count_nonzero(a, axis=(2, 3)),
    "histogram": lambda a: da.histogram(a, bins=64, range=(0, 512))[0],
    "threshold": lambda a: (a > 5).sum(axis=(2, 3)),
    "disk": lambda a: (a * disk(a)).sum(axis=(2, 3)),
    "disk-where": lambda a: da.where(disk(a), a, 0).sum(axis=(2, 3)),
    "weights": lambda a: (a * dark(a)).sum(axis=(2, 3)),
    "weights-some": lambda a: tuple((a * mask).sum(axis=(2, 3)) for mask in masks(a)[:4]),
    "tensordot": lambda a: da.tensordot(a, masks(a), axes=((2, 3), (1, 2))),
    "tensordot-one": lambda a: da.tensordot(a, dark(a), axes=2),
    "einsum": lambda a: da.einsum("abyx,yx->ab", a, dark(a)),
    "matmul": lambda a: a.reshape(*a.shape[:2], -1) @ masks(a).reshape(16, -1).T,
    "centre": lambda a: (a * np.arange(a.shape[3])).sum(axis=(2, 3)) / a.sum(axis=(2, 3)),
    "coarsen-sig": lambda a: da.coarsen(np.sum, a, {2: 4, 3: 4}),
    "coarsen-nav": lambda a: da.coarsen(np.mean, a, {0: 2, 1: 2}, trim_excess=True),
    "sqrt": lambda a: np.sqrt(a).sum(axis=(0, 1)),
    "log1p": lambda a: da.log1p(a).sum(axis=(2, 3)),
    "clip": lambda a: a.clip(20, 200).sum(axis=(0, 1)),
    "minus-dark": lambda a: (a - dark(a)).sum(axis=(2, 3)),
    "corrected": lambda a: ((a.astype("f4") - dark(a)) * np.float32(1.5)).max(axis=(0, 1)),
    "minus-mean": lambda a: abs(a - a.mean(axis=(0, 1))).sum(axis=(2, 3)),
    "over-mean": lambda a: (a / a.mean(axis=(2, 3), keepdims=True)).sum(axis=(0, 1)),
    "halves": lambda a: a[..., : a.shape[2] // 2, :].sum() - a[..., a.shape[2] // 2 :, :].sum(),
    "flip": lambda a: a[..., ::-1, :].sum(axis=(0, 1)),
    "transpose": lambda a: a.transpose(2, 3, 0, 1).sum(axis=(0, 1)),
    "flat-scan": lambda a: a.reshape(-1, *a.shape[2:]).sum(axis=0),
    "map-blocks": lambda a: da.map_blocks(frame_sums, a, drop_axis=(2, 3), dtype="f4"),
    "map-blocks-f4": lambda a: da.map_blocks(lambda block: block.astype("f4"), a),
    "rechunk": lambda a: a.rechunk({0: 4, 1: -1}).sum(axis=(2, 3)),
    "several": lambda a: (a.sum(axis=(0, 1)), a.sum(axis=(2, 3)), a.max(axis=(0, 1)), a.mean()),
    "pixels": lambda a: a,
    "pixels-f4": lambda a: a.astype("f4"),
}
"""Expressions that read every pixel, measured in bytes per second."""

PARTS: dict[str, Expression] = {
    "frame": lambda a: a[1, 2],
    "frames": lambda a: a[len(a) // 2],
    "pixel": lambda a: a[..., 10, 20],
    "crop-nav": lambda a: a[:4, 1:4].sum(axis=(0, 1)),
    "crop-sig": lambda a: a[..., 40:-40, 60:120].sum(axis=(2, 3)),
    "strided-sig": lambda a: a[..., ::4, ::4].sum(axis=(0, 1)),
    "fancy-rows": lambda a: a[[1, 0, -1]].sum(axis=(2, 3)),
    "fancy-points": lambda a: a.vindex[[0, 1, -1], [2, 0, 1]],
    "mask-rows": lambda a: a[some(a)[:, 0]].sum(axis=(0, 1)),
    "mask-scan": lambda a: a.vindex[np.nonzero(some(a))].sum(axis=0),
    "mask-flat": lambda a: a.reshape(-1, *a.shape[2:])[some(a).ravel()].mean(axis=0),
    "flip-scan": lambda a: a[::-1, 0].sum(axis=(1, 2)),
}
"""Expressions that read some pixels, measured in seconds."""

EXPRESSIONS = WHOLE | PARTS


def code(name: str) -> str:
    """Return the source code of an expression."""
    return source(EXPRESSIONS[name])


def source(expression: Expression) -> str:
    """Return the source code of a function of ``a``, which has a line of its own."""
    return inspect.getsource(expression).partition("lambda a: ")[2].strip().removesuffix(",")
