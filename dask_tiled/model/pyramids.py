"""Levels of pyramids: how they are computed, each from the one before, and found in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dask_tiled.model.axes import Axis

Method = Literal["mean", "mode", "nearest"]
METHODS: tuple[Method, ...] = "mean", "mode", "nearest"


class Halving(NamedTuple):
    """The axes that are halved from level to level, and how."""

    axes: tuple[int, ...] = ()
    method: Method = "mean"
    """Of the pixels that become one: their mean, the most frequent one, or the first."""

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the next level."""
        return tuple(-(-n // 2) if k in self.axes else n for k, n in enumerate(shape))

    def at_level(self, axes: Sequence[Axis | None], level: int) -> tuple[Axis | None, ...]:
        """Return the axes of a level: all but the first pixel lie at the centres of pixels."""
        found = [*axes]
        for k in self.axes:
            axis = axes[k]
            if axis is not None:
                count = 1 << level
                found[k] = axis.cut(0, count) if self.method == "nearest" else axis.binned(count)
        return tuple(found)


def lower_levels(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the options that open the lower levels of an image, from the metadata of its format.

    Levels have names, or numbers if the metadata hold their count or their factors.
    """
    levels, shown = facts.get("levels") or (), facts.get("dataset")
    if isinstance(levels, tuple) and all(isinstance(one, str) for one in levels):
        first = levels.index(shown) + 1 if shown in levels else 1
        number = {"level": 0} if facts.get("level") else {}  # counted from those below
        return [{"dataset": one, **number} for one in levels[first:]]
    image = {} if shown is None else {"dataset": shown}
    count = levels if isinstance(levels, int) else len(levels)
    return [{"level": k, **image} for k in range(facts.get("level", 0) + 1, count)]
