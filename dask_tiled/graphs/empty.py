"""Empty selections of opened arrays, which need no pixels."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.names import Layer, MaterializedLayer, Task
from dask_tiled.plans.tree import Read, Take


def reading_nothing(graph: HighLevelGraph, selections: Mapping[str, Take]) -> HighLevelGraph:
    """Replace empty selections of opened arrays by empty chunks: dask would read whole chunks."""
    layers: dict[str, Layer] = {**graph.layers}
    dependencies = {**graph.dependencies}
    for name, tree in selections.items():
        assert isinstance(tree.of, Read)  # noqa: S101 - for the type checker
        chunks, dtype = tree.chunks or (), tree.of.source.dtype
        keys = product([name], *(range(len(axis)) for axis in chunks))
        made = zip(keys, product(*chunks), strict=True)
        layers[name] = MaterializedLayer(
            {key: Task(key, np.empty, shape, dtype) for key, shape in made}
        )
        layers[name].annotations = graph.layers[name].annotations
        layers[name].collection_annotations = graph.layers[name].collection_annotations
        dependencies[name] = set()
    return HighLevelGraph(layers, dependencies)
