"""Planes of an OME image: which page of which file stands at which place.

Layout facts: the OME-TIFF specification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import CorruptFileError
from dask_tiled.formats.ome_tiff.xml import WHOLE_FILE, Image
from dask_tiled.model.indexing import Index

MAX_PLANES = 2_000_000
"""More would need more memory than a header deserves."""


class Planes(NamedTuple):
    """Planes that the XML speaks of: for each its place in C order of (T, C, Z), and its page.

    Where two have the same place, the last one counts.
    """

    place: Index
    source: Index
    page: Index


def plane_shape(image: Image, samples: int, path: str) -> tuple[int, int, int]:
    """Count the planes along T, C and Z, of pages with so many samples in a pixel."""
    channels, rest = divmod(image.sizes["C"], samples)
    shape = image.sizes["T"], channels, image.sizes["Z"]
    if rest:
        raise CorruptFileError(
            "the pages have another number of samples",
            path=path,
            where="SizeC in the OME-XML",
            expected=f"a multiple of {samples}",
            found=image.sizes["C"],
        )
    if math.prod(shape) > MAX_PLANES:
        raise CorruptFileError(
            "the image has too many planes",
            path=path,
            where="SizeT, SizeC and SizeZ in the OME-XML",
            expected=f"at most {MAX_PLANES} planes",
            found=shape,
        )
    return shape


def place_planes(
    image: Image, shape: tuple[int, int, int], page_counts: Mapping[int, int], path: str
) -> Planes:
    """Find the place of every plane that TiffData elements speak of.

    `shape` is that along T, C and Z; `page_counts` says how many pages there are in the sources of
    which a run takes all.
    """
    runs = image.runs
    sizes = dict(zip("TCZ", shape, strict=True))
    slow_first = [sizes[axis] for axis in reversed(image.order)]
    first = runs.first[:, ["ZCT".index(axis) for axis in reversed(image.order)]]
    inside = (first < slow_first).all(axis=1)
    start = np.zeros(len(first), np.int64)
    for k, size in enumerate(slow_first):
        start = start * size + np.minimum(first[:, k], size)
    whole = np.array([page_counts.get(int(s), 0) for s in runs.source], np.int64)
    count = np.where(runs.planes == WHOLE_FILE, whole, runs.planes)
    count = np.where(inside, np.minimum(count, math.prod(shape) - start), 0)
    total = int(count.sum())
    if total > 2 * MAX_PLANES:
        raise CorruptFileError(
            "planes are placed again and again",
            path=path,
            where="TiffData in the OME-XML",
            expected=f"{math.prod(shape)} planes",
            found=total,
        )
    within = np.arange(total) - np.repeat(count.cumsum() - count, count)
    at = np.unravel_index(np.repeat(start, count) + within, slow_first)
    along = dict(zip(reversed(image.order), at, strict=True))
    place = (along["T"] * shape[1] + along["C"]) * shape[2] + along["Z"]
    return Planes(
        place.astype(np.int64),
        np.repeat(runs.source, count),
        np.repeat(runs.page, count) + within,
    )
