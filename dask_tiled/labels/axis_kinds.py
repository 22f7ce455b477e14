"""Propagation of axes: slicing, joining, reshaping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array
from dask_tiled.plans.views import View

PIXELS = Axis("")
NEAR = 1e-6
"""Relative tolerance of positions, in steps."""


@dataclass(frozen=True, slots=True)
class Unplaced(Axis):
    """An axis with a name, and perhaps labels, but without known positions."""

    @classmethod
    def of(cls, axis: Axis) -> Unplaced:
        """Return an axis without its positions."""
        return cls(axis.name, labels=axis.labels, colours=axis.colours)

    def cut(self, start: int, step: int, length: int | None = None) -> Axis:
        """Return a part of the axis: its labels remain, its positions are dropped."""
        return Unplaced.of(Axis.cut(self, start, step, length))

    def binned(self, count: int) -> Axis:
        """Return the axis; labels are lost unless bins have one position."""
        return self if count == 1 else Unplaced(self.name)


@dataclass(frozen=True, slots=True)
class Frequencies(Axis):
    """Frequencies of a transformed axis, counted from 0.

    They are periodic with ``count`` steps: the second half are negative frequencies.
    """

    of: Axis = field(default=PIXELS)
    count: int = 0
    backward: bool = False
    """Result of an inverse transform, which a forward transform undoes."""


def as_axis(axis: Axis | None) -> Axis | None:
    """Convert to a public Axis."""
    if axis is None or type(axis) is Axis:
        return axis
    lists: dict[str, Any] = {"labels": axis.labels, "colours": axis.colours}
    if isinstance(axis, Unplaced):
        return Axis(axis.name, **lists)
    return Axis(axis.name, axis.units, axis.scale, axis.offset, **lists)


def at_places(axis: Axis, places: Array) -> Axis:
    """Return the axis at some positions, in any order."""
    steps = {*(places[1:] - places[:-1]).tolist()} if len(places) > 1 else {1}
    if len(steps) == 1 and len(places) and 0 not in steps:
        return axis.cut(int(places[0]), steps.pop(), len(places))
    labels, colours = (tuple(one[k] for k in places if one) for one in (axis.labels, axis.colours))
    return Unplaced(axis.name, labels=labels, colours=colours)


def same(axes: Sequence[Axis | None], *, neighbours: bool = False) -> Axis | None:
    """Merge the axes of several arrays: drop conflicting scales; None if the names differ.

    With ``neighbours``, axes one step apart merge to the positions halfway between.
    """
    known = [axis for axis in axes if axis is not None]
    if len({axis.name for axis in known}) != 1:
        return None
    bare = Axis(known[0].name)
    first, *others = [axis for axis in known if axis != bare] or [bare]
    if all(_are_close(other, first) for other in others):
        return first
    if neighbours and len(others) == 1 and abs(first.scale) > 0:
        apart = (others[0].offset - first.offset) / first.scale
        moved = replace(others[0], offset=first.offset)
        if _are_close(moved, first) and abs(abs(apart) - 1) < NEAR and not first.labels:
            return replace(first, offset=(first.offset + others[0].offset) / 2)
    return Unplaced(bare.name)


def joined(axes: Sequence[Axis | None], lengths: Sequence[int]) -> Axis | None:
    """Return the axis of concatenated parts; its positions must continue."""
    if any(axis is None for axis in axes) or len({axis.name for axis in axes if axis}) != 1:
        return None
    parts = [axis for axis in axes if axis is not None]
    lists: dict[str, Any] = {name: _joined(parts, name, lengths) for name in ("labels", "colours")}
    if any(axis.coordinates for axis in parts):
        points = _joined(parts, "coordinates", lengths)
        if not points or len({axis.coordinate_units for axis in parts}) > 1:
            return Unplaced(parts[0].name, **lists)
        return replace(parts[0], **lists, coordinates=points)
    first, *others = (replace(axis, labels=(), colours=()) for axis in parts)
    position, wraps = 0, False
    for axis, length in zip(others, lengths, strict=False):
        position += length
        expected = first.cut(position, 1)
        if not _are_close(axis, expected):
            if not isinstance(axis, Frequencies) or not _are_close(
                _again(axis, expected), expected
            ):
                return Unplaced(first.name, **lists)
            wraps = True
    if wraps and isinstance(first, Frequencies):
        first = from_negative(first)
    return replace(first, **lists)


def _joined(parts: Sequence[Axis], name: str, lengths: Sequence[int]) -> tuple[Any, ...]:
    """Return the concatenated lists of axes; empty unless all are complete."""
    lists = [getattr(axis, name) for axis in parts]
    complete = all(len(one) == n for one, n in zip(lists, lengths, strict=True))
    return tuple(x for one in lists for x in one) if complete else ()


def _again(axis: Frequencies, near: Axis) -> Axis:
    """Shift frequencies by whole periods, close to an expected axis."""
    period = axis.scale * axis.count
    return replace(axis, offset=axis.offset + period * round((near.offset - axis.offset) / period))


def from_negative(axis: Frequencies) -> Frequencies:
    """Shift frequencies so that the axis begins with the negative ones, if its positions do."""
    part = axis.offset / (axis.scale * axis.count) % 1
    part = 0.0 if part > 1 - NEAR else part
    return replace(axis, offset=(part - (part >= 0.5 - NEAR)) * axis.scale * axis.count)


def _are_close(one: Axis, other: Axis) -> bool:
    """Return whether two axes are equal up to rounding."""
    even = replace(one, scale=other.scale, offset=other.offset) == other
    near = abs(other.scale) * NEAR
    return even and abs(one.scale - other.scale) <= near and abs(one.offset - other.offset) <= near


def reshaped_axes(
    axes: Sequence[Axis | None], shape: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[Axis | None, ...] | None:
    """Return the axes after a reshape; the outermost part of a split axis is binned."""
    whole = View.of(len(axes))
    view = whole.reshaped(whole.sizes(shape), wanted)
    if view is None:
        return None
    new_axes: list[Axis | None] = []
    for parts, length in zip(view.shown, wanted, strict=True):
        part = parts[0] if len(parts) == 1 else None
        axis = None if part is None else axes[part.axis]
        outermost = part is not None and part.step * length == shape[part.axis]
        new_axes.append(axis.binned(part.step) if axis and part and outermost else None)
    return tuple(new_axes)
