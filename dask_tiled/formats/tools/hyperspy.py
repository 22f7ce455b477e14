"""Axes of the signals of HyperSpy, in HDF5 and in zarr.

Layout facts: the specification of HyperSpy's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dask_tiled.model.axes import Axis


class AxisFacts(NamedTuple):
    """What the group of an axis holds."""

    axis: Axis
    place: int | None
    """Its number among the axes of the array."""
    navigate: bool | None
    """Whether it is a navigation axis."""
    lost: str = ""
    """Why positions in the file are not shown; empty if they are."""


def in_order(facts: Sequence[AxisFacts]) -> tuple[AxisFacts, ...]:
    """Return axes in the order of the array; in the given order if their numbers are invalid."""
    places = [k if one.place is None else one.place for k, one in enumerate(facts)]
    valid = sorted(places) == list(range(len(facts)))
    return tuple(facts[places.index(k)] for k in range(len(facts))) if valid else tuple(facts)


def signal_dims(facts: Sequence[AxisFacts]) -> int | None:
    """Return the number of signal axes; None if navigation axes are not the first ones."""
    navigates = [bool(one.navigate) for one in facts]
    count = navigates.count(False)
    first = all(navigates[: len(navigates) - count])  # otherwise the axes cannot be split
    return max(1, count) if first else None
