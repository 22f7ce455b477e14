"""A zarr group around an array, with what others need to show it: coordinates with units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tiled.model.description import Axis, Description

if TYPE_CHECKING:
    import zarr

DATA = "data"
"""The name of the array in its group."""


def write_group(
    store: Any, desc: Description | None, names: Sequence[str], mark: Mapping[str, Any]
) -> zarr.Group:
    """Make a group with the coordinates of an array, as xarray and others read them.

    Parameters
    ----------
    store : zarr store
    desc : Description or None
        What is known of the axes.
    names : sequence of str
        Those of the dimensions.
    mark : mapping
        Attributes of the group and of each coordinate.
    """
    import zarr
    from zarr.codecs import Crc32cCodec

    group = zarr.create_group(store, zarr_format=3, attributes=dict(mark))
    axes = desc.axes if desc is not None else ()
    sizes = desc.shape if desc is not None else ()
    for name, axis, size in zip(names, axes, sizes, strict=False):
        if list(names).count(name) == 1 and name != DATA and _is_calibrated(axis):
            units = {"units": axis.units} if axis.units else {}
            group.create_array(
                name,
                data=axis.offset + axis.scale * np.arange(size),
                compressors=Crc32cCodec(),
                dimension_names=[name],
                attributes={**mark, **units},
            )
    return group


def _is_calibrated(axis: Axis) -> bool:
    return axis != Axis(axis.name)
