"""Graphs over files that grow: their layers read what is there when a task runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.layers import DESCRIPTION, OPENING, function_of, symbolic_graph
from dask_tiled.graphs.names import Blockwise, Layer, TaskRef
from dask_tiled.plans.tasks import pixels_of
from dask_tiled.reading.reader import Source


def with_growing_sources(
    graph: HighLevelGraph, replace: Callable[[Source, Any, Any], Source]
) -> HighLevelGraph:
    """Replace the sources of all layers that read files which were opened as growing ones.

    ``replace`` is called with a source, the description, and how the files are opened again.
    """
    layers: dict[str, Layer] = {**graph.layers}
    dependencies = {**graph.dependencies}
    for name, layer in graph.layers.items():
        noted = layer.collection_annotations or {}
        opening = noted.get(OPENING)
        if opening is None or not isinstance(layer, Blockwise):
            continue
        if function_of(layer) is not pixels_of:
            continue
        (source, _), (grid, _), *_ = layer.indices
        if isinstance(source, TaskRef):
            source = graph.layers[source.key][source.key].value
        (block_ids,) = layer.io_deps.values()
        source = replace(source, noted[DESCRIPTION], opening)
        made = symbolic_graph(name, block_ids.chunks, source, grid, annotations=layer.annotations)
        made.layers[name].collection_annotations = noted
        layers |= made.layers
        dependencies |= made.dependencies
    return HighLevelGraph(layers, dependencies)
