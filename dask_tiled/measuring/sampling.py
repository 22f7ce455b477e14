"""Samples of frames at equal intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import dask.array as da
import numpy as np
from dask.base import compute

from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import is_url
from dask_tiled.model.indexing import Array
from dask_tiled.opened.axes import shown_of
from dask_tiled.opened.tiled_array import TiledArray, read_once

SAMPLE_BYTES = 1 << 29
"""Files up to this size are read completely; of larger ones about this many bytes."""
REMOTE_SAMPLE_BYTES = 1 << 26
SAMPLE_FRAMES = 128 * 128


def sampled(arr: da.Array, nav_ndim: int, limit: int | None = None) -> da.Array:
    """Return at most ``limit`` frames; if some are missing, the existing ones on one axis.

    Raise a DatasetError if there are no frames, or all are missing.
    """
    return _existing(arr, steps_between(arr, nav_ndim, limit))[0]


def sampled_places(arr: da.Array, nav_ndim: int, limit: int) -> tuple[da.Array, Array]:
    """Return at most ``limit`` existing frames on one axis, and the place (n, nav) of each."""
    steps = steps_between(arr, nav_ndim, limit)
    sample, there = _existing(arr, steps)
    places = np.argwhere(there) * np.array(steps, int)
    return sample.reshape((len(places), *arr.shape[nav_ndim:])), places


def _existing(arr: da.Array, steps: list[int]) -> tuple[da.Array, Array]:
    """Return frames in steps, on one axis if some are missing, and which exist."""
    sample = read_once(arr[tuple(slice(None, None, step) for step in steps)])
    there = np.ones(sample.shape[: len(steps)], bool)
    if isinstance(sample, TiledArray) and sample.description is not None:
        there.ravel()[sample.description.missing] = False
    if not there.any():
        found = "only missing frames" if there.size else f"shape {arr.shape}"
        raise DatasetError("there are no frames", found=found)
    return (sample if there.all() else sample[there]), there


def mean_of(pixels: da.Array, nav_ndim: int) -> Array:
    """Return the mean of all frames, ignoring pixels that are not finite."""
    nav = tuple(range(nav_ndim))
    if pixels.dtype.kind != "f":
        found: Array = pixels.mean(nav).compute()
        return found
    finite = da.isfinite(pixels)
    total = da.where(finite, pixels, 0).sum(nav, dtype=np.float64)
    sums = compute(total, finite.sum(nav))
    with np.errstate(invalid="ignore"):
        return np.divide(*sums)


def steps_between(arr: da.Array, nav_ndim: int, limit: int | None) -> list[int]:
    """Return the steps between sampled positions along the navigation axes.

    Without a limit, small arrays are sampled completely, others with some 16,384 frames.
    """
    frame = math.prod(arr.shape[nav_ndim:]) * arr.dtype.itemsize
    budget = sample_bytes(arr)
    steps, counts = [1] * nav_ndim, [*arr.shape[:nav_ndim]]
    count = math.prod(counts)
    if not count or (limit is None and count * frame <= budget):
        return steps
    blocks = blocks_of(arr, nav_ndim)

    def is_too_much() -> bool:
        if math.prod(counts) > (limit or SAMPLE_FRAMES):
            return True
        read = [
            min(n, -(-size // block)) * block
            for n, size, block in zip(counts, arr.shape, blocks, strict=False)
        ]
        return limit is None and math.prod(counts) > 1 and math.prod(read) * frame > budget

    while is_too_much():
        longest = counts.index(max(counts))
        steps[longest] *= 2
        counts[longest] = -(-arr.shape[longest] // steps[longest])
    return steps


_most: ContextVar[int] = ContextVar("most", default=SAMPLE_BYTES)


@contextmanager
def reading_at_most(nbytes: int) -> Iterator[None]:
    """Read larger arrays only in part, in this context."""
    token = _most.set(nbytes)
    try:
        yield
    finally:
        _most.reset(token)


def sample_bytes(arr: da.Array) -> int:
    """Return the bytes up to which an array is read completely."""
    return min(_most.get(), REMOTE_SAMPLE_BYTES if is_remote(arr) else SAMPLE_BYTES)


def is_remote(arr: da.Array) -> bool:
    """Return whether files behind URLs are read for an array."""
    return any(is_url(one.files[0].path) for one in shown_of(arr).of)


def blocks_of(arr: da.Array, nav_ndim: int) -> list[int]:
    """Return the block sizes along the navigation axes: blocks are read as a whole."""
    if isinstance(arr, TiledArray) and arr.description is not None:
        return [base.size for base in arr.scheme.bases[:nav_ndim]]
    if all(axis is not None for axis in shown_of(arr).axes):
        return [1] * nav_ndim  # single frames can be read
    return [int(n) for n in arr.chunksize[:nav_ndim]]
