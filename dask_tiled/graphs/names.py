"""Private names of dask: their modules, and the consequences if they are missing.

No other module imports private names of dask. If a name is missing, nothing matches it: dask does
that work, after one warning.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from dask_tiled.foreign import Use, find, missing_of

NO_TILES = "arrays are plain dask arrays"
NO_NAMES = "results have no named axes"
DASK_COMPUTES = "dask computes this, chunk by chunk"


ONE_THREAD = "forked processes compute in one thread"
MAY_WAIT = "a process that is forked at the wrong moment waits forever"


def _use(use: str, without: str = DASK_COMPUTES) -> Use:
    return Use(use, without)


NAMES = {
    "dask._task_spec": {
        "_execute_subgraph": _use("explaining fused tasks", "explain fails"),
        "Alias": _use("tasks that alias a chunk"),
        "DataNode": _use("values that many tasks share", NO_TILES),
        "List": _use("the nested chunks of an array in the last task"),
        "Task": _use("tasks: the function and its arguments", NO_TILES),
        "TaskRef": _use("arguments of tasks that are results of other tasks", NO_TILES),
    },
    "dask.array._shuffle": {
        "_getitem": _use("the axes of indexed arrays", NO_NAMES),
        "concatenate_arrays": _use("the axes of indexed arrays", NO_NAMES),
    },
    "dask.array.chunk": {
        "all": _use("the first step of all"),
        "any": _use("the first step of any"),
        "argmax": _use("the first step of argmax"),
        "argmin": _use("the first step of argmin"),
        "astype": _use("casts"),
        "coarsen": _use("binned pixels"),
        "getitem": _use("slices"),
        "max": _use("the first step of argmax"),
        "min": _use("the first step of argmin"),
        "nanprod": _use("the first step of nanprod"),
        "nansum": _use("the first step of nansum, nanmean, nanvar and nanstd"),
        "prod": _use("the first step of prod"),
        "sum": _use("the first step of sum"),
    },
    "dask.array.core": {
        "_concatenate2": _use("the later steps of reductions"),
        "_pass_extra_kwargs": _use("the axes after map_overlap", NO_NAMES),
        "finalize": _use("the last task, which concatenates chunks"),
        "getter": _use("chunks of arrays that xarray wraps"),
    },
    "dask.array.einsumfuncs": {"chunk_einsum": _use("einsum")},
    "dask.array.overlap": {"_trim": _use("the axes after map_overlap", NO_NAMES)},
    "dask.array.reductions": {
        "_nanmax_skip": _use("nanmax"),
        "_nanmin_skip": _use("nanmin"),
        "_sqrt": _use("the axes of a standard deviation", "std has no named axes"),
        "_prefixscan_combine": _use("the axes of cumulative sums", NO_NAMES),
        "_prefixscan_first": _use("the axes of cumulative sums", NO_NAMES),
        "arg_agg": _use("the last step of argmin and argmax"),
        "arg_chunk": _use("the first step of argmin and argmax"),
        "arg_combine": _use("the intermediate steps of argmin and argmax"),
        "chunk_max": _use("max"),
        "chunk_min": _use("min"),
        "mean_agg": _use("the last step of mean"),
        "mean_chunk": _use("the first step of mean"),
        "mean_combine": _use("the intermediate steps of mean"),
        "moment_agg": _use("the last step of var and std"),
        "moment_chunk": _use("the first step of var and std"),
        "moment_combine": _use("the intermediate steps of var and std"),
        "nannumel": _use("the first step of nanmean, nanvar and nanstd"),
    },
    "dask.array.routines": {
        "_block_hist": _use("histograms"),
        "_matmul": _use("matrix products"),
        "_tensordot": _use("tensordot"),
    },
    "dask.array.slicing": {
        "getitem_variadic": _use("the axes of arrays indexed by masks", NO_NAMES),
    },
    "dask.blockwise": {
        "Blockwise": _use("layers that call one function on all chunks", NO_TILES),
        "_fuse_annotations": _use("annotations of layers that are merged", NO_TILES),
        "blockwise": _use("the symbolic layers of opened arrays", NO_TILES),
        "blockwise_token": _use("the arguments of a symbolic layer"),
    },
    "dask.config": {"config_lock": _use("forks while another thread sets options", MAY_WAIT)},
    "dask.core": {"flatten": _use("keys of nested chunks", NO_TILES)},
    "dask.highlevelgraph": {
        "Layer": _use("layers of graphs", NO_TILES),
        "MaterializedLayer": _use("layers that list their tasks", NO_TILES),
    },
    "dask.layers": {
        "ArrayBlockIdDep": _use("the position of a chunk, for its task", NO_TILES),
        "ArraySliceDep": _use("the slices of chunks of arrays that xarray wraps"),
    },
    "dask.order": {"order": _use("the order of tasks, to estimate their memory", "explain fails")},
    "dask.threaded": {
        "default_pool": _use("threads of forked processes", ONE_THREAD),
        "pools": _use("threads of forked processes", ONE_THREAD),
        "pools_lock": _use("forks while another thread begins a computation", MAY_WAIT),
    },
    "dask.tokenize": {"tokenize_lock": _use("forks while another thread names arrays", MAY_WAIT)},
    "dask.utils": {"apply": _use("binned pixels"), "methodcaller": _use("reshaped chunks")},
}
"""Names by dask module: their use, and the consequence if they are missing."""


class Module:
    """The listed names of a module of dask."""

    def __init__(self, module: str) -> None:
        for name in NAMES[module]:
            setattr(self, name, find(module, name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@cache
def missing() -> dict[str, Use]:
    """Return the listed names that dask lacks."""
    return missing_of(NAMES)


chunk = Module("dask.array.chunk")
core = Module("dask.array.core")
einsumfuncs = Module("dask.array.einsumfuncs")
overlapping = Module("dask.array.overlap")
reductions = Module("dask.array.reductions")
routines = Module("dask.array.routines")
slicing = Module("dask.array.slicing")
shuffling = Module("dask.array._shuffle")


def __getattr__(name: str) -> Any:
    for module, names in NAMES.items():
        if name in names:
            return find(module, name)
    raise AttributeError(name)
