"""The axes of arrays: names, units, scales."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dask_tiled.model.indexing import Array

MOST_SHOWN = 8
"""Maximum number of labels shown as text."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of an array. Position ``i`` has the coordinate ``offset + scale * i``.

    Attributes
    ----------
    name : str
        Name of the dimension.
    units : str
        Unit of the scale; empty if unknown.
    scale, offset : float
        Calibration; 1 and 0 if unknown.
    labels : tuple of str
        Names of the positions, for example of channels or components; empty if unnamed.

    Examples
    --------
    >>> import dask_tiled
    >>> axis = dask_tiled.Axis("scan_x", "nm", 0.5)
    >>> axis.units, axis.scale, axis.offset
    ('nm', 0.5, 0.0)
    """

    name: str
    units: str = ""
    scale: float = 1.0
    offset: float = 0.0
    labels: tuple[str, ...] = ()

    @classmethod
    def calibrated(
        cls, name: str, units: str, scale: float, offset: float = 0.0, *, signed: bool = False
    ) -> Axis:
        """Return an axis with a scale from a file, or without a scale if that one is invalid.

        Scales are positive; with ``signed`` they may be negative.
        """
        if not 0 < (abs(scale) if signed else scale) < math.inf:
            return cls(name)
        return cls(name, units, scale, offset if math.isfinite(offset) else 0.0)

    @classmethod
    def through(cls, name: str, units: str, points: Array) -> Axis | None:
        """Return the axis through positions, if they are equally spaced to 1/1000 of a step."""
        with np.errstate(all="ignore"):  # any may be NaN or infinite
            points = points.astype(float)
            scale = float(points[-1] - points[0]) / max(1, len(points) - 1)
            line = points[0] + scale * np.arange(len(points))
            even = bool((abs(points - line) <= 1e-3 * abs(scale)).all())
        return cls(name, units, scale, float(points[0])) if scale and even else None

    def cut(self, start: int, step: int, length: int | None = None) -> Axis:
        """Return the axis of every ``step``-th position from ``start`` on, of ``length`` at most.

        Positions before the first one have no labels.
        """
        if (start, step) == (0, 1) and not self.labels:
            return self
        offset, scale = self.offset + self.scale * start, self.scale * step
        labels = self.labels[start::step][:length] if start >= 0 else ()
        return replace(self, offset=offset, scale=scale, labels=labels)

    def binned(self, count: int) -> Axis:
        """Return the axis of bins of ``count`` positions, each at the middle of its positions."""
        middle = self.offset + self.scale * (count - 1) / 2
        labels = self.labels if count == 1 else ()
        return replace(self, offset=middle, scale=self.scale * count, labels=labels)

    @property
    def listed(self) -> str:
        """The labels as text, truncated after the first ones; empty if there are none."""
        shown = [*self.labels[:MOST_SHOWN], *["..."] * (len(self.labels) > MOST_SHOWN)]
        return f" ({', '.join(shown)})" if shown else ""

    @property
    def steps(self) -> str:
        """The scale as text, with its sign and the offset; empty if the axis has none."""
        if replace(self, labels=()) == Axis(self.name):
            return ""
        units = self.units and f" {self.units}"
        start = f" from {self.offset:g}{units}" if self.offset else ""
        return f" (steps of {self.scale:g}{units}{start})"

    def __str__(self) -> str:
        return self.name + self.steps


def nav_axes(ndim: int) -> tuple[Axis, ...]:
    """Return navigation axes with default names."""
    names = {0: (), 1: ("frame",), 2: ("scan_y", "scan_x")}
    return tuple(map(Axis, names.get(ndim, tuple(f"nav_{k}" for k in range(ndim)))))


def sig_axes(ndim: int) -> tuple[Axis, ...]:
    """Return signal axes with default names."""
    names = {0: (), 1: ("channel",), 2: ("y", "x"), 3: ("z", "y", "x")}
    return tuple(map(Axis, names.get(ndim, tuple(f"sig_{k}" for k in range(ndim)))))
