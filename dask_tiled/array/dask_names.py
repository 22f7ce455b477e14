"""Names of dask that are not public: where dask has them, and what happens without them.

No other module imports such names from dask. A name that dask no longer has is a class that is
never an instance, a function or a key of dask: what is matched by it matches nothing, and the work
stays dask's. One warning says so.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

NO_TILES = "arrays are plain dask arrays"
DASK_COMPUTES = "dask computes this, chunk by chunk"


class Use(NamedTuple):
    """What a name of dask is used for, and what happens if dask no longer has it."""

    use: str
    without: str = DASK_COMPUTES


NAMES = {
    "dask._task_spec": {
        "Alias": Use("tasks that show a chunk under another name"),
        "DataNode": Use("values that many tasks share", NO_TILES),
        "List": Use("the nested chunks of an array in the last task"),
        "Task": Use("tasks: the function and its arguments", NO_TILES),
        "TaskRef": Use("arguments of tasks that are results of others", NO_TILES),
    },
    "dask.array.chunk": {
        "all": Use("the first step of all"),
        "any": Use("the first step of any"),
        "argmax": Use("the first step of argmax"),
        "argmin": Use("the first step of argmin"),
        "astype": Use("casts"),
        "coarsen": Use("binned pixels"),
        "getitem": Use("slices"),
        "max": Use("the first step of argmax"),
        "min": Use("the first step of argmin"),
        "nanprod": Use("the first step of nanprod"),
        "nansum": Use("the first step of nansum, nanmean, nanvar and nanstd"),
        "prod": Use("the first step of prod"),
        "sum": Use("the first step of sum"),
    },
    "dask.array.core": {
        "_concatenate2": Use("the later steps of reductions"),
        "finalize": Use("the last task, which concatenates chunks"),
        "getter": Use("chunks of the arrays that xarray holds"),
    },
    "dask.array.einsumfuncs": {
        "chunk_einsum": Use("einsum"),
    },
    "dask.array.reductions": {
        "_nanmax_skip": Use("nanmax"),
        "_nanmin_skip": Use("nanmin"),
        "_sqrt": Use("the axes of a standard deviation", "std has no named axes"),
        "arg_agg": Use("the last step of argmin and argmax"),
        "arg_chunk": Use("the first step of argmin and argmax"),
        "arg_combine": Use("the steps of argmin and argmax between"),
        "chunk_max": Use("max"),
        "chunk_min": Use("min"),
        "mean_agg": Use("the last step of mean"),
        "mean_chunk": Use("the first step of mean"),
        "mean_combine": Use("the steps of mean between"),
        "moment_agg": Use("the last step of var and std"),
        "moment_chunk": Use("the first step of var and std"),
        "moment_combine": Use("the steps of var and std between"),
        "nannumel": Use("the first step of nanmean, nanvar and nanstd"),
    },
    "dask.array.routines": {
        "_block_hist": Use("histograms"),
        "_matmul": Use("matrix products"),
        "_tensordot": Use("tensordot"),
    },
    "dask.blockwise": {
        "Blockwise": Use("layers that call one function on all chunks", NO_TILES),
        "_fuse_annotations": Use("annotations of what is made of several layers", NO_TILES),
        "blockwise": Use("the symbolic layers of opened arrays", NO_TILES),
        "blockwise_token": Use("the arguments of a symbolic layer"),
    },
    "dask.core": {
        "flatten": Use("keys of nested chunks", NO_TILES),
    },
    "dask.highlevelgraph": {
        "Layer": Use("layers of graphs", NO_TILES),
        "MaterializedLayer": Use("layers that list their tasks", NO_TILES),
    },
    "dask.layers": {
        "ArrayBlockIdDep": Use("the position of a chunk, for its task", NO_TILES),
        "ArraySliceDep": Use("the slices of a chunk in what xarray holds"),
    },
    "dask.utils": {
        "IndexCallable": Use("vindex", NO_TILES),
        "apply": Use("binned pixels"),
        "methodcaller": Use("reshaped chunks"),
    },
}
"""By the module of dask: the names, their use, and what happens without them."""


class NoSuchNameError(NotImplementedError):
    """A name of dask was called that dask no longer has."""


class Missing(type):
    """The class of the classes that stand for names that dask no longer has."""

    def __call__(cls, *_: Any, **__: Any) -> Any:  # noqa: D102 - nothing is made
        raise NoSuchNameError(f"dask has no {cls.__name__}")


def find(module: str, name: str) -> Any:
    """Return what dask calls ``name``, or a class that stands for what is missing."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return Missing(f"{module}.{name}", (), {})


class Module:
    """The listed names of a module of dask."""

    def __init__(self, module: str) -> None:
        for name in NAMES[module]:
            setattr(self, name, find(module, name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@cache
def missing() -> dict[str, Use]:
    """Return the listed names that dask does not have."""
    return {
        f"{module}.{name}": use
        for module, names in NAMES.items()
        for name, use in names.items()
        if isinstance(find(module, name), Missing)
    }


chunk = Module("dask.array.chunk")
einsumfuncs = Module("dask.array.einsumfuncs")
reductions = Module("dask.array.reductions")
routines = Module("dask.array.routines")


def __getattr__(name: str) -> Any:
    for module, names in NAMES.items():
        if name in names:
            return find(module, name)
    raise AttributeError(name)
