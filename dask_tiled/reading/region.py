"""A box of what an array shows, in the terms of the files: numbers of frames, cuts of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dask_tiled.model.indexing import Box, Cut, cut_again
from dask_tiled.model.layout import Layout
from dask_tiled.model.selection import Index, c_order


class Region(NamedTuple):
    """What a box holds.

    Attributes
    ----------
    frames : int64 array
        Numbers of its frames, in C order.
    sig : tuple of Cut
        What it holds of each signal axis of the files, of those that are not shown too.
    places : int64 array
        Where the frames are, counted in C order of the navigation axes that the array shows.
    nav_counts : tuple of int
        Length along each navigation axis that is shown.
    """

    frames: Index
    sig: tuple[Cut, ...]
    places: Index
    nav_counts: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape that the box is decoded in: its frames on one axis, and every signal axis."""
        return (len(self.frames), *(cut.length for cut in self.sig))


def region_of(layout: Layout, box: Box) -> Region:
    """Find what a box, a part of ``layout.shape``, holds."""
    cuts = cut_to(layout.cuts, box)
    n = len(layout.nav_shape)
    shown = [cut.length for cut in layout.cuts[:n] if cut.kept]
    nav = [np.arange(start, stop) for start, stop in box[: len(shown)]]
    return Region(
        layout.frame_numbers(cuts[:n]),
        cuts[n:],
        c_order(nav, shown),
        tuple(map(len, nav)),
    )


def cut_to(cuts: Iterable[Cut], box: Box) -> tuple[Cut, ...]:
    """Cut axes, some of which are not shown, to a box of those that are."""
    return cut_again(cuts, (Cut(start, 1, stop - start) for start, stop in box))
