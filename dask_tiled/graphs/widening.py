"""Reductions that dask computes, in few levels.

dask combines the results of four chunks at a time, of two along each of two axes. For a hundred
thousand chunks these are ten levels and a third more tasks. Here the same functions combine more
results at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, product
from typing import Any

from dask import config
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.limits import FEW_PARTS, LEAST_RESULTS, LEVELS, MOST_COMBINED_BYTES
from dask_tiled.graphs.names import Layer, MaterializedLayer
from dask_tiled.plans.tasks import Key
from dask_tiled.plans.tree import Combine


def in_few_levels(graph: HighLevelGraph, chains: Iterable[Sequence[Combine]]) -> HighLevelGraph:
    """Combine the results of chunks in at most ``LEVELS`` levels, or as memory permits.

    Each of the ``chains`` holds the layers of dask that combine results, in order. What a user has
    chosen, by ``split_every`` of a reduction or of dask's configuration, is kept.
    """
    layers: dict[str, Layer] = {**graph.layers}
    dependencies = {**graph.dependencies}
    for chain in chains:
        first, last = chain[0], chain[-1]
        begun, ended = (layers[tree.name].mapping for tree in (first, last))
        made = _levels(first, begun, ended)
        if made is None:
            continue
        annotations, below = layers[last.name].annotations, first.of.name
        for tree in chain:
            del layers[tree.name], dependencies[tree.name]
        for name, tasks in made.items():
            layers[name] = MaterializedLayer(tasks)
            layers[name].annotations = annotations
            dependencies[name], below = {below}, name
    return HighLevelGraph(layers, dependencies)


def _levels(
    first: Combine, begun: Mapping[Key, Any], ended: Mapping[Key, Any]
) -> dict[str, dict[Key, Any]] | None:
    """Return the layers of a reduction in few levels; None to keep those of dask.

    ``begun`` and ``ended`` are the tasks of its first and its last layer.
    """
    chunks, dtype, axes = first.of.chunks, first.of.dtype, sorted(first.axes)
    if chunks is None or dtype is None:
        return None
    counts = [*map(len, chunks)]
    number = math.prod(counts[axis] for axis in axes)
    if number < LEAST_RESULTS or not _is_as_usual(begun, counts, axes):
        return None
    nbytes = math.prod(map(max, chunks)) * dtype.itemsize
    width = next(n for n in count(FEW_PARTS) if n**LEVELS >= number)
    width = max(FEW_PARTS, min(width, MOST_COMBINED_BYTES // max(1, nbytes)))
    between, last = (next(iter(tasks.values()))[0] for tasks in (begun, ended))
    (final, *_), kept = next(iter(ended)), [k for k in range(len(counts)) if k not in axes]
    keepdims = len(next(iter(ended))) > 1 + len(kept)
    made = dict[str, dict[Key, Any]]()
    level, name, lengths = 0, first.of.name, counts
    while (number := math.prod(lengths[axis] for axis in axes)) > width:
        below, name = name, f"{first.name}-{tokenize(width, level)}"
        every = [*product(*(range(lengths[axis]) for axis in axes))]
        parts = [every[at : at + width] for at in range(0, number, width)]
        groups = [
            len(parts) if k == axes[0] else 1 if k in axes else n for k, n in enumerate(lengths)
        ]
        made[name] = {
            (name, *place): (between, _listed(below, place, axes, parts[place[axes[0]]]))
            for place in product(*map(range, groups))
        }
        lengths, level = groups, level + 1
    every = [*product(*(range(lengths[axis]) for axis in axes))]
    made[final] = {
        (final, *(place if keepdims else (place[k] for k in kept))): (
            last,
            _listed(name, place, axes, every),
        )
        for place in product(*(range(1 if k in axes else n) for k, n in enumerate(lengths)))
    }
    return made


def _is_as_usual(begun: Mapping[Key, Any], counts: Sequence[int], axes: Sequence[int]) -> bool:
    """Return whether tasks combine as many results as dask does by default."""
    usual = max(int(FEW_PARTS ** (1 / len(axes))), 2)
    most = [max(key[1 + axis] for key in begun) + 1 for axis in range(len(counts))]
    expected = [-(-n // usual) if k in axes else n for k, n in enumerate(counts)]
    return config.get("split_every", None) is None and most == expected


def _listed(
    name: str, place: Sequence[int], axes: Sequence[int], some: Sequence[Sequence[int]]
) -> list[Any]:
    """Return the keys of results that a task combines, nested as deep as axes are reduced.

    ``some`` are their numbers along the axes, at a place along the others.
    """
    keys = list[Any]()
    for numbers in some:
        whole = dict(zip(axes, numbers, strict=True))
        nested: Any = (name, *(whole.get(axis, k) for axis, k in enumerate(place)))
        for _ in axes[1:]:
            nested = [nested]
        keys.append(nested)
    return keys
