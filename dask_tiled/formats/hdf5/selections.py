"""Selections of HDF5 dataspaces, as boxes: what sources fill of a virtual dataset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.formats.hdf5.grids import Box
from dask_tiled.model.indexing import Array, Index

MOST_BOXES = 1 << 20
"""Maximum number of boxes in a selection."""
MOST_ROWS = 1 << 26
"""Maximum number of rows that are marked, a byte each."""


def is_unlimited(space: Any) -> bool:
    """Return whether a selection is unlimited."""
    from h5py import h5s

    if space.get_select_type() != h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        return False
    _, _, count, block = space.get_regular_hyperslab()
    return h5s.UNLIMITED in count + block


def boxes_of(space: Any, shape: tuple[int, ...]) -> list[Box]:
    """Return the boxes of a selection in a dataset of this shape.

    There are none if it is unlimited, or not of boxes.
    """
    from h5py import h5s

    kind = space.get_select_type()
    if kind == h5s.SEL_ALL:
        return [((0,) * len(shape), shape)]  # the selection may not know it
    if kind != h5s.SEL_HYPERSLABS or is_unlimited(space):
        return []
    if space.get_select_hyper_nblocks() > MOST_BOXES:
        return []
    blocks = space.get_select_hyper_blocklist().astype(np.int64)
    starts, shapes = blocks[:, 0].tolist(), (blocks[:, 1] - blocks[:, 0] + 1).tolist()
    return [(tuple(one), tuple(shape)) for one, shape in zip(starts, shapes, strict=True)]


def moved(boxes: Sequence[Box], source: Any, taken: Any, into: Any) -> list[Box] | None:
    """Return the boxes of a virtual dataset that boxes of a source fill.

    Parameters
    ----------
    boxes : sequence of Box
        Boxes of the source.
    source : h5py.Dataset
    taken, into : h5py.h5s.SpaceID
        Selections of the source and of the virtual dataset. Their pixels correspond to each other
        in C order.

    Returns
    -------
    list of Box, or None
        None if they cannot be located: selections that are not of boxes, or too many rows.
    """
    own, whole = source.shape, into.shape
    sets = (boxes, own), (boxes_of(taken, own), own), (boxes_of(into, whole), whole)
    if not all(some for some, _ in sets):
        return None
    common = range(min(len(own), len(whole)), -1, -1)
    ndim = next(n for n in common if _have_rows(sets, whole[len(whole) - n :]))
    leads = [shape[: len(shape) - ndim] for _, shape in sets]
    if max(map(math.prod, leads)) > MOST_ROWS:
        return None
    marked, read, filled = (_mark(some, lead) for (some, _), lead in zip(sets, leads, strict=True))
    rest = whole[len(leads[2]) :]
    runs = _runs(np.flatnonzero(filled)[marked[read]], leads[2])
    return [(start + (0,) * ndim, shape + rest) for start, shape in runs]


def _have_rows(sets: Sequence[tuple[Sequence[Box], tuple[int, ...]]], row: tuple[int, ...]) -> bool:
    """Return whether boxes in arrays are of whole rows, which are of one shape in all arrays."""
    at, none = slice(-len(row) or (1 << 30), None), (0,) * len(row)
    return all(
        shape[at] == row and all(start[at] == none and size[at] == row for start, size in boxes)
        for boxes, shape in sets
    )


def _mark(boxes: Sequence[Box], lead: tuple[int, ...]) -> Array:
    """Return a mask of the rows of boxes, along their first axes."""
    mask = np.zeros(lead, bool)
    for start, shape in boxes:
        ranges = zip(start[: len(lead)], shape, strict=False)
        mask[tuple(slice(first, first + n) for first, n in ranges)] = True
    return mask


def _runs(numbers: Index, shape: tuple[int, ...]) -> list[Box]:
    """Return boxes of ascending positions in C order, each along the last axis."""
    if not shape:
        return [((), ())] * len(numbers)
    begins = np.flatnonzero((np.diff(numbers, prepend=-2) != 1) | (numbers % shape[-1] == 0))
    starts = np.transpose(np.unravel_index(numbers[begins], shape)).tolist()
    counts = np.diff(begins, append=len(numbers)).tolist()
    lead = (1,) * (len(shape) - 1)
    return [(tuple(start), (*lead, n)) for start, n in zip(starts, counts, strict=True)]
