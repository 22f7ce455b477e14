"""Datasets with pixels in other files: virtual datasets, and external storage.

Layout facts: the reference manual of the HDF5 library (H5Pset_external, H5Pset_virtual).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError, TruncatedFileError
from dask_tiled.files.file import is_filling
from dask_tiled.formats.hdf5.grids import Box, boxes_between, uncovered
from dask_tiled.formats.hdf5.library import shape_of
from dask_tiled.formats.hdf5.selections import is_unlimited
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.model.indexing import Index
from dask_tiled.model.layout import MAX_NDIM


class Whole(NamedTuple):
    """The sources of a virtual dataset, which are whole datasets."""

    sources: list[tuple[tuple[int, ...], Any]]
    """Sources with their positions."""
    rest: tuple[Index, Index]
    """The boxes that none covers."""
    lost: list[tuple[str, Box]]
    """Names and boxes of missing sources."""


def whole_sources(tree: Tree, dataset: Any) -> Whole | None:
    """List the sources of a virtual dataset; None unless they are whole datasets in boxes.

    Raise a TruncatedFileError or LookupError if one is missing or too short, and ``missing`` is not
    "fill".
    """
    sources = dataset.virtual_sources()
    boxes = list(map(_box_of, sources))
    regular = not dataset.dtype.shape and all(shape for _, shape in boxes)
    rest = uncovered(boxes, dataset.shape) if regular else None
    if rest is None:
        return None
    found, lost = list[tuple[tuple[int, ...], Any]](), list[tuple[str, Box]]()
    for source, (start, shape) in zip(sources, boxes, strict=True):
        try:
            for member in tree.members(dataset, source):
                lead = len(shape) - getattr(member, "ndim", MAX_NDIM)
                own = (1,) * lead + member.shape
                lacking = _lacking(member, own, shape)
                if lead < 0 or member.dtype != dataset.dtype or (own != shape and not lacking):
                    return None
                for at, size in lacking:
                    place = tuple(n + k for n, k in zip(start, at, strict=True))
                    lost.append((source.file_name, (place, size)))
        except (TruncatedFileError, LookupError):
            if not is_filling():
                raise
            lost.append((source.file_name, (start, shape)))
        else:
            if math.prod(own):
                found.append((start, source))
    return Whole(found, rest, lost)


def _lacking(source: Any, there: tuple[int, ...], shape: tuple[int, ...]) -> list[Box]:
    """Return the box that a source lacks which is shorter than mapped, along one axis only.

    Raise a TruncatedFileError if there is one and ``missing`` is not "fill".
    """
    short = [k for k, (n, most) in enumerate(zip(there, shape, strict=False)) if n != most]
    if len(there) != len(shape) or len(short) != 1 or there[short[0]] > shape[short[0]]:
        return []
    if not is_filling():
        raise TruncatedFileError(
            "a source of a virtual dataset is shorter than mapped",
            path=source.file.filename,
            where=source.name,
            expected=f"shape {shape}",
            found=f"shape {there}",
            hint="Pass missing='fill' to show the frames that it lacks as missing.",
        )
    (axis,) = short
    at = tuple(n if k == axis else 0 for k, n in enumerate(there))
    size = tuple(shape[axis] - n if k == axis else n for k, n in enumerate(there))
    return [(at, size)]


def _box_of(source: Any) -> Box:
    """Return the box of a virtual dataset that maps a whole dataset; an empty one if none."""
    from h5py import h5s

    none: Box = (), ()
    into, taken = source.vspace, source.src_space
    if is_unlimited(into) or is_unlimited(taken) or "%" in source.file_name + source.dset_name:
        return none
    if taken.get_select_type() != h5s.SEL_ALL and (
        taken.get_select_npoints() != math.prod(taken.shape)
    ):
        return none
    if into.get_select_type() == h5s.SEL_ALL:
        return (0,) * len(into.shape), into.shape
    if not into.is_regular_hyperslab():
        return none
    start, stride, count, block = into.get_regular_hyperslab()
    shape = tuple(c * b for c, b in zip(count, block, strict=True))
    box = all(c == 1 or s == b for c, s, b in zip(count, stride, block, strict=True))
    return (start, shape) if box else none


def external_boxes(
    tree: Tree, dataset: Any, itemsize: int
) -> Iterator[tuple[str | None, Box, int, str]]:
    """Yield the boxes of a dataset with external storage: path, box, offset and name.

    The path of a missing file is None if ``missing`` is "fill".
    """
    path, where = dataset.file.filename, f"the external files of {dataset.name}"
    shape = shape_of(dataset)
    total, first = math.prod(shape), 0
    for name, offset, size in dataset.external:
        count, rest = divmod(min(size, (total - first) * itemsize), itemsize)
        if rest:
            raise DatasetError("a pixel lies in two files", path=path, where=where, found=name)
        member = None
        try:
            member = tree.find(name, path, where)
        except TruncatedFileError:
            if not is_filling():
                raise
        for start, box in boxes_between(first, first + count, shape):
            place = int(np.ravel_multi_index(start, shape)) - first
            yield member, (start, box), offset + place * itemsize, name
        first += count
