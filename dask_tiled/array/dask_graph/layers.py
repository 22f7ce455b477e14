"""Layers of graphs: in which order they are, and those that call a function on all chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dask.array as da
from dask.base import get_annotations
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.dask_graph.names import (
    ArrayBlockIdDep,
    DataNode,
    Layer,
    MaterializedLayer,
    TaskRef,
    _fuse_annotations,
    blockwise,
    flatten,
)
from dask_tiled.array.tasks import pixels_of
from dask_tiled.engine.expressions import in_order
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Grid

DESCRIPTION = "description"
"""What a layer that reads files notes of them, among what dask notes of the layers of arrays."""


def layers_in_order(dependencies: Mapping[str, Any]) -> Iterator[str]:
    """Give the names of all layers, each after those that it depends on."""
    return in_order(dependencies, lambda name: dependencies.get(name, ()), str)


Annotations = dict[str, Any]


def inherited(*arrays: Any) -> Annotations:
    """Return the annotations of what is made of arrays now: theirs, and those that are in force."""
    return fused(*(x._annotations for x in arrays), get_annotations())  # noqa: SLF001


def fused(*annotations: Mapping[str, Any] | None) -> Annotations:
    """Return the annotations of what is made of several layers."""
    found: Annotations = _fuse_annotations(*(dict(one or {}) for one in annotations))
    return found


def symbolic_graph(
    name: str,
    chunks: Chunks,
    source: Source,
    grid: Grid,
    func: Callable[..., Any] = pixels_of,
    values: Sequence[Any] = (),
) -> HighLevelGraph:
    """Make the symbolic layer of all chunks; no array, which a plugin of dask might replace.

    A task calls ``func(source, *values, grid, block_id)``.
    """
    axes, layers = tuple(range(len(chunks))), dict[str, Layer]()
    value = held(source, f"source-{name}", layers)
    dependencies = {key: set[str]() for key in layers} | {name: {*layers}}
    constants = (x for one in (value, *values, grid) for x in (one, None))
    arguments = *constants, ArrayBlockIdDep(chunks), axes
    layers[name] = blockwise(func, name, axes, *arguments, numblocks={})
    return HighLevelGraph(layers, dependencies)


def held(value: Any, key: str, layers: dict[str, Layer]) -> Any:
    """Give what is a part of every task, or the layer that has it: a cluster sends that once."""
    if not value.is_large:
        return value
    layers[key] = MaterializedLayer({key: DataNode(key, value)})
    return TaskRef(key)


def on_chunks(
    function: Callable[..., Any],
    name: str,
    labels: Sequence[int],
    arr: da.Array,
    *values: object,
    block_id: bool = False,
    new_axes: Sequence[int] = (),
) -> HighLevelGraph:
    """Return the graph of ``function(chunk, *values)``, or with ``block_id`` behind the values.

    ``labels`` are the axes of ``arr`` that the results have, and ``new_axes``, of one chunk each.
    """
    axes = tuple(range(arr.ndim))
    arguments: list[Any] = [arr.name, axes, *(x for value in values for x in (value, None))]
    if block_id:
        arguments += [ArrayBlockIdDep(arr.chunks), axes]
    numblocks = {arr.name: arr.numblocks}
    layer = blockwise(
        function, name, labels, *arguments, numblocks=numblocks, new_axes=dict.fromkeys(new_axes, 1)
    )
    below: Any = [arr]
    return HighLevelGraph.from_collections(name, layer, dependencies=below)


def results_in(nested: Any) -> list[Any]:
    """Return the results of chunks, which dask passes on in nested lists, in C order."""
    return list(flatten(nested, container=list)) if isinstance(nested, list) else [nested]
