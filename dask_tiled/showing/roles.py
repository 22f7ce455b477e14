"""The role of each axis in a picture: scan, frame, colours, separate images, sliders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from dask_tiled.model.axes import Axis

DEPTHS = "z", "depth"
"""Names of the axis along which images form a volume."""
SPACE = "x", "y", *DEPTHS, "kx", "ky", "qx", "qy", "rx", "ry"
"""Names of the axes of images and volumes."""
COLOURS = "s", "c", "channel", "component", "colour", "rgb"
"""Names of an axis of three or four colours."""
CHANNELS = "c", "channel"
"""Names of an axis of channels, which are never summed."""
SAMPLES = "s", "rgb", "colour"
"""Names of an axis of colours, wherever it is."""
APART = "component", "mask", "s"
"""Names of the last axis of results that are separate images."""
STACKED = *CHANNELS, "t", "time", "frame"
"""Navigation axes along which frames form a stack."""

MOST_APART = 16
"""Maximum number of channels drawn separately; more channels are treated as a spectrum."""


class Roles(NamedTuple):
    """The roles of the axes of an array, none of which has length 1; others have sliders."""

    scan: tuple[int, ...]
    """Up to two axes, along which frames are selected."""
    frame: tuple[int, ...]
    """One or two axes."""
    colours: int | None
    """Axis of red, green and blue."""
    order: tuple[int, ...]
    """Positions of red, green and blue along it."""
    apart: int | None
    """Axis of channels, components or masks, which are separate images."""
    is_volume: bool
    """Whether the last three axes are spatial."""

    @classmethod
    def of(cls, axes: Sequence[Axis], shape: Sequence[int], nav_ndim: int) -> Self:
        """Choose the roles of axes, of which the first ``nav_ndim`` are of navigation."""
        colours, order = _colours(axes, shape, nav_ndim)
        apart = _apart(axes, shape)
        left = [k for k in range(len(axes)) if k not in {colours, apart}]
        frame = [k for k in left if k >= nav_ndim][-2:]
        outer = [k for k in left if k < nav_ndim]
        if not frame:
            frame, outer = outer[-2:], outer[:-2]
        scan = [k for k in outer if axes[k].name not in DEPTHS]
        is_stack = any(axes[k].name in STACKED for k in scan[-2:])
        scan = scan[-1:] if is_stack else scan[-2:]
        sig_ndim = len(axes) - nav_ndim
        is_deep = sig_ndim == 2 and nav_ndim and axes[-3].name in DEPTHS
        is_volume = sig_ndim > 2 or bool(is_deep)
        return cls(tuple(scan), tuple(frame), colours, order, apart, is_volume)


def _apart(axes: Sequence[Axis], shape: Sequence[int]) -> int | None:
    last = len(axes) - 1
    for k, axis in enumerate(axes):
        is_pair = len(axes) > 2 and axis.name.startswith("axis ") and shape[k] == 2  # unnamed
        is_result = k == last and (axis.name in APART or is_pair)
        is_channels = k < last - 1 and axis.name in CHANNELS
        if last > 0 and (is_result or is_channels) and shape[k] <= MOST_APART:
            return k
    return None


def _colours(
    axes: Sequence[Axis], shape: Sequence[int], nav_ndim: int
) -> tuple[int | None, tuple[int, ...]]:
    """Return the axis of red, green and blue, the last of several, and their positions."""
    for k in reversed(range(len(axes))):
        places = colour_places(axes[k], shape[k])
        if places:
            return k, places
    names = ["" if axis.labels else axis.name for axis in axes]  # colours have no other labels
    return colour_axis(names, shape, nav_ndim), (0, 1, 2)


def colour_places(axis: Axis, size: int) -> tuple[int, ...]:
    """Return the positions of red, green and blue along an axis of samples; empty for others."""
    names = [label[:1].casefold() for label in axis.labels] or [*"rgba"]
    known = axis.name in SAMPLES and size in {3, 4} and {*"rgb"} <= {*names}
    return tuple(map(names.index, "rgb")) if known else ()


def colour_axis(names: Sequence[str], shape: Sequence[int], first: int = 0) -> int | None:
    """Return the colour axis among the last three axes, not before ``first``."""
    places = range(max(first, len(shape) - 3), len(shape))
    if len(places) == 3:
        for k in (places[2], places[0]):
            if names[k] in COLOURS and shape[k] in (3, 4):
                return k
    return None
