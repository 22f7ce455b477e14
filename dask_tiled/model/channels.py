"""Files with frames of several channels at each position of a scan."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.model.axes import nav_axes
from dask_tiled.model.description import Description, facts_of
from dask_tiled.model.doubts import Doubt

CHANNELS = "scan_channels"
"""Metadata key of a format: names of the channels on the last navigation axis, if a scan shape must
not mix them."""


def channels_of(desc: Description) -> tuple[str, ...]:
    """Return the names of the channels at each position; empty if there are fewer than two."""
    names: tuple[str, ...] = facts_of(desc).get(CHANNELS, ())
    return names if len(names) > 1 else ()


def left_after(desc: Description, scan: tuple[int, ...], frames: int, first: int) -> int:
    """Return how many frames are left for a scan shape from a position on.

    Without an axis of channels, those of one channel count.
    """
    channels = max(1, len(channels_of(desc)))
    positions = frames // channels - first
    return positions * channels if scan[-1] == channels else positions


def in_scan(desc: Description, nav_shape: tuple[int, ...], first: int) -> Description:
    """Return the frames in a scan shape from a position on, without mixing channels.

    If the last axis of the shape is not that of the channels, only the first one is shown, with a
    doubt.

    Raises
    ------
    DatasetError
        The shape has more positions than there are, so that it may include the channels.
    """
    channels = channels_of(desc)
    count, size = len(channels), math.prod(nav_shape)
    if not channels:
        return desc.with_frames(nav_shape, first)
    there = max(desc.layout.n_frames, math.prod(desc.nav_shape)) // count
    if nav_shape[-1] == count and len(nav_shape) > 1 and size != there:
        shown, last = desc.with_frames(nav_shape, first * count), desc.axes[desc.nav_ndim - 1]
        if shown.axes[shown.nav_ndim - 1] == last:
            return shown
        return replace(
            shown, axes=(*nav_axes(shown.nav_ndim - 1), last, *desc.axes[desc.nav_ndim :])
        )
    names = f"{count} channels ({', '.join(channels)})"
    if size > there:
        raise DatasetError(
            "the scan shape would mix channels",
            path=desc.files[0].path,
            expected=f"a shape of up to {there} positions, each with {names}",
            found=nav_shape,
            hint=f"Pass a shape that ends with {count} for all channels.",
        )
    text = f"the scan shows the first of {names}"
    doubt = Doubt("first-channel", text, f"pass nav_shape={(*nav_shape, count)} for all of them")
    numbers = (first + np.arange(size)) * count
    shown = desc.with_frames(nav_shape, numbers=numbers).with_facts(channel=channels[0])
    return shown.with_doubts(doubt)
