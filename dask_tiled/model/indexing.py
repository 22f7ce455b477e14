"""Indices that cut a source: integers, slices with a positive step and an ellipsis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

CutIndex = tuple[int, int, int, bool]
"""Start, step and count along an axis, and whether the axis stays."""


def basic_cuts(index: Any, shape: tuple[int, ...]) -> list[CutIndex] | None:
    """Read an index of integers, slices with a positive step and an ellipsis.

    Returns
    -------
    list of (start, step, count, kept) or None
        One for each axis; None for any other index, an empty or a wrong one.
    """
    items: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    ellipses = [k for k, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1 or len(items) - len(ellipses) > len(shape):
        return None
    at = ellipses[0] if ellipses else len(items)
    missing = len(shape) - (len(items) - len(ellipses))
    items = [*items[:at], *[slice(None)] * missing, *items[at + 1 :]]
    cuts = [_basic_cut(item, size) for item, size in zip(items, shape, strict=True)]
    return None if None in cuts else cuts  # type: ignore[return-value]


def _basic_cut(item: Any, size: int) -> CutIndex | None:
    if isinstance(item, slice):
        try:
            start, stop, step = item.indices(size)
        except TypeError:
            return None
        count = len(range(start, stop, step))
        if step < 0 or not count:
            return None
        return (start, step if count > 1 else 1, count, True)
    if isinstance(item, (bool, np.bool_)) or not isinstance(item, (int, np.integer)):
        return None
    at = operator.index(item)
    at += size * (at < 0)
    return (at, 1, 1, False) if 0 <= at < size else None


def cut_chunks(chunks: tuple[int, ...], cut: CutIndex) -> tuple[int, ...]:
    """Keep the edges of the chunks where they fall in a cut."""
    start, step, count, _ = cut
    if count == 1:
        return (1,)
    edges = np.cumsum((0, *chunks))
    before = np.clip(-(-(edges - start) // step), 0, count)
    sizes = np.diff(before)
    return tuple(sizes[sizes > 0].tolist())
