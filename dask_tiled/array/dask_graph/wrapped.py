"""Opened arrays that xarray holds: what dask asks it for, chunk by chunk, is read without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.dask_graph.layers import function_of, symbolic_graph
from dask_tiled.array.dask_graph.names import (
    ArraySliceDep,
    Blockwise,
    DataNode,
    Layer,
    TaskRef,
    blockwise_token,
    getter,
)
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Grid

_WRAPPERS = {
    "CopyOnWriteArray",
    "ImplicitToExplicitIndexingAdapter",
    "LazilyIndexedArray",
    "MemoryCachedArray",
}
"""Classes of xarray that give what they hold as it is, or a part of it by a key."""


def unwrapped(graph: HighLevelGraph) -> HighLevelGraph:
    """Let layers that read the whole of a wrapped array be those of an opened one.

    What is cut is left as it is: dask puts the cut into the key, and less is read.
    """
    made: dict[str, HighLevelGraph] = {}
    users = graph.dependencies.items()
    cut = set[str]().union(*(others for name, others in users if name.startswith("getitem-")))
    for name, layer in graph.layers.items():
        if not isinstance(layer, Blockwise) or name in cut:
            continue
        if function_of(layer) is not getter:
            continue
        (value, _), *more = layer.indices
        slices = [layer.io_deps.get(x) for x, index in more if index == layer.output_indices]
        source = _source_in(value, graph.layers)
        known_so = [*layer.task.args] == [TaskRef(blockwise_token(k)) for k in range(2)]
        known_so = known_so and layer.task.kwargs.keys() <= {"asarray", "lock"}
        if source is not None and known_so and isinstance(slices and slices[0], ArraySliceDep):
            chunks = slices[0].chunks
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


def _source_in(value: Any, layers: Mapping[str, Layer]) -> Source | None:
    """Find what is read of a value, or of what is behind its name; None where it is a part."""
    if isinstance(value, TaskRef):
        held = layers.get(value.key, {})
        value = held.get(value.key) if len(held) == 1 else None
        value = value.value if isinstance(value, DataNode) else value
    while type(value).__name__ in _WRAPPERS and type(value).__module__.startswith("xarray."):
        key = value.key.tuple if hasattr(value, "key") else ()
        if not all(isinstance(part, slice) and part == slice(None) for part in key):
            return None
        value = value.array
    source = getattr(value, "source", None)
    return source if isinstance(source, Source) else None
