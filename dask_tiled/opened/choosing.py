"""Fancy indexing and reshaping of navigation axes, as frames in another order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock

import dask.array as da
import numpy as np
from dask import config

from dask_tiled.labels.axis_kinds import as_axis, at_places, reshaped_axes
from dask_tiled.model.axes import Axis, nav_axes
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import (
    Array,
    Cut,
    Index,
    basic_cuts,
    cut_chunks,
    nav_index,
    point_index,
)
from dask_tiled.system.forks import held_at_fork
from dask_tiled.tiling.bases import Chunks, cut_no_block, split

Shown = tuple[Description, Chunks]

SETTINGS = RLock()
"""Lock for changes of dask's configuration, which all threads share: concurrent changes would be
lost."""
held_at_fork(SETTINGS)


@contextmanager
def _unseen() -> Iterator[None]:
    """Disable dask's array plugins, in one thread at a time."""
    with SETTINGS, config.set(array_plugins=()):
        yield


def picked(arr: da.Array, desc: Description, index: object) -> Shown | None:
    """Select frames in any order with NumPy's indices; None for other indices."""
    n = desc.nav_ndim
    indices = nav_index(index, n, arr.ndim)
    sig = indices and basic_cuts(indices[1], desc.sig_shape)
    if indices is None or sig is None:
        return None
    try:
        numbers = _frames(desc)[indices[0]]
    except (IndexError, TypeError, ValueError):  # dask reports the error, or supports it
        return None
    if not numbers.size or not numbers.ndim:
        return None
    shown = _of_frames(desc, numbers)
    axes = _axes_left(desc, indices[0])
    if axes is not None:
        axes += shown.axes[shown.nav_ndim :]
        shown = replace(shown, axes=axes, metadata=desc.metadata)
    shown = shown.cut([Cut(0, 1, size) for size in numbers.shape] + sig)
    try:
        with _unseen():
            chunks: Chunks = da.Array.__getitem__(arr, index).chunks
    except (NotImplementedError, IndexError, TypeError, ValueError):
        pass
    else:
        if tuple(map(sum, chunks)) == shown.shape:
            return shown, chunks
    # unsupported by dask, or another shape: keep the number of frames per chunk
    frames, (rows, *inner) = math.prod(max(axis) for axis in arr.chunks[:n]), numbers.shape
    nav = split(rows, max(1, frames // math.prod(inner))), *((size,) for size in inner)
    return shown, (*nav, *map(cut_chunks, arr.chunks[n:], sig))


def _axes_left(
    desc: Description, items: tuple[int | np.integer | slice | Array, ...]
) -> tuple[Axis, ...] | None:
    """Return the navigation axes after slices and one list of positions; None if axes mix."""
    lists = [item for item in items if isinstance(item, np.ndarray)]
    whole = [item for item in items if isinstance(item, (int, np.integer))]
    mixed = len(lists) > 1 or any(places.ndim > 1 for places in lists) or (lists and whole)
    if mixed or len(items) != desc.nav_ndim:
        return None
    axes = list[Axis | None]()
    for item, axis, size in zip(items, desc.axes, desc.nav_shape, strict=False):
        if isinstance(item, (int, np.integer)):
            continue
        axes.append(as_axis(at_places(axis, np.arange(size)[item])))
    return tuple(axis for axis in axes if axis is not None)


def at_points(
    desc: Description, chunks: Chunks, key: object
) -> tuple[Shown, tuple[int, ...]] | None:
    """Select the frames at points, in their order; return them and the shape of the result.

    None for points of dask's ``vindex`` beyond the navigation axes.
    """
    index = point_index(key, len(chunks))
    cuts = index and basic_cuts(index.basic, desc.shape)
    if index is None or cuts is None:
        return None
    part, n = desc.cut(cuts), len(index.axes)
    if max(index.axes) >= part.nav_ndim:
        return None
    try:
        numbers = np.moveaxis(_frames(part), index.axes, range(n))[index.points]
    except IndexError:
        return None
    if not numbers.size:
        return None
    shape = numbers.shape[: numbers.ndim - part.nav_ndim + n]
    numbers = numbers.reshape(-1, *numbers.shape[len(shape) :])
    cut = [cut_chunks(axis, cut) for axis, cut in zip(chunks, cuts, strict=True) if cut.kept]
    points = split(len(numbers), math.prod(max(cut[axis]) for axis in index.axes))
    others = (axis for k, axis in enumerate(cut) if k not in index.axes)
    shown = _of_frames(part, numbers)
    return (shown, (points, *others)), shape + shown.shape[1:]


def reshaped(
    arr: da.Array, desc: Description, shape: tuple[object, ...], **options: object
) -> Shown | None:
    """Reshape the navigation axes, in dask's chunks; None if other axes change."""
    n = len(shape) - len(desc.sig_shape)
    if n < 1 or shape[n:] != desc.sig_shape:
        return None
    with _unseen():
        made = da.Array.reshape(arr, shape, **options)
    nav, layout = made.shape[:n], desc.layout
    if made is arr:
        return None
    whole = layout.shape[: desc.nav_ndim] == layout.nav_shape and layout.selection.numbers is None
    if whole and n != desc.nav_ndim:
        shown = desc.with_frames(nav, layout.selection.first)
    else:
        shown = _of_frames(desc, _frames(desc).reshape(nav))
    axes = _axes_in(desc, nav)
    if axes != shown.axes[:n]:  # some axes, and their metadata, are kept
        axes += shown.axes[n:]
        shown = replace(shown, axes=axes, metadata=desc.metadata)
    ours = made.dask.dependencies[made.name] == {arr.name}  # one chunk from each chunk
    ends = (*((),) * n, *arr.chunks[desc.nav_ndim :])
    return (shown, made.chunks) if ours or cut_no_block(shown, made.chunks, ends) else None


def _axes_in(desc: Description, shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """Return the navigation axes in another shape; unchanged axes keep their calibration."""
    usual = nav_axes(desc.nav_ndim)
    kept = reshaped_axes(desc.axes[: desc.nav_ndim], desc.nav_shape, shape)
    stay = {axis for axis in desc.axes[: desc.nav_ndim] if axis not in usual}
    pairs = zip(kept or (None,) * len(shape), nav_axes(len(shape)), strict=True)
    return tuple(axis if axis is not None and axis in stay else name for axis, name in pairs)


def _frames(desc: Description) -> Index:
    """Return the frame number at every position."""
    layout = desc.layout
    return layout.frame_numbers(layout.cuts[: len(layout.nav_shape)]).reshape(desc.nav_shape)


def _of_frames(desc: Description, numbers: Index) -> Description:
    """Return the description of frames by number."""
    return desc.with_frames(numbers.shape, numbers=np.ascontiguousarray(numbers.ravel()))
