"""Labels in graphs: layers that carry axes and add no tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import dask.array as da
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.layers import function_of, on_chunks
from dask_tiled.graphs.names import Alias, Blockwise, Layer, MaterializedLayer, Task
from dask_tiled.graphs.slices import as_now
from dask_tiled.plans.plan import layers_in_order
from dask_tiled.plans.tasks import Labelling

LABELLED = "labelled-"
"""Name prefix of layers that carry labels."""


def with_labels(arr: da.Array, labels: Labelling) -> da.Array:
    """Return an array of the same chunks, whose layer carries labels."""
    name = f"{LABELLED}{tokenize(arr.name, labels)}"
    graph = on_chunks(labels, name, tuple(range(arr.ndim)), arr)
    return da.Array(graph, name, arr.chunks, meta=arr._meta)  # noqa: SLF001 - as in dask


def unlabelled(graph: HighLevelGraph, wanted: Collection[str]) -> HighLevelGraph:
    """Bypass labelled layers, except those that are ``wanted``."""
    below: dict[str, str] = {}
    for name in layers_in_order(graph.dependencies):
        labels: Layer = graph.layers[name]
        if isinstance(labels, Blockwise) and isinstance(function_of(labels), Labelling):
            (of,) = graph.dependencies[name]
            below[name] = below.get(of, of)
    if not below:
        return graph
    layers: dict[str, Layer] = {**graph.layers}
    dependencies = {name: {*others} for name, others in graph.dependencies.items()}
    for name, layer in graph.layers.items():
        renamed = {x: below[x] for x in dependencies[name] if x in below}
        made = _renamed(layer, renamed) if renamed else None
        if made is not None:
            layers[name] = made
            dependencies[name] = {renamed.get(x, x) for x in dependencies[name]}
    used = set[str]().union(wanted, *dependencies.values())
    gone = {name for name in below if name not in used}
    return HighLevelGraph(
        {name: layer for name, layer in layers.items() if name not in gone},
        {name: others for name, others in dependencies.items() if name not in gone},
    )


def _renamed(layer: Layer, renamed: Mapping[str, str]) -> Layer | None:
    """Rename the inputs of a layer; None if the type of a task is unknown."""
    if isinstance(layer, Blockwise):
        made = Blockwise(
            output=layer.output,
            output_indices=layer.output_indices,
            task=layer.task,
            indices=[(x if i is None else renamed.get(x, x), i) for x, i in layer.indices],
            numblocks={renamed.get(x, x): n for x, n in layer.numblocks.items()},
            concatenate=layer.concatenate,
            new_axes=layer.new_axes,
            io_deps=layer.io_deps,
        )
    elif isinstance(layer, MaterializedLayer):
        tasks = dict(layer.mapping)
        for key, written in tasks.items():
            task = as_now(key, written)
            if not isinstance(task, Task | Alias):
                return None
            names = {k: (renamed[k[0]], *k[1:]) for k in task.dependencies if k[0] in renamed}
            tasks[key] = task.substitute(names)
        made = MaterializedLayer(tasks)
    else:
        return None
    made.annotations = layer.annotations
    made.collection_annotations = layer.collection_annotations
    return made
