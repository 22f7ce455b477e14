"""The axes of signals that HyperSpy stores in zarr: groups beside the array.

Layout facts: the specification of HyperSpy's files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dask_tiled.errors import OutsideFolderError
from dask_tiled.formats.tools.hyperspy import AxisFacts, in_order
from dask_tiled.formats.tools.text import NOTHING, number_in
from dask_tiled.formats.zarr.coordinates import positions_in
from dask_tiled.formats.zarr.documents import node_in
from dask_tiled.formats.zarr.folders import StoreFolder
from dask_tiled.model.axes import Axis

SIGNAL = re.compile(r"(?:.*/)?Experiments/[^/]+/data")
"""Path of a signal."""


def axes_beside(folder: StoreFolder, shape: Sequence[int]) -> tuple[AxisFacts, ...]:
    """Return the axes in ``axis-0``, ``axis-1``, ... beside an array; empty if one is missing."""
    group = folder.above
    if group is None or not SIGNAL.fullmatch(folder.path.replace("\\", "/")):
        return ()
    facts = []
    for k in range(len(shape)):
        part = group.inside(f"axis-{k}")
        try:
            node = node_in(part)
        except OutsideFolderError:  # the user opened the array, not the group
            return ()
        attributes = node[1].get("attributes") if node else None
        if not isinstance(attributes, dict):
            return ()
        facts.append(_facts(part, attributes, k, shape))
    return in_order(facts)


def _facts(part: StoreFolder, told: Mapping[str, Any], k: int, shape: Sequence[int]) -> AxisFacts:
    name, units = (_label(told.get(key)) for key in ("name", "units"))
    place = int(number_in(told, "index_in_array", default=-1)) if "index_in_array" in told else None
    axis, lost = Axis(name), ""
    if "scale" in told:
        step, offset = number_in(told, "scale"), number_in(told, "offset")
        axis = Axis.calibrated(name, units, step, offset, signed=True)
    elif "expression" in told:
        lost = "follow from an expression"
    else:
        number = place if place is not None and 0 <= place < len(shape) else k
        positions = positions_in(part.inside("axis"), shape[number])
        if positions is not None:
            found = positions._replace(units=units).axis(name)
            axis, lost = found or axis, "" if found else positions.lost
    navigate = told.get("navigate")
    return AxisFacts(axis, place, navigate if isinstance(navigate, bool) else None, lost)


def _label(value: Any) -> str:
    return value if isinstance(value, str) and value not in NOTHING else ""
