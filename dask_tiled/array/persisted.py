"""Arrays by their names: what is persisted has the name of what it was computed as."""

from __future__ import annotations

from weakref import ref

import dask.array as da

from dask_tiled.array.layer_axes import keep_labels

MANY = 10_000
_arrays: dict[str, list[ref[da.Array]]] = {}
"""All arrays that there are, by their names."""


def follow(arr: da.Array) -> None:
    """See an array that dask makes: a plugin, ``array_plugins`` of its configuration.

    What somebody has persisted, on whichever scheduler, is made while the array still exists that
    has its name, and the graph of how it was computed: from now on the name says what is known.
    """
    living = [found for one in _arrays.get(arr.name, ()) if (found := one()) is not None]
    if living and len(arr.dask.layers) == 1:
        keep_labels(living[0].dask, arr.name)
    else:
        remember(arr, arr.name)


def remember(arr: da.Array, name: str) -> None:
    """Note that an array has a name."""
    living = (one for one in _arrays.get(name, ()) if one() is not None)
    _arrays[name] = [*living, ref(arr)]
    if len(_arrays) > MANY:
        for known, some in list(_arrays.items()):
            if all(one() is None for one in some):
                _arrays.pop(known, None)
