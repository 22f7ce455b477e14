"""Trees of the computations of a graph, as frozen values.

Trees are independent of dask. Nodes are compared by identity, not by their fields.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dask_tiled.engine.accumulators import Bins
from dask_tiled.engine.reductions import Reduction
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Array, Cut
from dask_tiled.plans.last_steps import LastStep
from dask_tiled.plans.tasks import ChunkJob, Function, Kwargs, Label
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Grid


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """A node of a tree: the computation of a layer."""

    name: str
    """Name of the layer."""
    chunks: Chunks | None
    """None if unknown."""
    dtype: np.dtype | None
    """None if dask did not annotate it."""
    annotations: Mapping[str, object]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        assert self.chunks is not None  # noqa: S101 - only called if chunks are known
        return tuple(map(sum, self.chunks))

    @property
    def inner(self) -> tuple[Tree, ...]:
        """Inputs of the node."""
        of: Tree | tuple[Tree, ...] = getattr(self, "of", ())
        return of if isinstance(of, tuple) else (of,)

    @property
    def words(self) -> str:
        """Short text of the operation."""
        kind, function = type(self).__name__.lower(), getattr(self, "function", None)
        return kind if function is None else f"{kind} {name_of(function)}"

    def __str__(self) -> str:
        """Return the tree as text: a line per node, its inputs indented below."""
        lines, stack = list[str](), [(self, 0)]
        while stack:
            node, depth = stack.pop()
            # Chunks of a reduction hold partial results: their shape says little.
            shape = "" if node.chunks is None or isinstance(node, Reduce) else f" {node.shape}"
            lines.append(f"{'  ' * depth}{node.words}{shape}")
            stack += [(x, depth + 1) for x in reversed(node.inner)]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False, kw_only=True)
class Read(Node):
    """Pixels of an opened array."""

    source: Source
    grid: Grid
    description: Description | None

    @property
    def words(self) -> str:
        """File that is read."""
        return f"read {os.path.basename(self.source.layout.files[0].path)}"


@dataclass(frozen=True, eq=False)
class Argument:
    """Argument of a function: chunks of an array whose axes have labels, or a value."""

    value: Any
    """A tree, or any other value."""
    labels: tuple[Label, ...] | None
    """None for values."""
    numblocks: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class OfChunks(Node):
    """A function of aligned chunks of several arrays."""

    function: Function
    kwargs: Kwargs
    arguments: tuple[Argument, ...]
    labels: tuple[Label, ...]
    """Labels of the axes of the result."""
    new_axes: Mapping[Label, int]
    """Numbers of chunks of axes that no input has."""

    @property
    def inner(self) -> tuple[Tree, ...]:
        """Arrays among the arguments."""
        return tuple(x.value for x in self.arguments if x.labels is not None)

    @property
    def words(self) -> str:
        """The function and its arguments that are not arrays."""
        values = [f"{x.value!r}"[:40] for x in self.arguments if x.labels is None]
        return " ".join([super().words, *values])


@dataclass(frozen=True, eq=False, kw_only=True)
class Call(OfChunks):
    """An elementwise function."""

    on_tiles: bool
    """Whether the engine may compute it."""

    @property
    def words(self) -> str:
        """The function, and those of its arguments that are values."""
        return " ".join([super().words, *(f"{k}={x!r}"[:40] for k, x in self.kwargs.items())])


@dataclass(frozen=True, eq=False, kw_only=True)
class Contract(OfChunks):
    """Sums of products of two arrays along some axes, which keep length 1."""

    gone: tuple[Label, ...]
    """Labels of these axes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MappedChunks(OfChunks):
    """Any other function of chunks."""

    @property
    def words(self) -> str:
        """Name of the layer in dask, without the token."""
        return words_of(self.name)


@dataclass(frozen=True, eq=False, kw_only=True)
class TileFunction(Node):
    """A function of tiles."""

    of: Tree
    job: ChunkJob
    labels: tuple[Label, ...]
    """Labels of the axes of the input."""
    output: tuple[Label, ...]
    new_axes: Mapping[Label, int]


@dataclass(frozen=True, eq=False, kw_only=True)
class Rearranged(Node):
    """The same pixels at other positions."""

    of: Tree


@dataclass(frozen=True, eq=False, kw_only=True)
class Transpose(Rearranged):
    """A transpose."""

    order: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Slice(Rearranged):
    """A slice with basic indices."""

    cuts: tuple[Cut, ...]
    """Cut of each axis of the input."""
    new: tuple[int, ...]
    """New axes of the result, of length 1."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Reshape(Rearranged):
    """A reshape in C order."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Take(Rearranged):
    """Selected positions along each axis, in any order."""

    places: tuple[tuple[int, Array], ...]
    """Axis of the input, and the positions along it, for each axis of the result."""

    @property
    def is_empty(self) -> bool:
        """Whether no pixel of an opened array is selected."""
        return isinstance(self.of, Read) and self.chunks is not None and 0 in self.shape


@dataclass(frozen=True, eq=False, kw_only=True)
class Broadcast(Rearranged):
    """A broadcast along axes of length 1, and along new leading axes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Labelled(Rearranged):
    """The same pixels with other axes and units."""

    axes: tuple[Axis | None, ...]
    units: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Reduce(Node):
    """The first step of a reduction: each chunk is reduced along axes, which keep length 1."""

    of: Tree
    function: Function
    """Function of a chunk, with all other arguments bound."""
    axes: tuple[int, ...]
    labels: tuple[Label, ...]
    """Labels of the axes of the input; the result has the same, in the order ``output``."""
    output: tuple[Label, ...]
    step: LastStep | None
    """Equivalent step of the engine, or None."""

    @property
    def words(self) -> str:
        """The reduction; dask's name of the function if the engine has no equivalent."""
        done = self.step and self.step.done
        return f"reduce {done.row.name}" if isinstance(done, Reduction) else super().words


@dataclass(frozen=True, eq=False, kw_only=True)
class Combine(Node):
    """A later step of a reduction: results of several chunks are combined."""

    of: Tree
    function: partial[object]
    """Function of concatenated results of chunks."""
    axes: tuple[int, ...]
    keepdims: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Bin(Node):
    """Binned neighbouring pixels."""

    of: Tree
    function: Function
    kwargs: Kwargs
    by: tuple[int, ...]
    """Neighbours per bin along each axis."""
    trims: bool
    """Whether incomplete bins at the end of an axis are dropped."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Histogram(Node):
    """Histograms of all chunks."""

    of: Tree
    bins: Bins


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(Node):
    """Arrays concatenated along an axis, or stacked along a new one."""

    of: tuple[Tree, ...]
    axis: int
    stacked: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Opaque(Node):
    """An unknown computation of dask."""

    of: tuple[Tree, ...]
    keeps_axes: bool = False
    """Whether the axes equal those of the first input of the same shape."""

    @property
    def words(self) -> str:
        """Name of the layer in dask, without the token."""
        return words_of(self.name)


Tree = Node


TOKEN = re.compile(r"-[0-9a-f]{32}|^[0-9a-f]{32}$|-aggregate|-partial")
"""Parts of the names of layers that say nothing about the operation."""
PUBLIC = {
    "arg-reduce": "argmin or argmax",
    "arg_agg": "argmin or argmax",
    "arg_chunk": "argmin or argmax",
    "arg_combine": "argmin or argmax",
    "bincount_agg": "bincount",
    "chunk_einsum": "einsum",
    "chunk_max": "max",
    "chunk_min": "min",
    "chunk_sum": "sum",
    "histogram-sum": "histogram",
    "mean_agg": "mean",
    "mean_chunk": "mean",
    "mean_combine": "mean",
    "moment_agg": "var",
    "moment_chunk": "var",
    "moment_combine": "var",
    "nanarg_agg": "argmin or argmax",
    "nanmax_skip": "nanmax",
    "nanmin_skip": "nanmin",
    "topk_aggregate": "topk",
    "unique_internal": "unique",
}
"""Operations of users, by the private functions in which dask does them."""


def name_of(function: Function) -> str:
    """Return the name of a function, as users know it."""
    inner = function.func if isinstance(function, partial) else function
    method = getattr(inner, "method", type(inner).__name__)  # of dask's methodcaller
    return _public(str(getattr(inner, "__name__", method)))


def words_of(layer: str) -> str:
    """Return the operation of a layer, without the token, as users know it."""
    return _public(TOKEN.sub("", layer)) or "tasks"


def _public(name: str) -> str:
    name = name.lstrip("_")
    return PUBLIC.get(name, name)
