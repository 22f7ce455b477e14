"""Deduplication of reads: arrays that differ only in their axes share one layer."""

from __future__ import annotations

from collections.abc import Mapping

from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.names import Layer, blockwise
from dask_tiled.model.indexing import Array
from dask_tiled.plans.tree import Read, Tree


def reading_once(graph: HighLevelGraph, trees: Mapping[str, Tree]) -> HighLevelGraph:
    """Replace duplicate reads of the same chunks by copies of the first.

    Copies keep in-place changes of one result out of another.
    """
    first = dict[object, Read]()
    layers: dict[str, Layer] = {**graph.layers}
    dependencies = {**graph.dependencies}
    for read in (tree for tree in trees.values() if isinstance(tree, Read)):
        noted = repr(sorted(read.annotations.items()))
        original = first.setdefault((read.source.token, read.chunks, noted), read)
        if original is not read and read.chunks is not None:
            axes, numblocks = tuple(range(len(read.chunks))), tuple(map(len, read.chunks))
            layers[read.name] = blockwise(
                copied, read.name, axes, original.name, axes, numblocks={original.name: numblocks}
            )
            layers[read.name].annotations = read.annotations or None
            dependencies[read.name] = {original.name}
    return HighLevelGraph(layers, dependencies)


def copied(chunk: Array) -> Array:
    """Copy a chunk."""
    return chunk.copy()
