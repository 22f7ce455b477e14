"""Which axes of files are left in what is computed of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.dask_names import Blockwise, MaterializedLayer, Task, reductions
from dask_tiled.array.joins import as_now
from dask_tiled.array.known import cuts_of, layers_in_order, taken
from dask_tiled.array.recognition import coarsening_of, contracted, is_elementwise, reshaping_of
from dask_tiled.array.tasks import DESCRIPTION, Grid, run_job
from dask_tiled.array.views import Part, View
from dask_tiled.errors import warn_once
from dask_tiled.model.description import Axis, Description
from dask_tiled.tiling.bases import Chunks

Axes = tuple[Axis | None, ...]

_ELEMENTWISE = [np.real, np.imag, np.angle, np.isclose, reductions._sqrt]  # noqa: SLF001
_UNMOVED = "rechunk-", "setitem-", "arg-reduce-"
"""What names of layers begin with that leave all axes where they are."""


class Shown(NamedTuple):
    """What an array shows of files."""

    axes: Axes
    """None for those that are no axes of files, or not known to be."""
    of: tuple[Description, ...]
    """What is read for it, the same files once."""


class _Layer(NamedTuple):
    axes: Axes
    chunks: Chunks

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(sum, self.chunks))


def shown_of(arr: da.Array) -> Shown:
    """Tell which axes of files an array has, and which files it reads.

    Sums along axes, slices, expressions, products and what is binned are known. Of what functions
    of users make of chunks, no axes are.
    """
    if isinstance(arr.dask, HighLevelGraph):
        try:
            return _shown_by(arr.dask, arr)
        except Exception as error:  # noqa: BLE001 - of any kind, where dask has changed
            dask_is = f"dask {version('dask')}"
            warn_once(f"the axes of a graph of {dask_is} are not known: {error!r}", RuntimeWarning)
    return Shown((None,) * arr.ndim, ())


def _shown_by(graph: HighLevelGraph, arr: da.Array) -> Shown:
    found: dict[str, _Layer] = {}
    read: dict[Any, Description] = {}
    for name in layers_in_order(graph.dependencies):
        layer: Any = graph.layers[name]
        noted = layer.collection_annotations or {}
        desc = noted.get(DESCRIPTION)
        if desc is not None:
            read.setdefault(desc.files, desc)
        chunks = noted.get("chunks")
        if chunks is None:
            continue
        inner = {key: found[key] for key in graph.dependencies[name] if key in found}
        axes = _axes_of(name, layer, chunks, inner) if desc is None else desc.axes
        if axes is not None and len(axes) == len(chunks):
            found[name] = _Layer(axes, chunks)
    last = found.get(arr.name)
    return Shown((None,) * arr.ndim if last is None else last.axes, tuple(read.values()))


def _axes_of(name: str, layer: Any, chunks: Chunks, inner: Mapping[str, _Layer]) -> Axes | None:
    if isinstance(layer, Blockwise) and isinstance(layer.task, Task):
        return _by_labels(layer, chunks, inner)
    if not isinstance(layer, MaterializedLayer) or not layer.mapping or not inner:
        return None
    first, *others = inner.values()
    if name.startswith("stack-"):
        return _stacked(layer.mapping, first, others)
    if name.startswith("concatenate-"):
        return _joined(name, layer.mapping, chunks, inner)
    if name.startswith(_UNMOVED):
        return first.axes
    return None if others else _by_tasks(layer.mapping, chunks, first)


def _stacked(tasks: Mapping[Any, Any], first: _Layer, others: list[_Layer]) -> Axes | None:
    """Put a new axis among those that all have."""
    *_, index = next(iter(tasks.values()))  # an older form of tasks: what is called, and with what
    if any(one.axes != first.axes for one in others):
        return None
    place = index.index(None)
    return (*first.axes[:place], None, *first.axes[place:])


def _joined(
    name: str, tasks: Mapping[Any, Any], chunks: Chunks, inner: Mapping[str, _Layer]
) -> Axes | None:
    """Join the axes of parts; the one along which they follow one another has to go on."""
    shape, ndim = tuple(map(sum, chunks)), len(chunks)
    differ = {a for one in inner.values() for a in range(ndim) if one.shape[a] != shape[a]}
    if len(differ) != 1:
        return None
    (along,) = differ
    parts: list[_Layer] = []
    ends: list[Axis | None] = []
    block = position = 0
    while block < len(chunks[along]):
        key = (name, *(block * (a == along) for a in range(ndim)))
        source, _ = taken(as_now(key, tasks[key]))
        if not source or source[0] not in inner:
            return None
        parts.append(inner[source[0]])
        axis = parts[-1].axes[along]
        ends.append(axis and axis.cut(-position, 1))
        block += len(parts[-1].chunks[along])
        position += parts[-1].shape[along]
    axes = [_same([part.axes[a] for part in parts]) for a in range(ndim)]
    axes[along] = _going_on(ends)
    return tuple(axes)


def _going_on(axes: list[Axis | None]) -> Axis | None:
    """Give the axis whose positions go on from part to part; without a scale where they jump."""
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


def _by_labels(layer: Any, chunks: Chunks, inner: Mapping[str, _Layer]) -> Axes | None:
    """Follow the labels of axes, where the function of chunks is known to leave them."""
    out = tuple(layer.output_indices)
    operands = [(inner.get(name), index) for name, index in layer.indices if index is not None]
    kept = _kept(layer, out, operands)
    found: list[Axis | None] = []
    for label, lengths in zip(out, chunks, strict=True):
        axes = [
            one.axes[index.index(label)]
            for one, index in operands
            if one is not None and label in index and one.shape[index.index(label)] == sum(lengths)
        ]
        found.append(_same(axes) if label in kept else None)
    return tuple(found)


def _kept(layer: Any, out: tuple[Any, ...], operands: list[Any]) -> set[Any]:
    """List the labels along which a pixel is made of pixels of the same place."""
    function, kwargs = layer.task.func, dict(layer.task.kwargs)
    if is_elementwise(function, kwargs) or function in _ELEMENTWISE:
        return {*out}
    if function in (np.transpose, np.swapaxes):
        return {*out}
    if function is run_job:
        (_, index), (job, _), *_ = layer.indices
        return {*index[: job.nav_ndim]}
    given = {**getattr(function, "keywords", {}), **kwargs}
    if given.get("keepdims") and isinstance(given.get("axis"), tuple):  # the start of a reduction
        return {label for axis, label in enumerate(out) if axis not in given["axis"]}
    if len(operands) == 2:
        gone = contracted(function, kwargs, operands[0][1], out)
        return {*out} - {*gone} if gone is not None else set()
    return set()


def _same(axes: list[Axis | None]) -> Axis | None:
    """Give what several say of an axis: a scale, unless there are two; a name, unless there are."""
    known = [axis for axis in axes if axis is not None]
    if len({axis.name for axis in known}) != 1:
        return None
    bare = Axis(known[0].name)
    scaled = {axis for axis in known if axis != bare}
    return scaled.pop() if len(scaled) == 1 else bare


def _by_tasks(tasks: Mapping[Any, Any], chunks: Chunks, one: _Layer) -> Axes | None:
    """Read the tasks of a layer that is made of one other."""
    call = coarsening_of(tasks)
    if call is not None:
        return tuple(axis and axis.binned(call.axes.get(k, 1)) for k, axis in enumerate(one.axes))
    if all(map(reshaping_of, tasks.values())):
        return _reshaped(one, tuple(map(sum, chunks)))
    reduced = {_reduced(task) for task in tasks.values()}
    if len(reduced) > 1:
        return None
    for axes, keepdims in filter(None, reduced):
        gone = {axis % len(one.axes) for axis in axes}
        shown = [axis if k not in gone else None for k, axis in enumerate(one.axes)]
        return tuple(axis for k, axis in enumerate(shown) if keepdims or k not in gone)
    return _cut(tasks, one)


def _reduced(task: Any) -> tuple[tuple[int, ...], bool] | None:
    """Read a task of the end of a reduction: along which axes, and whether these stay."""
    function: Any = task[0] if isinstance(task, tuple) else getattr(task, "func", None)
    functions = [function.first, *function.funcs] if hasattr(function, "funcs") else [function]
    for one in functions:
        given = one.keywords if isinstance(one, partial) else {}
        if "keepdims" in given and isinstance(given.get("axis"), tuple):
            return given["axis"], bool(given["keepdims"])
    return None


def _reshaped(one: _Layer, shape: tuple[int, ...]) -> Axes | None:
    """Show axes in another shape: of those that fall apart, the outermost part counts bins."""
    whole = View.of(len(one.axes))
    view = whole.reshaped(whole.sizes(one.shape), shape)
    if view is None:
        return None
    found: list[Axis | None] = []
    for parts, length in zip(view.shown, shape, strict=True):
        part = parts[0] if len(parts) == 1 else Part(0, 0)
        axis = one.axes[part.axis]
        outermost = part.step * length == one.shape[part.axis]
        found.append(axis.binned(part.step) if axis is not None and outermost else None)
    return tuple(found)


def _cut(tasks: Mapping[Any, Any], one: _Layer) -> Axes | None:
    """Cut axes as basic indices do."""
    key, task = next(iter(tasks.items()))
    index = task.args[1] if isinstance(task, Task) and len(task.args) == 2 else ()
    new = [k for k, x in enumerate(index) if x is None] if isinstance(index, tuple) else []
    cuts = cuts_of(tasks, key, Grid.of(one.chunks), new)
    if cuts is None:
        return None
    pairs = zip(one.axes, cuts, strict=True)
    shown = [axis and axis.cut(cut.start, cut.step) for axis, cut in pairs if cut.kept]
    for before, k in enumerate(new):
        shown.insert(k - sum(not cut.kept for cut in cuts[: k - before]), None)
    return tuple(shown)
