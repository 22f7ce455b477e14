"""HTML representation of an opened array: a table, and a picture of its chunks."""

from __future__ import annotations

import math

from dask_tiled.errors import format_bytes, format_shape
from dask_tiled.model.description import Description
from dask_tiled.model.tables import html_table
from dask_tiled.tiling.drawing import svg
from dask_tiled.tiling.scheme import TilingScheme

BESIDE = "display: flex; flex-wrap: wrap; gap: 1em 2em; align-items: center"


def page(desc: Description, scheme: TilingScheme, io: str) -> str:
    """Return HTML in the colours of the surrounding page, without accessing files."""
    rows = desc.rows()
    instrument = desc.instrument.line()
    if instrument:
        rows.append(("instrument", instrument))
    largest = [max(axis) for axis in scheme.chunks]
    count = math.prod(map(len, scheme.chunks))
    shape, nbytes = format_shape(largest), format_bytes(math.prod(largest) * desc.dtype.itemsize)
    rows += [("chunks", f"{count:,} of {shape or 'one pixel'}, {nbytes}"), ("io", io)]
    drawn = svg(scheme.picture(desc.axes)) if desc.shape and desc.nbytes else ""
    return f'<div style="{BESIDE}"><div>{html_table(rows)}</div>{drawn}</div>'
