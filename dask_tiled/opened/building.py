"""Arrays of descriptions: TiledArray, or plain dask arrays if dask is incompatible."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

import dask.array as da
import numpy as np
from dask.local import get_sync

from dask_tiled.errors import warn
from dask_tiled.graphs.layers import symbolic_graph
from dask_tiled.graphs.names import NO_TILES, missing
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Array
from dask_tiled.opened.tiled_array import Opening, TiledArray, array_name
from dask_tiled.plans.tasks import Block, pixels_of
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Grid
from dask_tiled.tiling.scheme import TilingScheme


def build(
    description: Description, scheme: TilingScheme, io: str, opening: Opening | None = None
) -> da.Array:
    """Build the array of a description."""
    if has_tiles():
        return TiledArray(description, scheme, io, opening=opening)
    source = Source(description.layout, description.conversion, io)
    grid, meta = Grid.of(scheme.chunks), np.empty((0,) * len(scheme.chunks), description.dtype)
    name = array_name(description, source, grid)
    return da.map_blocks(
        pixels_of, source, grid, chunks=scheme.chunks, dtype=meta.dtype, meta=meta, name=name
    )


@cache
def has_tiles() -> bool:
    """Return whether opened arrays are computed in tiles; warn once if dask lacks something."""
    lacking = missing()
    dask_is = f"dask {version('dask')}"
    if da.array_expr_enabled():
        reason = "array.query-planning is on"
    elif any(use.without == NO_TILES for use in lacking.values()):
        reason = f"{dask_is} lacks {', '.join(lacking)}"
    elif problem := _problem():
        reason = f"{dask_is} cannot compute the graphs of opened arrays: {problem}"
    else:
        for name, use in lacking.items():
            warn(f"{dask_is} lacks {name} ({use.use}): {use.without}", RuntimeWarning)
        return True
    warn(f"{reason}: {NO_TILES}, which are computed chunk by chunk", RuntimeWarning)
    return False


class _Numbers:
    """Source of the array that probes dask."""

    is_large = False


def _numbers(_: _Numbers, grid: Grid, block_id: Block) -> Array:
    return np.arange(*grid.box(block_id)[0])


def _problem() -> str | None:
    """Compute a small array like an opened one; return the problem, or None."""
    chunks, name = ((1, 2),), "dask-tiled-probe"
    probe = object.__new__(TiledArray)
    try:
        probe._chunks, probe._name, probe._meta = chunks, name, np.empty(0, np.int64)
        probe.dask = symbolic_graph(name, chunks, _Numbers(), Grid.of(chunks), _numbers)  # type: ignore[arg-type]
        # For a scheduler by its name, dask imports distributed.
        values = probe.compute(scheduler=get_sync).tolist()
    except Exception as error:  # noqa: BLE001 - any error of an incompatible dask
        return repr(error)
    return None if values == [0, 1, 2] else f"expected 0, 1, 2, found {values}"
