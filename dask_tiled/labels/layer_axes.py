"""Propagation of axes and units through the layers of a graph."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.engine.tile_jobs import MapTiles
from dask_tiled.errors import warn_once
from dask_tiled.graphs.labelling import LABELLED
from dask_tiled.graphs.layers import calls
from dask_tiled.graphs.names import core, overlapping, slicing
from dask_tiled.graphs.reading import trees_of
from dask_tiled.labels.axis_kinds import Unplaced, at_places, joined, reshaped_axes, same
from dask_tiled.labels.fourier import transform_of, transformed
from dask_tiled.labels.limits import KEPT_LABELS
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description
from dask_tiled.plans.tasks import Function, Kwargs, Label, pixels_of
from dask_tiled.plans.tree import (
    Bin,
    Broadcast,
    Call,
    Combine,
    Contract,
    Join,
    Labelled,
    MappedChunks,
    OfChunks,
    Opaque,
    Read,
    Rearranged,
    Reduce,
    Reshape,
    Slice,
    Take,
    TileFunction,
    Transpose,
    Tree,
)
from dask_tiled.tiling.bases import Chunks

Axes = tuple[Axis | None, ...]
Labels = tuple[Tree, tuple[Label, ...]]
"""An argument of a function, and the labels of its axes."""
MOVING = [
    *(np.argsort, np.argpartition, np.flip, np.fliplr, np.flipud, np.moveaxis, np.partition),
    *(np.roll, np.rollaxis, np.rot90, np.sort, np.swapaxes, np.transpose),
    *(np.ndarray.swapaxes, np.ndarray.transpose, np.linalg.inv, np.random.permutation),
]
"""NumPy functions that may keep the shape of a chunk, but not the positions of its pixels."""
KEEP_UNITS = {
    *("abs", "absolute", "add", "astype", "clip", "conjugate", "cumsum", "custom_nanquantile"),
    *("chunk_max", "chunk_min", "imag", "max", "maximum", "mean_chunk", "median", "min"),
    *("minimum", "nan_to_num", "nancumsum", "nanmax_skip", "nanmedian", "nanmin_skip", "nansum"),
    *("neg", "negative", "pos", "positive", "quantile", "real", "round", "sub", "subtract"),
    *("sum", "where"),
}
"""Functions whose results have the unit of their arguments."""


class Noted(NamedTuple):
    """Axes and units of a layer."""

    axes: Axes | None
    units: str
    of: tuple[Description, ...]
    """Descriptions of the files that are read, without duplicates."""
    chunks: Chunks | None


_persisted: dict[str, Noted] = {}
"""Metadata of persisted arrays, whose graphs consist of chunks only."""
NAMED_BY_CONTENT = re.compile("-[0-9a-f]{32}$")
"""Pattern of layer names that are unique by their token."""


def labels_in(graph: HighLevelGraph) -> dict[str, Noted]:
    """Return the axes and units of the arrays of a graph, by layer name."""
    by_layer: dict[str, Noted] = {}
    try:
        for name, tree in trees_of(graph).items():
            kept = None if tree.inner else _persisted.get(name)
            if kept is not None and kept.chunks == tree.chunks:
                by_layer[name] = kept
                continue
            axes = None if tree.chunks is None else _axes_of(tree, by_layer)
            fits = axes is not None and len(axes) == len(tree.chunks or ())
            of = tuple(_read_by(tree, by_layer))
            by_layer[name] = Noted(
                axes if fits else None, _units_of(tree, by_layer), of, tree.chunks
            )
    except Exception as error:  # noqa: BLE001 - any error of a changed dask
        dask_is = f"dask {version('dask')}"
        warn_once(f"the axes of an array of {dask_is} are unknown: {error!r}", RuntimeWarning)
        return {}
    return by_layer


def keep_labels(graph: HighLevelGraph, name: str) -> None:
    """Keep the axes and units of an array after its graph is gone."""
    ours = any(x in _persisted or x.startswith(LABELLED) for x in graph.layers)
    if NAMED_BY_CONTENT.search(name) and (ours or calls(graph, pixels_of)):
        found = labels_in(graph).get(name)
        if found is not None and found.axes is not None:
            _persisted[name] = found
    while len(_persisted) > KEPT_LABELS:
        _persisted.pop(next(iter(_persisted)), None)


def _read_by(tree: Tree, known: Mapping[str, Noted]) -> Iterator[Description]:
    """Yield the descriptions of a layer's files, without duplicates."""
    found: dict[object, Description] = {}
    if isinstance(tree, Read) and tree.description is not None:
        found[tree.description.files] = tree.description
    for one in tree.inner:
        for description in known[one.name].of:
            found.setdefault(description.files, description)
    yield from found.values()


def _units_of(tree: Tree, known: Mapping[str, Noted]) -> str:
    """Return the unit of a layer: that of its inputs, if its function keeps units."""
    if isinstance(tree, Labelled):
        return tree.units
    units = {known[x.name].units for x in tree.inner}
    keeps = isinstance(tree, Rearranged | Join | Bin | Combine) or (
        tree.keeps_axes
        if isinstance(tree, Opaque)
        else isinstance(tree, Call | MappedChunks | Reduce) and _same_units(tree)
    )
    return units.pop() if keeps and len(units) == 1 else ""


def _same_units(tree: Call | MappedChunks | Reduce) -> bool:
    """Return whether a function's results have the unit of its arguments."""
    function = tree.function.func if isinstance(tree.function, partial) else tree.function
    return getattr(function, "__name__", "").strip("_") in KEEP_UNITS


def _axes_of(tree: Tree, known: Mapping[str, Noted]) -> Axes | None:  # noqa: PLR0911 - one return per kind of node
    """Return the axes of a layer, given those of its inputs; None if all are unknown."""
    if isinstance(tree, Read):
        return None if tree.description is None else tree.description.axes
    if isinstance(tree, Labelled):
        return tree.axes
    if isinstance(tree, MappedChunks):
        return _mapped(tree, known)
    if all(known[x.name].axes is None for x in tree.inner):
        return None
    match tree:
        case Call() | Contract():
            gone = {*tree.gone} if isinstance(tree, Contract) else set[Label]()
            return _by_labels(tree, tree.labels, _arrays(tree), gone, known)
        case TileFunction():
            same = isinstance(tree.job.job, MapTiles) and tree.job.job.sig_shape is None
            gone = set() if same else {*tree.labels[tree.job.nav_ndim :]}
            return _by_labels(tree, tree.output, [(tree.of, tree.labels)], gone, known)
        case Reduce():
            gone = {tree.output[axis] for axis in tree.axes}
            return _by_labels(tree, tree.output, [(tree.of, tree.labels)], gone, known)
        case Join():
            return _joined(tree, [known[x.name].axes or (None,) * len(x.shape) for x in tree.of])
        case Opaque():
            alike = [x for x in tree.of if x.chunks is not None and x.shape == tree.shape]
            return known[alike[0].name].axes if tree.keeps_axes and alike else None
        case _:
            axes = known[tree.inner[0].name].axes
            return None if axes is None else _of_one(tree, axes)


def _of_one(tree: Tree, axes: Axes) -> Axes | None:  # noqa: PLR0911 - one return per kind of node
    """Return the axes of a node with one input."""
    match tree:
        case Transpose():
            return tuple(axes[k] for k in tree.order)
        case Slice():
            pairs = zip(axes, tree.cuts, strict=True)
            shown = [axis and axis.cut(*cut[:3]) for axis, cut in pairs if cut.kept]
            for k in tree.new:
                shown.insert(k, None)
            return tuple(shown)
        case Take():
            chosen = ((axes[axis], places) for axis, places in tree.places)
            return tuple(axis and at_places(axis, places) for axis, places in chosen)
        case Broadcast():
            new = len(tree.shape) - len(axes)
            lengths = zip(axes, tree.of.shape, tree.shape[new:], strict=True)
            return ((None,) * new) + tuple(axis if a == b else None for axis, a, b in lengths)
        case Reshape():
            return reshaped_axes(axes, tree.of.shape, tree.shape)
        case Bin():
            return tuple(axis and axis.binned(n) for axis, n in zip(axes, tree.by, strict=True))
        case Combine():
            gone = {axis % len(axes) for axis in tree.axes}
            shown = [None if k in gone else axis for k, axis in enumerate(axes)]
            return tuple(x for k, x in enumerate(shown) if tree.keepdims or k not in gone)
        case _:
            return None


def _arrays(tree: OfChunks) -> list[Labels]:
    """Return the arrays among the arguments of a function."""
    return [(x.value, x.labels) for x in tree.arguments if x.labels is not None]


def _mapped(tree: MappedChunks, known: Mapping[str, Noted]) -> Axes | None:  # noqa: PLR0911
    """Return the axes after an arbitrary chunk function, which keeps axes if it keeps the shape.

    Axes that are not dropped must keep their chunks, or are reduced to length 1. Fourier
    transforms and NumPy functions that move pixels are treated specially.
    """
    arrays = _arrays(tree)
    (first, labels), *others = arrays
    function, kwargs = _function_of(tree)
    axes = known[first.name].axes
    if tree.chunks is None or first.chunks is None:
        return None
    if function is overlapping._trim:  # noqa: SLF001 - called by dask
        return _below(first, tree.chunks, known)
    if function in MOVING and labels == tree.labels:
        return None
    values = [x.value for x in tree.arguments if x.labels is None]
    transform = transform_of(function, values, kwargs, len(labels)) if len(arrays) == 1 else None
    if transform is not None and axes is not None:
        whole = all(len(first.chunks[axis]) == 1 for axis in transform.axes)
        return tuple(transformed(axes, transform, first.shape, tree.shape)) if whole else None
    gone = set[Label]()
    if function is np.repeat and isinstance(kwargs.get("axis"), int):
        gone.add(labels[kwargs["axis"]])
    for label, chunks in zip(tree.labels, tree.chunks, strict=True):
        given = _chunks_along(label, arrays)
        if given and chunks not in given and label not in gone:
            if {*chunks} != {1}:
                return None
            gone.add(label)
    new_axes = _by_labels(tree, tree.labels, arrays, gone, known)
    if function is slicing.getitem_variadic and new_axes is not None:  # others are masks
        chosen = {label for _, labels in others for label in labels}
        pairs = zip(new_axes, tree.labels, strict=True)
        return tuple(
            Unplaced(axis.name) if axis and label in chosen else axis for axis, label in pairs
        )
    return new_axes


def _function_of(tree: MappedChunks) -> tuple[Function, Kwargs]:
    """Return the function that a layer calls on chunks, and its keyword arguments."""
    function, kwargs = tree.function, dict(tree.kwargs)
    if function is core._pass_extra_kwargs and tree.arguments:  # noqa: SLF001 - called by dask
        function = tree.arguments[0].value
    if isinstance(function, partial):
        kwargs = {**function.keywords, **kwargs}
        function = function.func
    return function, kwargs


def _below(tree: Tree, chunks: Chunks, known: Mapping[str, Noted]) -> Axes | None:
    """Return the axes of the array whose chunks an overlap has extended."""
    stack = [tree]
    while stack:
        one = stack.pop()
        axes = known[one.name].axes
        if one.chunks == chunks and axes is not None and not isinstance(one, MappedChunks):
            return axes
        stack += reversed(one.inner[:1] if isinstance(one, MappedChunks) else one.inner)
    return None


def _chunks_along(label: Label, arrays: Sequence[Labels]) -> list[tuple[int, ...]]:
    """Return the chunks of arrays along the axis with a label."""
    pairs = ((one.chunks, labels.index(label)) for one, labels in arrays if label in labels)
    return [chunks[k] for chunks, k in pairs if chunks is not None]


def _by_labels(
    tree: Tree,
    output: Sequence[Label],
    inner: Sequence[Labels],
    gone: set[Label],
    known: Mapping[str, Noted],
) -> Axes | None:
    """Match axes by their labels; labels that are gone have no axis."""
    if len(output) != len(tree.shape):
        return None
    neighbours = isinstance(tree, Call) and tree.function in (operator.add, operator.sub)
    new_axes: list[Axis | None] = []
    for label, length in zip(output, tree.shape, strict=True):
        axes = [
            axes[k]
            for array, labels in inner
            if (axes := known[array.name].axes) is not None
            for k, other in enumerate(labels)
            if other == label and array.shape[k] == length
        ]
        new_axes.append(None if label in gone else same(axes, neighbours=neighbours))
    return tuple(new_axes)


def _joined(tree: Join, axes: Sequence[Axes]) -> Axes | None:
    """Merge the axes of joined arrays; positions along the joined axis must continue."""
    ndim = len(axes[0])
    found = [same([one[k] for one in axes]) for k in range(ndim)]
    if tree.stacked:
        return (*found[: tree.axis], None, *found[tree.axis :])
    lengths = [part.shape[tree.axis] for part in tree.of]
    found[tree.axis] = joined([one[tree.axis] for one in axes], lengths)
    return tuple(found)
