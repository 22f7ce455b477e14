"""Which trees the engine can compute: as pixels of sources, in a view, with one step in the end."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from dask_tiled.array.beside import Beside
from dask_tiled.array.dask_graph.functions import (
    Contraction,
    Step,
    added,
    binning_of,
    histogram_of,
    swapped,
    transposed,
)
from dask_tiled.array.dask_graph.layers import fused, is_other_array
from dask_tiled.array.recipes import NODES, Apply, Tree, cut
from dask_tiled.array.tasks import ChunkJob, run_job
from dask_tiled.array.tree import (
    Argument,
    Bin,
    Call,
    Contract,
    Histogram,
    Label,
    Node,
    OfChunks,
    Read,
    Reduce,
    Reshape,
    Slice,
    TileFunction,
    Transpose,
)
from dask_tiled.array.views import View
from dask_tiled.engine.reductions import SUM, Reduction
from dask_tiled.engine.tile_jobs import MapTiles
from dask_tiled.model.indexing import Cut, cut_chunks
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Grid

COUNTED = "-chunks"
"""What is added to the name of a layer of histograms, for those by the number of the chunk."""


class Known(NamedTuple):
    """What a layer computes of opened arrays."""

    tree: Tree
    chunks: Chunks
    """Those of the sources."""
    grid: Grid
    view: View
    labels: tuple[Any, ...]
    """Those that the layer gives to the axes that are shown of the sources."""
    output: tuple[Any, ...]
    """The labels of what the layer makes."""
    annotations: dict[str, Any]
    step: Step | None = None
    new_axes: Mapping[Label, int] = MappingProxyType({})
    """How many chunks axes have that no axis of the sources is shown as."""

    @property
    def source(self) -> Source:
        """One of the sources: all of them have the same axes."""
        node: Any = self.tree
        while isinstance(node, Apply):
            node = next(x for x in node.operands if isinstance(x, NODES))
        found: Source = node
        return found

    @property
    def is_read(self) -> bool:
        """Whether nothing is computed."""
        return self.step is None and isinstance(self.tree, Source)

    @property
    def needs_ending(self) -> bool:
        """Whether only the engine knows what to do with its results."""
        done = self.step and self.step.done
        return isinstance(done, Reduction) and done.row.finds_place

    @property
    def is_as_read(self) -> bool:
        """Whether the axes are those of the sources."""
        return self.view == View.of(len(self.chunks))

    @property
    def places(self) -> tuple[Any, ...]:
        """The labels that the axes of the sources have."""
        return tuple(self.labels[place] for place in self.view.places)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes that are shown."""
        return self.view.shape(self.grid.shape)

    @property
    def shown_chunks(self) -> Chunks:
        """Chunks of the axes that are shown."""
        found = self.view.chunks(self.chunks)
        assert found is not None  # noqa: S101 - or it would not be known
        return found

    @property
    def made_chunks(self) -> Chunks | None:
        """Chunks of what the layer makes; None of what is the first step of something else."""
        if self.step is None:
            return self.shown_chunks
        done = self.step.done
        if isinstance(done, ChunkJob):
            mapped = isinstance(done.job, MapTiles) and done.job.sig_shape is None
            return self.shown_chunks if mapped else None
        # Only where pixels are binned two axes have one label: bins, and the pixels of each.
        return self.shown_chunks[::2] if len({*self.labels}) < len(self.labels) else None

    def shown(self, view: View | None, labels: tuple[Any, ...]) -> Known | None:
        """Show it in another way, if each of its chunks is still one chunk."""
        if view is None or view.chunks(self.chunks) is None or (self.chunks and not labels):
            return None
        return self._replace(view=view, labels=labels, output=labels)


def known_trees(trees: Mapping[str, Node], numpy: set[str]) -> dict[str, Known]:
    """Return what is computed of opened arrays, by the names of the layers.

    Layers of the names ``numpy`` have arrays of NumPy, which pixels may be computed with.
    """
    known: dict[str, Known] = {}
    for name, tree in trees.items():
        match tree:
            case Read():
                found: Known | None = _read(tree)
            case Call() | Contract():
                found = _of_chunks(tree, known, numpy)
            case _ if tree.inner:
                one = known.get(tree.inner[0].name)
                annotated = one and one._replace(
                    annotations=fused(one.annotations, tree.annotations)
                )
                found = _of_one(tree, annotated) if annotated and annotated.step is None else None
            case _:
                found = None
        if found is not None and found.step is None and found.shown_chunks != tree.chunks:
            found = None  # what is read of its chunks would be of others
        key = name + COUNTED if isinstance(tree, Histogram) else name
        if found is not None and (key == name or key not in trees):
            known[key] = found
    return known


def _read(tree: Read) -> Known:
    assert tree.chunks is not None  # noqa: S101 - what is read has chunks
    labels = tuple(range(len(tree.chunks)))
    view, annotations = View.of(len(labels)), dict(tree.annotations)
    return Known(tree.source, tree.chunks, tree.grid, view, labels, labels, annotations)


def _of_one(tree: Node, one: Known) -> Known | None:  # noqa: PLR0911 - by its kind
    """Return what is made of something known; None where the engine cannot."""
    axes = tuple(range(len(one.view.shown)))
    match tree:
        case TileFunction() if one.is_as_read:
            step = Step(tree.job, partial(run_job, job=tree.job))
            one = one._replace(labels=tree.labels, output=tree.output, new_axes=tree.new_axes)
            return one._replace(step=step)
        case Transpose():
            shown = tuple(one.view.shown[k] for k in tree.order)
            return one.shown(one.view._replace(shown=shown), axes)
        case Slice():
            return _slice(tree, one)
        case Reshape():
            assert tree.chunks is not None  # noqa: S101 - a reshaped array has chunks
            view = one.view.reshaped(one.view.sizes(one.grid.shape), tree.shape)
            return one.shown(view, tuple(range(len(tree.chunks))))
        case Reduce(step=Step() as step):
            ends = {part.axis for axis in tree.axes for part in one.view.shown[axis]}
            found = one._replace(labels=tree.labels, output=tree.output, step=step)
            return None if found.needs_ending and ends & one.view.flipped else found
        case Bin():
            return _bin(tree, one)
        case Histogram():
            return one._replace(labels=axes, output=axes, step=histogram_of(tree.bins, len(axes)))
        case _:
            return None


def _slice(tree: Slice, one: Known) -> Known | None:
    """Return a part of what is known: the sources give at once what it has of each axis."""
    found = _cut(one, tree.cuts)
    if found is None:
        return None
    shown = list(found.view.shown)
    for k in tree.new:
        shown.insert(k, ())
    return found.shown(found.view._replace(shown=tuple(shown)), tuple(range(len(shown))))


def _of_chunks(tree: OfChunks, known: Mapping[str, Known], numpy: set[str]) -> Known | None:
    """Return what is computed of known pixels, and of arrays of NumPy beside."""
    found = _operands(tree, known, numpy)
    if found is None:
        return None
    one, operands = found
    one = one._replace(output=tree.labels, new_axes=tree.new_axes)
    if isinstance(tree, Contract):
        return _contraction(tree, one, operands)
    if not isinstance(tree, Call) or not tree.on_tiles or one.labels != tree.labels:
        return None
    if any(isinstance(x, Beside) and x.has_further for x in operands):
        return None
    return one._replace(tree=Apply(tree.function, tree.kwargs, operands))


def _operands(
    tree: OfChunks, known: Mapping[str, Known], numpy: set[str]
) -> tuple[Known, tuple[Any, ...]] | None:
    """List the operands: known ones of the same axes and chunks, and others.

    The first of the known ones gets the annotations of all.
    """
    inner = [known.get(x.value.name) if x.labels is not None else None for x in tree.arguments]
    inner = [x if x is not None and x.step is None else None for x in inner]
    which = next((k for k, x in enumerate(inner) if x is not None), None)
    if which is None:
        return None
    first: Any = inner[which]
    first = first._replace(labels=tree.arguments[which].labels)
    operands: list[Any] = []
    for one, given in zip(inner, tree.arguments, strict=True):
        same = first.labels, first.chunks, first.view
        if one is not None and (given.labels, one.chunks, one.view) == same:
            operands.append(one.tree)
        elif given.labels is None:
            if is_other_array(given.value):
                return None
            operands.append(given.value)
        else:
            beside = _beside(given, first) if one is None and given.value.name in numpy else None
            if beside is None:
                return None
            operands.append(beside)
    annotations = fused(tree.annotations, *(x.annotations for x in inner if x is not None))
    return first._replace(annotations=annotations), tuple(operands)


def _beside(given: Argument, first: Known) -> Beside | None:
    """Show an array that is repeated along axes that it has not; None where it may be longer."""
    labels = given.labels or ()
    axes = [first.labels.index(x) if x in first.labels else None for x in labels]
    unknown = any(
        n > 1 if axis is None else first.shape[axis] == 1 or not first.view.shown[axis]
        for axis, n in zip(axes, given.numblocks, strict=True)
    )
    if unknown or len({*labels}) < len(labels):
        return None
    spans = tuple(() if axis is None else first.view.spans(axis) for axis in axes)
    return Beside(given.value.name, spans, given.numblocks, (None,) * len(axes))


def _contraction(tree: Contract, one: Known, operands: tuple[Any, ...]) -> Known | None:
    """Return products with an array beside that are added up.

    Of whole frames that is a matrix product; other products are made, and then added up.
    """
    out, is_second = tree.labels, operands[1] is one.tree
    weights, given = operands[0 if is_second else 1], tree.arguments[0 if is_second else 1]
    if not isinstance(weights, Beside):
        return None
    index = given.labels or ()
    labels = one.labels + tuple(x for x in index if x not in one.labels)
    unique = len({*labels}) == len(labels) == len(out) and len({*index}) == len(index)
    if not unique or {*labels} != {*out}:
        return None
    gone = tuple(axis for axis, label in enumerate(one.labels) if label in tree.gone)
    order = tuple(map(labels.index, out))
    finish = partial(transposed, order=order)
    parts = [part for axis in gone for part in one.view.shown[axis]]
    nav_ndim = one.source.layout.nav_ndim
    whole = {*parts} == {part for part in one.view.parts if part.axis >= nav_ndim}
    if parts and whole and {*tree.gone} <= {*index}:
        plain = partial(tree.function, **tree.kwargs)
        plain = partial(swapped, function=plain) if is_second else plain
        return one._replace(step=Step(Contraction(weights), plain, finish))
    if not gone or weights.has_further:
        return None
    step = Step(Reduction(SUM, gone, None), partial(added, gone=gone, order=order), finish)
    return one._replace(tree=Apply(operator.mul, {}, operands), step=step)


def _cut(one: Known, cuts: Sequence[Cut]) -> Known | None:
    """Show a part of what is known; None where that is not known."""
    found = one.view.cut(cuts, one.grid.shape)
    if found is None:
        return None
    of, view = found
    tree = cut(one.tree, of, one.grid.shape)
    if tree is None:
        return None
    chunks = tuple(cut_chunks(axis, x) for axis, x in zip(one.chunks, of, strict=True) if x.kept)
    labels = tuple(range(len(view.shown)))
    one = one._replace(tree=tree, chunks=chunks, grid=Grid.of(chunks))
    return one._replace(view=view, labels=labels, output=labels)


def _bin(tree: Bin, one: Known) -> Known | None:
    """Return pixels that are made of several neighbours: parts of axes are reduced."""
    ndim = len(tree.by)
    step = binning_of(tree.function, tree.kwargs, ndim)
    cut_one: Known | None = one
    if tree.trims:
        cut_one = _cut(one, [Cut(0, 1, n - n % k) for n, k in zip(one.shape, tree.by, strict=True)])
    if cut_one is None or step is None:
        return None
    sizes = cut_one.view.sizes(cut_one.grid.shape)
    pairs = [n for length, k in zip(cut_one.shape, tree.by, strict=True) for n in (length // k, k)]
    view, labels = cut_one.view.reshaped(sizes, pairs), tuple(k // 2 for k in range(2 * ndim))
    found = cut_one.shown(view, labels)
    if found is None or found.shown_chunks[::2] != tree.chunks:
        return None
    return found._replace(step=step, output=labels[::2])
