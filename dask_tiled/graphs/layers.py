"""Layers of graphs: topological order, array types, layers of chunk functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.functions import is_of_numpy
from dask_tiled.graphs.names import (
    Alias,
    ArrayBlockIdDep,
    Blockwise,
    DataNode,
    Layer,
    MaterializedLayer,
    TaskRef,
    _fuse_annotations,
    blockwise,
    flatten,
)
from dask_tiled.model.indexing import Array
from dask_tiled.plans.operands import is_other_array
from dask_tiled.plans.plan import layers_in_order
from dask_tiled.plans.tasks import Function, Nested, pixels_of
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Grid

DESCRIPTION = "description"
"""Annotation of layers that read files: their description; dask has annotations of its own."""
OPENING = "opening"
"""Annotation of layers that read growing files: how these are described again."""


def arrays_of_numpy(graph: HighLevelGraph) -> set[str]:
    """Return the layers whose chunks are all NumPy arrays: neither masked nor sparse."""
    found: set[str] = set()
    for name in layers_in_order(graph.dependencies):
        if graph.dependencies[name] <= found and _makes_arrays(graph.layers[name]):
            found.add(name)
    return found


def _makes_arrays(layer: Layer) -> bool:
    """Return whether a layer introduces only NumPy arrays: neither masked nor sparse."""
    if isinstance(layer, Blockwise):
        values = [value for value, index in layer.indices if index is None]
        return is_of_numpy(function_of(layer)) and not any(map(is_other_array, values))
    functions: dict[int, Function] = {}
    for task in getattr(layer, "mapping", {}).values():
        value = task.value if isinstance(task, DataNode) else task
        function = value[0] if isinstance(value, tuple) and value else getattr(value, "func", None)
        if callable(function):
            functions[id(function)] = function
        elif not isinstance(value, np.ndarray | Alias) or is_other_array(value):
            return False
    return all(map(is_of_numpy, functions.values()))


def function_of(layer: Blockwise) -> Function | None:
    """Return the chunk function of a layer."""
    return getattr(layer.task, "func", None)


def calls(graph: HighLevelGraph, function: Function) -> bool:
    """Return whether any layer calls a function on its chunks."""
    layers = graph.layers.values()
    return any(isinstance(x, Blockwise) and function_of(x) is function for x in layers)


Annotations = dict[str, object]


def fused(*annotations: Mapping[str, object] | None) -> Annotations:
    """Merge the annotations of several layers."""
    return _fuse_annotations(*(dict(one or {}) for one in annotations))


def symbolic_graph(
    name: str,
    chunks: Chunks,
    source: Source,
    grid: Grid,
    func: Function = pixels_of,
    values: Sequence[object] = (),
    annotations: Mapping[str, object] | None = None,
) -> HighLevelGraph:
    """Build the symbolic layer of all chunks: not an array, as plugins of dask may replace arrays.

    A task calls ``func(source, *values, grid, block_id)``.
    """
    axes, layers = tuple(range(len(chunks))), dict[str, Layer]()
    value = held(source, f"source-{name}", layers)
    dependencies = {key: set[str]() for key in layers} | {name: {*layers}}
    constants = (x for constant in (value, *values, grid) for x in (constant, None))
    arguments = *constants, ArrayBlockIdDep(chunks), axes
    layers[name] = blockwise(func, name, axes, *arguments, numblocks={})
    for layer in layers.values():
        layer.annotations = annotations or None
    return HighLevelGraph(layers, dependencies)


def held(value: Any, key: str, layers: dict[str, Layer]) -> Any:
    """Return a small value, or the layer of a large one, which is sent to a cluster once."""
    if not value.is_large:
        return value
    layers[key] = MaterializedLayer({key: DataNode(key, value)})
    return TaskRef(key)


def on_chunks(
    function: Function,
    name: str,
    labels: Sequence[int],
    arr: da.Array,
    *values: object,
    block_id: bool = False,
    new_axes: Sequence[int] = (),
) -> HighLevelGraph:
    """Return the graph of ``function(chunk, *values)``, with ``block_id`` after the values if set.

    ``labels`` are the axes of ``arr`` that the results have, and ``new_axes``, of one chunk
    each.
    """
    axes = tuple(range(arr.ndim))
    arguments: list[object] = [arr.name, axes, *(x for value in values for x in (value, None))]
    if block_id:
        arguments += [ArrayBlockIdDep(arr.chunks), axes]
    numblocks = {arr.name: arr.numblocks}
    layer = blockwise(
        function, name, labels, *arguments, numblocks=numblocks, new_axes=dict.fromkeys(new_axes, 1)
    )
    below: Any = [arr]
    return HighLevelGraph.from_collections(name, layer, dependencies=below)


def results_in(nested: Nested) -> list[Array]:
    """Return the results of chunks in C order."""
    return list(flatten(nested, container=list)) if isinstance(nested, list) else [nested]
