"""Which axes of files are left in what is computed of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import NamedTuple

import dask.array as da
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.dask_graph.labelling import with_labels
from dask_tiled.array.dask_graph.reading import trees_of
from dask_tiled.array.tasks import Label, Labelling
from dask_tiled.array.tiled_array import TiledArray
from dask_tiled.array.tree import (
    Bin,
    Call,
    Combine,
    Contract,
    Join,
    Labelled,
    Opaque,
    Read,
    Reduce,
    Reshape,
    Slice,
    TileFunction,
    Transpose,
    Tree,
    View,
)
from dask_tiled.array.views import Part
from dask_tiled.array.views import View as Shape
from dask_tiled.errors import DatasetError, warn_once
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description

Axes = tuple[Axis | None, ...]


class Shown(NamedTuple):
    """What an array shows of files."""

    axes: Axes
    """None for those that are no axes of files, or not known to be."""
    of: tuple[Description, ...]
    """What is read for it, the same files once."""
    units: str = ""
    """The unit of the values; empty where it is not known."""


def labelled(arr: da.Array, axes: Sequence[Axis | None], units: str = "") -> da.Array:
    """Return an array with other axes, which everything computed of it keeps as far as known.

    Parameters
    ----------
    arr : dask.array.Array
    axes : sequence of Axis or None
        One for each axis of ``arr``; None for those of which nothing is known.
    units : str, optional
        The unit of the values, where it is known.

    Returns
    -------
    dask.array.Array
        The same values in the same chunks: nothing is computed for labels, and what is computed
        of opened arrays still runs on tiles. An opened array stays one.

    Raises
    ------
    DatasetError
        There are more or fewer axes than ``arr`` has, or more or fewer labels than positions.
    """
    found = tuple(axes)
    if len(found) != arr.ndim:
        raise DatasetError(
            "the labels do not fit the array", expected=f"{arr.ndim} axes", found=len(found)
        )
    for axis, length in zip(found, arr.shape, strict=True):
        if axis is not None and axis.labels and len(axis.labels) != length:
            raise DatasetError(
                f"the labels of the axis {axis.name} do not fit the array",
                expected=f"{length} labels",
                found=len(axis.labels),
            )
    if isinstance(arr, TiledArray) and arr.description is not None and not units:
        named = tuple(axis for axis in found if axis is not None)
        if len(named) == arr.ndim:
            return arr.with_description(replace(arr.description, axes=named))
    if not isinstance(arr.dask, HighLevelGraph):  # an array expression
        return arr
    return with_labels(arr, Labelling(found, units))


def shown_of(arr: da.Array) -> Shown:
    """Return which axes of files an array has, and which files it reads.

    Sums along axes, slices, expressions, products and what is binned are known. Of what functions
    of users make of chunks, no axes are.
    """
    axes: dict[str, Axes] = {}
    units: dict[str, str] = {}
    descriptions: dict[object, Description] = {}
    if isinstance(arr.dask, HighLevelGraph):
        try:
            for name, tree in trees_of(arr.dask).items():
                if isinstance(tree, Read) and tree.description is not None:
                    descriptions.setdefault(tree.description.files, tree.description)
                found = None if tree.chunks is None else _axes_of(tree, axes)
                if found is not None and len(found) == len(tree.chunks or ()):
                    axes[name] = found
                units[name] = _units_of(tree, units)
        except Exception as error:  # noqa: BLE001 - of any kind, where dask has changed
            dask_is = f"dask {version('dask')}"
            warn_once(f"the axes of a graph of {dask_is} are not known: {error!r}", RuntimeWarning)
            return Shown((None,) * arr.ndim, ())
    found = axes.get(arr.name, (None,) * arr.ndim)
    return Shown(found, tuple(descriptions.values()), units.get(arr.name, ""))


def _units_of(tree: Tree, known: Mapping[str, str]) -> str:
    """Return the unit of what a layer computes: that of its parts, where it makes no other."""
    if isinstance(tree, Labelled):
        return tree.units
    found = {known[x.name] for x in tree.inner}
    return found.pop() if isinstance(tree, View | Join) and len(found) == 1 else ""


def _axes_of(tree: Tree, known: Mapping[str, Axes]) -> Axes | None:  # noqa: PLR0911 - by its kind
    """Return the axes of what a layer computes, whose parts are known; None if nothing is."""
    if isinstance(tree, Read):
        return None if tree.description is None else tree.description.axes
    if isinstance(tree, Labelled):
        return tree.axes
    if not any(x.name in known for x in tree.inner):
        return None
    if isinstance(tree, Call | Contract):
        inner = [(x.value, x.labels) for x in tree.arguments if x.labels is not None]
        gone = {*tree.gone} if isinstance(tree, Contract) else set[Label]()
        return _by_labels(tree, tree.labels, inner, gone, known)
    if isinstance(tree, TileFunction):
        sig = {*tree.labels[tree.job.nav_ndim :]}
        return _by_labels(tree, tree.output, [(tree.of, tree.labels)], sig, known)
    if isinstance(tree, Reduce):
        gone = {tree.output[axis] for axis in tree.axes}
        return _by_labels(tree, tree.output, [(tree.of, tree.labels)], gone, known)
    if isinstance(tree, Join):
        return _joined(tree, [known.get(x.name, (None,) * len(x.shape)) for x in tree.of])
    if isinstance(tree, Opaque):
        alike = [x for x in tree.of if x.chunks is not None and x.shape == tree.shape]
        return known.get(alike[0].name) if tree.keeps_axes and alike else None
    return _of_one(tree, known[tree.inner[0].name])


def _of_one(tree: Tree, axes: Axes) -> Axes | None:
    """Return the axes of what is made of one array."""
    match tree:
        case Transpose():
            return tuple(axes[k] for k in tree.order)
        case Slice():
            pairs = zip(axes, tree.cuts, strict=True)
            shown = [axis and axis.cut(cut.start, cut.step) for axis, cut in pairs if cut.kept]
            for k in tree.new:
                shown.insert(k, None)
            return tuple(shown)
        case Reshape():
            return _reshaped(axes, tree.of.shape, tree.shape)
        case Bin():
            return tuple(axis and axis.binned(n) for axis, n in zip(axes, tree.by, strict=True))
        case Combine():
            gone = {axis % len(axes) for axis in tree.axes}
            shown = [None if k in gone else axis for k, axis in enumerate(axes)]
            return tuple(x for k, x in enumerate(shown) if tree.keepdims or k not in gone)
        case _:
            return None


def _by_labels(
    tree: Tree,
    output: Sequence[Label],
    inner: Sequence[tuple[Tree, Sequence[Label]]],
    gone: set[Label],
    known: Mapping[str, Axes],
) -> Axes | None:
    """Follow the labels of axes; of those that are gone, nothing is left."""
    if len(output) != len(tree.shape):
        return None
    found: list[Axis | None] = []
    for label, length in zip(output, tree.shape, strict=True):
        axes = [
            known[one.name][labels.index(label)]
            for one, labels in inner
            if one.name in known and label in labels and one.shape[labels.index(label)] == length
        ]
        found.append(None if label in gone else _same(axes))
    return tuple(found)


def _same(axes: Sequence[Axis | None]) -> Axis | None:
    """Return what several say of an axis: a scale, unless they differ; a name, unless they do."""
    known = [axis for axis in axes if axis is not None]
    if len({axis.name for axis in known}) != 1:
        return None
    bare = Axis(known[0].name)
    scaled = {axis for axis in known if axis != bare}
    return scaled.pop() if len(scaled) == 1 else bare


def _joined(tree: Join, axes: Sequence[Axes]) -> Axes | None:
    """Join the axes of parts; the one along which they follow one another has to go on."""
    if tree.stacked:
        alike = all(one == axes[0] for one in axes)
        return (*axes[0][: tree.axis], None, *axes[0][tree.axis :]) if alike else None
    ends: list[Axis | None] = []
    position = 0
    for part, one in zip(tree.of, axes, strict=True):
        axis = one[tree.axis]
        ends.append(axis and axis.cut(-position, 1))
        position += part.shape[tree.axis]
    found = [_same([one[k] for one in axes]) for k in range(len(axes[0]))]
    found[tree.axis] = _going_on(ends)
    return tuple(found)


def _going_on(axes: Sequence[Axis | None]) -> Axis | None:
    """Return the axis whose positions go on from part to part; without a scale where they jump."""
    first, *others = axes
    if first is None or any(one is None or one.name != first.name for one in others):
        return None
    near = abs(first.scale) / 1e6
    even = all(
        replace(one, offset=first.offset) == first and abs(one.offset - first.offset) <= near
        for one in others
        if one is not None
    )
    return first if even else Axis(first.name)


def _reshaped(axes: Axes, shape: tuple[int, ...], wanted: tuple[int, ...]) -> Axes | None:
    """Show axes in another shape: of those that fall apart, the outermost part counts bins."""
    whole = Shape.of(len(axes))
    view = whole.reshaped(whole.sizes(shape), wanted)
    if view is None:
        return None
    found: list[Axis | None] = []
    for parts, length in zip(view.shown, wanted, strict=True):
        part = parts[0] if len(parts) == 1 else Part(0, 0)
        axis = axes[part.axis]
        outermost = part.step * length == shape[part.axis]
        found.append(axis.binned(part.step) if axis is not None and outermost else None)
    return tuple(found)
