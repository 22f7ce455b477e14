"""Results computed in the tasks that read an array, bit for bit as if computed separately."""

from __future__ import annotations

import dask.array as da
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.engine.tile_jobs import ReduceTiles
from dask_tiled.graphs.layers import function_of
from dask_tiled.graphs.names import Blockwise
from dask_tiled.graphs.rewriting import planned
from dask_tiled.graphs.wrapped import unwrapped
from dask_tiled.plans.lowering import Known, Why
from dask_tiled.plans.tasks import pixels_of


def why_apart(result: da.Array, arr: da.Array) -> Why:
    """Return why a result is computed separately, not while an array is read; empty if it is not.

    Sharing the tasks requires a result that is equal, bit for bit, to one computed separately.
    """
    if not (isinstance(arr.dask, HighLevelGraph) and isinstance(result.dask, HighLevelGraph)):
        return "dask uses array expressions, which have other graphs"
    both, alone = map(unwrapped, (HighLevelGraph.merge(arr.dask, result.dask), result.dask))
    if not _reads(alone):
        return "" if arr.name in alone.layers else "it is computed from another array"
    if _reads(alone) - _reads(unwrapped(arr.dask)):
        return "it reads other files, other parts of them, or other chunks"
    plans, own = planned(both, [arr.name, result.name]).plans, planned(alone, [result.name]).plans
    shared = {plan.pixels for plan in plans} | {part.name for plan in plans for part in plan.parts}
    left_to_dask = not plans and arr.name in alone.layers
    if not left_to_dask and (len(plans) != 1 or len(own) > 1 or arr.name not in shared):
        return "it reads the pixels more than once, or also other pixels"
    if any(plan.parts[0].chunks != plans[0].parts[0].chunks for plan in own):
        return "compute() would use fewer, larger chunks, and round sums differently"
    rounded = any(_rounds_by_tile(part) for plan in own for part in plan.parts)
    return "compute() may use other tiles, and round sums differently" * rounded


def _rounds_by_tile(part: Known) -> bool:
    """Return whether a user's function folds tiles to rounded numbers."""
    job = part.recipe.job and part.recipe.job.job
    return isinstance(job, ReduceTiles) and job.dtype.kind not in "biu"


def _reads(graph: HighLevelGraph) -> set[str]:
    """Return the layers that read pixels of opened arrays."""
    layers = graph.layers.items()
    return {x for x, layer in layers if isinstance(layer, Blockwise) and _is_read(layer)}


def _is_read(layer: Blockwise) -> bool:
    return function_of(layer) is pixels_of
