"""How the levels of a pyramid are computed, each from the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from dask_tiled.model.axes import Axis

Method = Literal["mean", "nearest"]
METHODS: tuple[Method, ...] = "mean", "nearest"


class Halving(NamedTuple):
    """The axes that are halved from level to level, and how."""

    axes: tuple[int, ...] = ()
    method: Method = "mean"
    """The mean of each pair of pixels, or its first pixel."""

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the next level."""
        return tuple(-(-n // 2) if k in self.axes else n for k, n in enumerate(shape))

    def at_level(self, axes: Sequence[Axis | None], level: int) -> tuple[Axis | None, ...]:
        """Return the axes of a level: means lie at the centres of the pixels they average."""
        found = [*axes]
        for k in self.axes:
            axis = axes[k]
            if axis is not None:
                count = 1 << level
                found[k] = axis.binned(count) if self.method == "mean" else axis.cut(0, count)
        return tuple(found)
