"""Opened arrays wrapped by xarray: tasks read them directly, without the wrappers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask.array as da
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.layers import calls, function_of, symbolic_graph
from dask_tiled.graphs.names import (
    ArraySliceDep,
    Blockwise,
    DataNode,
    Layer,
    TaskRef,
    blockwise_token,
    getter,
)
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Grid

_WRAPPERS = {
    "CopyOnWriteArray",
    "ImplicitToExplicitIndexingAdapter",
    "LazilyIndexedArray",
    "MemoryCachedArray",
}
"""Classes of xarray that return their array, or a part of it selected by a key."""


def unwrapped(graph: HighLevelGraph) -> HighLevelGraph:
    """Replace layers that read a whole wrapped array by layers of the opened array.

    Sliced layers are kept: dask merges the slice into the key, and less is read.
    """
    if not calls(graph, getter):
        return graph
    made: dict[str, HighLevelGraph] = {}
    users = graph.dependencies.items()
    cut = set[str]().union(*(others for name, others in users if name.startswith("getitem-")))
    for name, layer in graph.layers.items():
        read = None if name in cut else _reads(layer, graph.layers)
        source = read and getattr(read[0], "source", None)
        if read and isinstance(source, Source):
            chunks = read[1]
            made[name] = symbolic_graph(name, chunks, source, Grid.of(chunks))
            made[name].layers[name].annotations = layer.annotations
            made[name].layers[name].collection_annotations = layer.collection_annotations
    if not made:
        return graph
    layers: dict[str, Layer] = {**graph.layers}
    dependencies = {**graph.dependencies}
    for each in made.values():
        layers |= each.layers
        dependencies |= each.dependencies
    return HighLevelGraph(layers, dependencies)


def array_in(value: Any) -> da.Array | None:
    """Return the array inside xarray's wrappers, with their keys applied; None without one."""
    keys = []
    while _is_wrapper(value):
        keys.append(_key(value))
        value = value.array
    arr = getattr(value, "arr", None)
    if not keys or not isinstance(arr, da.Array):
        return None
    for key in reversed(keys):
        arr = at_outer(arr, key)
    return arr


def array_read_by(arr: da.Array) -> tuple[da.Array, Chunks] | None:
    """Return the array that a dask array of xarray reads completely, and its chunks."""
    layers = arr.dask.layers if isinstance(arr.dask, HighLevelGraph) else {}
    found = _reads(layers.get(arr.name), layers)
    held = found and getattr(found[0], "arr", None)
    return (held, found[1]) if found and isinstance(held, da.Array) else None


def at_outer(arr: da.Array, key: tuple[Any, ...]) -> da.Array:
    """Index an array by integers, slices and lists, independently along each axis."""
    for axis in reversed(range(len(key))):
        arr = arr[(slice(None),) * axis + (key[axis],)]
    return arr


def _reads(layer: Any, layers: Mapping[str, Layer]) -> tuple[Any, Chunks] | None:
    """Return the array that a layer reads completely, inside wrappers or not, and its chunks."""
    if not isinstance(layer, Blockwise) or function_of(layer) is not getter:
        return None
    (value, _), *more = layer.indices
    slices = [layer.io_deps.get(x) for x, index in more if index == layer.output_indices]
    known_so = [*layer.task.args] == [TaskRef(blockwise_token(k)) for k in range(2)]
    known_so = known_so and layer.task.kwargs.keys() <= {"asarray", "lock"}
    if not known_so or not slices or not isinstance(slices[0], ArraySliceDep):
        return None
    if isinstance(value, TaskRef):
        held = layers.get(value.key, {})
        value = held.get(value.key) if len(held) == 1 else None
        value = value.value if isinstance(value, DataNode) else value
    while _is_wrapper(value):
        if not all(isinstance(part, slice) and part == slice(None) for part in _key(value)):
            return None
        value = value.array
    return value, slices[0].chunks


def _is_wrapper(value: Any) -> bool:
    return type(value).__name__ in _WRAPPERS and type(value).__module__.startswith("xarray.")


def _key(wrapper: Any) -> tuple[Any, ...]:
    return wrapper.key.tuple if hasattr(wrapper, "key") else ()
