"""HDF5's own names of axes: labels and scales of dimensions, as netCDF-4, xarray and h5py write.

Layout facts: the HDF5 Dimension Scale specification, and netCDF-4's use of it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_tiled.files.file import is_refusal
from dask_tiled.formats.hdf5.attributes import attribute, label
from dask_tiled.formats.hdf5.convention import Calibration, Convention, read_axis
from dask_tiled.formats.hdf5.datasets import Picture
from dask_tiled.formats.hdf5.tree import BROKEN, Tree
from dask_tiled.model.axes import Axis, nav_axes, sig_axes
from dask_tiled.model.doubts import uneven_axis

MOST_SCALES = 16
"""Look at most at this many scales of a dimension."""
SCALE = "DIMENSION_SCALE"
"""Class of datasets that are scales."""
NAMELESS = "This is a netCDF dimension but not a netCDF variable"
"""Name of scales of netCDF-4 that only have a length."""


class DimensionScales(Convention):
    """Dimension labels and scales."""

    name = "dimension scales of HDF5"

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:
        """Read the label and the first scale with a value for each pixel of each dimension."""
        own = picture.members[0]
        if picture.order or picture.is_series or getattr(own, "shape", None) != picture.shape:
            return None
        axes = tuple(_axis(tree, own, k, size) for k, size in enumerate(picture.shape))
        return Calibration(axes) if any(axis != Axis("") for axis in axes) else None


def _axis(tree: Tree, own: Any, k: int, size: int) -> Axis:
    """Return the axis of a dimension; an empty one if it has neither label nor scale."""
    name, lengths, removed = _label(own, k), [], False
    for scale in _scales(own, k):
        if scale is None:
            removed = True
            continue
        told = label(attribute(scale, "NAME"))
        is_length = told.startswith(NAMELESS)
        name = name or ("" if is_length else told) or posixpath.basename(scale.name)
        if not is_length:
            if scale.shape == (size,):
                return read_axis(tree, scale, name, size)
            lengths.append(scale.size)
    if lengths:
        why = f"are {lengths[0]} for {size} pixels"
        tree.doubts.append(uneven_axis(name, why))
    elif removed:
        usual = (*nav_axes(max(0, own.ndim - 2)), *sig_axes(min(2, own.ndim)))[k]
        tree.doubts.append(uneven_axis(name or usual.name, "are lost with its dimension scale"))
    return Axis(name)


def _label(own: Any, k: int) -> str:
    """Return the label of a dimension; empty if it has none."""
    labels = attribute(own, "DIMENSION_LABELS")
    listed = isinstance(labels, np.ndarray) and labels.shape == (own.ndim,)
    return label(labels[k]) if listed else ""


def _scales(own: Any, k: int) -> Iterator[Any | None]:
    """Yield the scales of a dimension, None for one that was removed or cannot be read.

    A reference to a removed scale may lead to remains without a name, which may be overwritten in
    part, or to another object in its place.

    The library's own functions for dimension scales crash if the list holds anything else.
    """
    from h5py import Dataset, Reference

    lists = attribute(own, "DIMENSION_LIST")
    if not isinstance(lists, np.ndarray) or lists.shape != (own.ndim,):
        return
    references = lists[k] if isinstance(lists[k], np.ndarray) else ()
    for reference in references[:MOST_SCALES]:
        if not (isinstance(reference, Reference) and reference):
            continue
        scale: Any = None
        try:
            scale = own.file[reference]
        except BROKEN as error:
            if is_refusal(error):
                raise
        if scale != own:
            told = label(attribute(scale, "CLASS")) if isinstance(scale, Dataset) else ""
            yield scale if told == SCALE and scale.name else None
