"""FEI and Thermo Fisher TIA series: ``.ser`` files of images or spectra, and their ``.emi`` files.

Layout after C. Boothroyd's description of the TIA file format, and real files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.ser import emi
from dask_tiled.formats.ser.header import (
    DTYPES,
    ELEMENTS,
    read_elements,
    read_header,
    read_offsets,
    recognise,
)
from dask_tiled.model.indexing import Index, Selection
from dask_tiled.model.pieces import PieceTable

BOTTOM_UP = (
    "the file holds the bottom row first; the top row is shown first, with a y axis to match"
)


def sniff(path: str, head: bytes) -> str | None:
    """Look for the first fields of a ``.ser`` file, or the first bytes of an ``.emi`` file."""
    return None if head.startswith(emi.MAGIC) else recognise(head)


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    dataset: int | str | None = None,
) -> tools.Description:
    """Describe a ``.ser`` file, or one of those that belong to an ``.emi`` file.

    Parameters
    ----------
    paths : sequence of str
        One file.
    nav_shape : tuple of int, optional
        Shape of the scan, by default what the header says. The file may end early then.
    dataset : int or str, optional
        Which ``.ser`` file of an ``.emi`` file: its place among them, or its name. By default the
        first.
    """
    file = tools.File.only(paths, "ser")
    if tools.read_head(file.path, len(emi.MAGIC)) == emi.MAGIC:
        file = tools.File.at(emi.ser_of(file.path, dataset))
    elif dataset is not None:
        raise tools.DatasetError(
            "a .ser file is one dataset: choose by the .emi file", path=file.path
        )
    header, dimensions = read_header(file)
    offsets = read_offsets(file, header)
    element, sig_shape, offsets = read_elements(
        file, header, offsets, settled=nav_shape is not None
    )
    image = len(sig_shape) == 2
    count = len(offsets)
    record = tools.Record(sig_shape, tools.plain(np.dtype(DTYPES[element["data_type"] - 1])))
    first = offsets + tools.size_of(ELEMENTS[header["data_type_id"]])
    strides = record.sig_strides
    if image:  # the last row in the file is the top one
        first += record.frame_bytes - strides[0]
        strides = -strides[0], *strides[1:]
    table = _pieces(first, sig_shape, strides)
    scan, told_by, axes = _scan(header, dimensions, count)
    shown = Selection(scan, count)
    layout = tools.Layout([file], (count,), sig_shape, table, [record.decoder], shown)
    metadata: dict[str, Any] = {
        "ser": {
            **header,
            "element": element,
            **{f"dimension_{k}": dimension for k, dimension in enumerate(dimensions, 1)},
            "nav_shape_from": told_by,
        }
    }
    if image:
        metadata["ser"]["orientation"] = BOTTOM_UP
    sidecar = emi.emi_of(file.path)
    if sidecar is not None:
        metadata["emi"] = emi.read_objects(sidecar)
    return tools.Description.of("ser", layout, metadata, axes + _sig_axes(element))


def _pieces(first: Index, sig_shape: tuple[int, ...], strides: tuple[int, ...]) -> PieceTable:
    """Make a piece of each run of equally spaced elements: in most files there is one."""
    steps = np.diff(first)
    starts = np.append(0, np.flatnonzero(np.diff(steps)) + 2)
    counts = np.diff(starts, append=len(first))
    return tools.piece_table(
        tools.axis_columns(starts, (0,) * len(sig_shape)),
        tools.axis_columns(counts, sig_shape),
        first[starts],
        tools.axis_columns(np.append(steps, 0)[starts], strides),
    )


def _scan(
    header: Mapping[str, Any], dimensions: Sequence[Mapping[str, Any]], count: int
) -> tuple[tuple[int, ...], str, tuple[tools.Axis, ...]]:
    """Give the shape of the scan, where it comes from, and its axes."""
    slowest_first = dimensions[::-1]
    shape = tuple(dimension["size"] for dimension in slowest_first)
    told_by = "the sizes of the dimensions"
    if len(shape) == 1 and dimensions[0]["description"] == "Number":
        shape = (count,)
        told_by = "the number of valid elements: a series that was stopped is only shorter"
    elif math.prod(shape) != header["total_elements"]:
        told_by = "the number of valid elements: the dimensions do not fit that of all"
        return (count,), told_by, tools.nav_axes(1)
    if math.prod(shape) == 1:
        return (), "one element has no navigation axes", ()
    names = tools.nav_axes(len(shape))
    if len(shape) == 1 and dimensions[0]["description"] == "Position":
        names = (tools.Axis("position"),)
    axes = tuple(
        _axis(name.name, "m" if dim["units"] == "meters" else dim["units"], dim)
        for name, dim in zip(names, slowest_first, strict=True)
    )
    return shape, told_by, axes


def _sig_axes(element: Mapping[str, Any]) -> tuple[tools.Axis, ...]:
    """Give the signal axes. The file names no units: TIA uses eV, m and 1/m throughout."""
    if "size" in element:
        axis = _axis("energy", "eV", element)
        return (
            axis if axis.units and axis != tools.Axis("energy", "eV") else tools.Axis("channel"),
        )
    y, x = (_axis(name, None, element, f"_{name}") for name in "yx")
    return (y.cut(element["size_y"] - 1, -1) if y.units else y), x


def _axis(
    name: str, units: str | None, calibration: Mapping[str, Any], suffix: str = ""
) -> tools.Axis:
    offset, delta, element = (calibration[key + suffix] for key in ("offset", "delta", "element"))
    first = offset - element * delta
    if not (math.isfinite(first) and math.isfinite(delta) and delta):
        return tools.Axis(name)
    if units is None:  # no pixel is as large as a metre, and no 1/m can be told from another
        units = "m" if abs(delta) < 1 else "1/m" if abs(delta) > 1 else ""
    return tools.Axis(name, units, delta, first)


FORMAT = tools.Format(
    name="ser",
    extensions=(".ser", ".emi"),
    summary="TIA series: images, spectra, stacks and maps, versions 0x210 and 0x220",
    nav_shape_from="the header; a single image or spectrum has no scan",
    sniff=sniff,
    describe=describe,
    peers=("LiberTEM", "RosettaSciIO", "ncempy"),
)
