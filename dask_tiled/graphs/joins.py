"""Joined arrays: compute each part separately, and join the results."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from itertools import pairwise, product
from typing import NamedTuple

from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.limits import MOST_PARTS
from dask_tiled.graphs.names import (
    Alias,
    Blockwise,
    Layer,
    MaterializedLayer,
    Task,
    TaskRef,
)
from dask_tiled.graphs.reading import CONCATENATES, STACKS
from dask_tiled.graphs.slices import as_now, taken
from dask_tiled.plans.plan import layers_in_order
from dask_tiled.plans.tasks import Block, Key

JOINING = CONCATENATES, STACKS


class Joined(NamedTuple):
    """Layers concatenated along an axis."""

    axis: int
    parts: tuple[str, ...]
    counts: tuple[int, ...]
    """Number of chunks of each part along the axis."""

    def find(self, place: Block) -> Key:
        """Return the part that holds a chunk, and the position of the chunk in it."""
        number = place[self.axis]
        for part, count in zip(self.parts, self.counts, strict=True):
            if number < count:
                return part, *place[: self.axis], number, *place[self.axis + 1 :]
            number -= count
        raise IndexError(place)

    def layer(self, name: str, numblocks: list[int]) -> MaterializedLayer:
        """Build the layer that concatenates the parts."""
        places = product(*map(range, numblocks))
        return MaterializedLayer({(name, *x): Alias((name, *x), self.find(x)) for x in places})


def split_joins(graph: HighLevelGraph) -> HighLevelGraph:
    """Push chunk-wise computations of joined arrays down to their parts."""
    layers, joins = dict[str, Layer](graph.layers), dict[str, Joined]()
    dependencies = {name: {*others} for name, others in graph.dependencies.items()}
    for name in list(layers_in_order(graph.dependencies)):
        layer, joined = layers[name], graph.dependencies[name] & joins.keys()
        if isinstance(layer, Blockwise):
            made = _blockwise(layer, joins) if joined else None
        else:
            listed = isinstance(layer, MaterializedLayer)
            concerned = listed and (joined or name.startswith(JOINING))
            made = _taking(name, layer, joins) if concerned else None
        if made is None:
            continue
        joins[name], parts, numblocks = made
        for part in parts.values():
            part.annotations = layer.annotations
        layers |= parts
        layers[name] = joins[name].layer(name, numblocks)
        for k, (part, own) in enumerate(parts.items()):
            if isinstance(own, Blockwise):
                needed = dependencies[name] - joined | {joins[other].parts[k] for other in joined}
            else:
                needed = {task.args[0].key[0] for task in own.mapping.values()}
            dependencies[part] = needed
        dependencies[name] = {*joins[name].parts}
    return HighLevelGraph(layers, dependencies)


Made = tuple[Joined, dict[str, Layer], list[int]]


def _blockwise(layer: Blockwise, joins: Mapping[str, Joined]) -> Made | None:
    """Split a blockwise layer if its operands are joined in the same way."""
    given = [x for x in layer.indices if x[1] is not None]
    inner = [(joins[name], index) for name, index in given if name in joins]
    first, labels = inner[0]
    label, out, name = labels[first.axis], layer.output_indices, layer.output
    alike = all(x.counts == first.counts and index[x.axis] == label for x, index in inner)
    others = [
        layer.numblocks[x][k]
        for x, index in given
        for k, other in enumerate(index)
        if other == label and (x not in joins or k != joins[x].axis)
    ]
    if not alike or label not in out or layer.io_deps or any(n > 1 for n in others):
        return None
    parts: dict[str, Layer] = {}
    for k, count in enumerate(first.counts):
        renamed = {x: joins[x].parts[k] for x, _ in given if x in joins}
        numblocks = {}
        for x, blocks in layer.numblocks.items():
            along = joins[x].axis if x in joins else None
            counts = tuple(count if axis == along else n for axis, n in enumerate(blocks))
            numblocks[renamed.get(x, x)] = counts
        parts[f"{name}-part-{k}"] = Blockwise(
            output=f"{name}-part-{k}",
            output_indices=out,
            task=layer.task,
            indices=[(x if i is None else renamed.get(x, x), i) for x, i in layer.indices],
            numblocks=numblocks,
            concatenate=layer.concatenate,
            new_axes=layer.new_axes,
        )
    join = Joined(out.index(label), tuple(parts), first.counts)
    return join, parts, [layer.dims[x] for x in out]


def _taking(name: str, layer: MaterializedLayer, joins: Mapping[str, Joined]) -> Made | None:
    """Split a layer of slices of single chunks at the boundaries of parts."""
    slices: dict[Block, tuple[Key, tuple[object, ...]]] = {}
    for key, task in layer.mapping.items():
        block, index = taken(as_now(key, task))
        if not block or key[0] != name:
            return None
        slices[key[1:]] = joins[block[0]].find(block[1:]) if block[0] in joins else block, index
    numblocks = [1 + max(axis) for axis in zip(*slices, strict=True)]
    if not numblocks or math.prod(numblocks) > len(slices):
        return None
    begins: dict[int, list[int]] = {}
    for axis, n in enumerate(numblocks):
        row = [slices[tuple(k * (a == axis) for a in range(len(numblocks)))][0] for k in range(n)]
        again = name.startswith(JOINING)  # an array may be joined to itself
        pairs = enumerate(pairwise(row), 1)
        if new := [k for k, (a, b) in pairs if a[0] != b[0] or (again and a >= b)]:
            begins[axis] = new
    if len(begins) > 1 or any(len(new) >= MOST_PARTS for new in begins.values()):
        return None
    axis, new = next(iter(begins.items()), (0, []))
    edges = list(pairwise([0, *new, numblocks[axis]]))
    parts = [f"{name}-part-{k}" for k in range(len(edges))]
    join = Joined(axis, tuple(parts), tuple(stop - start for start, stop in edges))
    tasks: dict[str, dict[Key, Task]] = {part: {} for part in parts}
    for place, (block, index) in slices.items():
        key = join.find(place)
        tasks[key[0]][key] = Task(key, operator.getitem, TaskRef(block), index)
    if any(len({task.args[0].key[0] for task in own.values()}) > 1 for own in tasks.values()):
        return None
    return join, {part: MaterializedLayer(own) for part, own in tasks.items()}, numblocks
