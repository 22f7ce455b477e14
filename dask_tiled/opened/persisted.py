"""Registry of arrays by name: a persisted array has the name of the computed one."""

from __future__ import annotations

from weakref import ref

import dask.array as da
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.labels.layer_axes import keep_labels
from dask_tiled.opened.limits import MOST_FOLLOWED

_arrays: dict[str, list[ref[da.Array]]] = {}
"""All living arrays, by name."""


def follow(arr: da.Array) -> None:
    """Register an array that dask creates; a function for dask's ``array_plugins``.

    dask creates a persisted array while the array of the same name and its graph still exist, on
    any scheduler: the metadata are kept from then on.
    """
    living = [
        array for reference in _arrays.get(arr.name, ()) if (array := reference()) is not None
    ]
    if living and len(arr.dask.layers) == 1:
        graph = living[0].dask
        if isinstance(graph, HighLevelGraph):  # users may have set another mapping
            keep_labels(graph, arr.name)
    else:
        remember(arr, arr.name)


def remember(arr: da.Array, name: str) -> None:
    """Register an array by name."""
    living = (one for one in _arrays.get(name, ()) if one() is not None)
    _arrays[name] = [*living, ref(arr)]
    if len(_arrays) > MOST_FOLLOWED:
        for known, some in _arrays.copy().items():  # other threads add arrays
            if all(one() is None for one in some):
                _arrays.pop(known, None)
