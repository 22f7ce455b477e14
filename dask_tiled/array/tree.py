"""What the layers of a graph compute, as trees of frozen values: what is read, and what is made.

Trees know nothing of dask. Nodes are compared by what they are, not by what they hold.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dask_tiled.array.dask_graph.functions import LastStep
from dask_tiled.array.tasks import ChunkJob, Function, Kwargs, Label
from dask_tiled.engine.accumulators import Bins
from dask_tiled.engine.reductions import Reduction
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Array, Cut
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Grid


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """What a layer computes."""

    name: str
    """The name of the layer."""
    chunks: Chunks | None
    """None where they are not known."""
    dtype: np.dtype | None
    """None where dask has not noted it."""
    annotations: Mapping[str, object]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        assert self.chunks is not None  # noqa: S101 - only asked for where chunks are known
        return tuple(map(sum, self.chunks))

    @property
    def inner(self) -> tuple[Tree, ...]:
        """The nodes that this one is made of."""
        of: Tree | tuple[Tree, ...] = getattr(self, "of", ())
        return of if isinstance(of, tuple) else (of,)

    @property
    def words(self) -> str:
        """What is done, in a few words."""
        kind, function = type(self).__name__.lower(), getattr(self, "function", None)
        return kind if function is None else f"{kind} {name_of(function)}"

    def __str__(self) -> str:
        """Return the tree as text: a line for each node, those that it is made of below it."""
        lines, stack = list[str](), [(self, 0)]
        while stack:
            node, depth = stack.pop()
            # A reduction begins with results of chunks, however many these are in the end.
            shape = "" if node.chunks is None or isinstance(node, Reduce) else f" {node.shape}"
            lines.append(f"{'  ' * depth}{node.words}{shape}")
            stack += [(x, depth + 1) for x in reversed(node.inner)]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False, kw_only=True)
class Read(Node):
    """The pixels of an opened array."""

    source: Source
    grid: Grid
    description: Description | None

    @property
    def words(self) -> str:
        """What is read."""
        return f"read {os.path.basename(self.source.layout.files[0].path)}"


@dataclass(frozen=True, eq=False)
class Argument:
    """What a function is called on: chunks of an array whose axes have labels, or a value."""

    value: Any
    """A tree, or any other value."""
    labels: tuple[Label, ...] | None
    """None of values."""
    numblocks: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class OfChunks(Node):
    """A function of the chunks of several arrays, which lie in the same place."""

    function: Function
    kwargs: Kwargs
    arguments: tuple[Argument, ...]
    labels: tuple[Label, ...]
    """Of the axes of the results."""
    new_axes: Mapping[Label, int]
    """How many chunks axes have that no array has."""

    @property
    def inner(self) -> tuple[Tree, ...]:
        """The arrays among the arguments."""
        return tuple(x.value for x in self.arguments if x.labels is not None)

    @property
    def words(self) -> str:
        """The function, and the values among the arguments."""
        values = [f"{x.value!r}"[:40] for x in self.arguments if x.labels is None]
        return " ".join([super().words, *values])


@dataclass(frozen=True, eq=False, kw_only=True)
class Call(OfChunks):
    """A function that makes a pixel of one pixel of each array."""

    on_tiles: bool
    """Whether the engine may have it."""

    @property
    def words(self) -> str:
        """The function, and the values among its arguments."""
        return " ".join([super().words, *(f"{k}={x!r}"[:40] for k, x in self.kwargs.items())])


@dataclass(frozen=True, eq=False, kw_only=True)
class Contract(OfChunks):
    """Sums of products of two arrays along some axes, which stay with length 1."""

    gone: tuple[Label, ...]
    """The labels of these axes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Mapped(OfChunks):
    """Any other function of chunks."""

    @property
    def words(self) -> str:
        """How dask calls it."""
        return words_of(self.name)


@dataclass(frozen=True, eq=False, kw_only=True)
class TileFunction(Node):
    """A function of tiles."""

    of: Tree
    job: ChunkJob
    labels: tuple[Label, ...]
    """Of the axes of what it is called on."""
    output: tuple[Label, ...]
    new_axes: Mapping[Label, int]


@dataclass(frozen=True, eq=False, kw_only=True)
class View(Node):
    """The same pixels in other places."""

    of: Tree


@dataclass(frozen=True, eq=False, kw_only=True)
class Transpose(View):
    """Axes in another order."""

    order: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Slice(View):
    """A part of the pixels."""

    cuts: tuple[Cut, ...]
    """One for each axis of the pixels."""
    new: tuple[int, ...]
    """Which axes of the result are new ones of length 1."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Reshape(View):
    """The pixels in C order in another shape."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Take(View):
    """Some of the pixels, in any order along each axis."""

    places: tuple[tuple[int, Array], ...]
    """For each axis of the result: the axis of the pixels, and which positions of it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Broadcast(View):
    """Pixels that are repeated along axes of length 1, and along new axes before the others."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Labelled(View):
    """The same pixels in the same places, with axes and units."""

    axes: tuple[Axis | None, ...]
    units: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Reduce(Node):
    """The first step of a reduction: each chunk is reduced along axes, which stay with length 1."""

    of: Tree
    function: Function
    """Of a chunk, with all arguments but the chunk."""
    axes: tuple[int, ...]
    labels: tuple[Label, ...]
    """Of the axes of what is reduced; the results have the same, in the order ``output``."""
    output: tuple[Label, ...]
    step: LastStep | None
    """What the engine has for it."""

    @property
    def words(self) -> str:
        """What is reduced how; in the words of dask where the engine has nothing for it."""
        done = self.step and self.step.done
        return f"reduce {done.row.name}" if isinstance(done, Reduction) else super().words


@dataclass(frozen=True, eq=False, kw_only=True)
class Combine(Node):
    """A later step of a reduction: results of several chunks become one."""

    of: Tree
    function: partial[object]
    """Of the results of chunks side by side."""
    axes: tuple[int, ...]
    keepdims: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Bin(Node):
    """Pixels that are made of several neighbours."""

    of: Tree
    function: Function
    kwargs: Kwargs
    by: tuple[int, ...]
    """How many neighbours along each axis."""
    trims: bool
    """Whether the last pixels of an axis may be too few for one more, and are left out."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Histogram(Node):
    """How many pixels of each chunk lie in each bin."""

    of: Tree
    bins: Bins


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(Node):
    """Arrays that follow one another along an axis, which is a new one where they are stacked."""

    of: tuple[Tree, ...]
    axis: int
    stacked: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Opaque(Node):
    """Whatever dask computes, of which no more is known."""

    of: tuple[Tree, ...]
    keeps_axes: bool = False
    """Whether the axes are those of the first array that it is made of."""

    @property
    def words(self) -> str:
        """How dask calls it."""
        return words_of(self.name)


Tree = Node


def name_of(function: Function) -> str:
    """Return the name of a function."""
    inner = function.func if isinstance(function, partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__)).lstrip("_")


def words_of(layer: str) -> str:
    """Return how dask calls a layer: its name without the token."""
    return layer.rpartition("-")[0] or "tasks"
