"""A zarr group around an array, with what others need to show it: coordinates with units."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Array

if TYPE_CHECKING:
    import zarr

DATA = "data"
"""The name of the array in its group."""
LEVEL = "level_"
"""Prefix of the groups of further levels, each with an array and coordinates."""


class Coordinate(NamedTuple):
    """Where the pixels along an axis lie."""

    name: str
    numbers: Array
    attributes: dict[str, str]
    """The units, where there are any."""


def dimension_names(axes: Sequence[Axis | None]) -> list[str]:
    """Name all dimensions, those of which nothing is known as xarray does."""
    return [(axis and axis.name) or f"dim_{k}" for k, axis in enumerate(axes)]


def coordinates_of(
    names: Sequence[str],
    axes: Sequence[Axis | None],
    shape: Sequence[int],
    taken: Sequence[str] = (),
) -> Iterator[Coordinate]:
    """Yield the coordinates of axes with a scale, an offset or units.

    An axis has none where its name cannot be that of an array, is that of another one, which
    may be ``taken`` already, or of a second axis.
    """
    for name, axis, size in zip(names, axes, shape, strict=True):
        calibrated = axis is not None and axis.scale and axis != Axis(axis.name)
        if (
            axis is not None
            and calibrated
            and _names_an_array(name, taken)
            and names.count(name) == 1
        ):
            units = {"units": axis.units} if axis.units else {}
            yield Coordinate(name, axis.offset + axis.scale * np.arange(size), units)


def _names_an_array(name: str, others: Sequence[str]) -> bool:
    taken = DATA, "c", "zarr.json", *others
    return (
        bool(name) and "/" not in name and name[0] != "." and name[:2] != "__" and name not in taken
    )


def write_coordinates(
    group: zarr.Group, coordinates: Iterator[Coordinate], mark: Mapping[str, Any]
) -> None:
    """Write coordinates into a group, each with more attributes."""
    from zarr.codecs import Crc32cCodec

    for name, numbers, units in coordinates:
        group.create_array(
            name,
            data=numbers,
            compressors=Crc32cCodec(),
            dimension_names=[name],
            attributes={**mark, **units},
        )


def consolidate(store: Any) -> None:
    """Write all metadata in the document of the group, too, for those who ask for many at once."""
    import zarr

    with warnings.catch_warnings():
        # It is no part of the specification yet. Readers that do not know it do not look at it.
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        zarr.consolidate_metadata(store)
