"""What a notebook shows of an opened array: one table, and its chunks drawn beside it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dask_tiled.errors import format_bytes
from dask_tiled.model.listing import Listing
from dask_tiled.model.tables import html_table
from dask_tiled.tiling.drawing import svg

if TYPE_CHECKING:
    from dask_tiled.array.tiled_array import TiledArray
    from dask_tiled.model.description import Description

BESIDE = "display: flex; flex-wrap: wrap; gap: 1em 2em; align-items: center"


def page(arr: TiledArray, desc: Description) -> str:
    """Return HTML in the colours of the page around it; no file is touched."""
    rows = [*desc.rows()]
    listing = str(Listing.of(desc))
    if listing:
        rows.insert(2, ("picture", listing))
    instrument = desc.instrument.line()
    if instrument:
        rows.append(("instrument", instrument))
    rows += [("chunks", _chunks(arr)), ("io", arr.io)]
    drawn = svg(arr.scheme.picture(desc.axes)) if arr.ndim and arr.size else ""
    return f'<div style="{BESIDE}"><div>{html_table(rows)}</div>{drawn}</div>'


def _chunks(arr: TiledArray) -> str:
    count = math.prod(map(len, arr.chunks))
    largest = " \N{MULTIPLICATION SIGN} ".join(map(str, arr.chunksize))
    nbytes = format_bytes(math.prod(arr.chunksize) * arr.dtype.itemsize)
    return f"{count:,} of {largest or 'one pixel'}, {nbytes}"
