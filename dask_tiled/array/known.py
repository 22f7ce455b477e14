"""What the layers of a graph compute of opened arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, count, product
from typing import Any, NamedTuple

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.array.dask_names import (
    Alias,
    Blockwise,
    DataNode,
    MaterializedLayer,
    Task,
    TaskRef,
    _fuse_annotations,
    blockwise_token,
    chunk,
    routines,
)
from dask_tiled.array.recipes import NODES, Apply, Beside, Tree, cut
from dask_tiled.array.recognition import (
    Contraction,
    Step,
    added,
    binning_of,
    coarsening_of,
    contracted,
    histogram_of,
    is_elementwise,
    is_of_numpy,
    places_of,
    reduction_of,
    reshaping_of,
    swapped,
    transposed,
)
from dask_tiled.array.tasks import ChunkJob, Grid, pixels_of, run_job
from dask_tiled.array.views import View
from dask_tiled.engine.expressions import in_order
from dask_tiled.engine.tile_jobs import MapTiles
from dask_tiled.engine.vectors import PLACES, Reduction
from dask_tiled.model.indexing import Cut, cut_chunks
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks

Place = tuple[Any, ...]
"""The name of a layer, and the position of a chunk in it."""

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
        return self.step is not None and getattr(self.step.done, "name", None) in PLACES

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


def reads_any(graph: HighLevelGraph) -> bool:
    """Tell whether opened arrays are read at all."""
    layers = graph.layers.values()
    return any(isinstance(x, Blockwise) and _function(x) is pixels_of for x in layers)


def known_layers(graph: HighLevelGraph) -> dict[str, Known]:
    """Find the layers that compute something of opened arrays, from the sources on."""
    known: dict[str, Known] = {}
    layers: Mapping[Any, Any] = graph.layers
    plain: set[str] = set()
    for name in layers_in_order(graph.dependencies):
        layer = layers[name]
        if graph.dependencies[name] <= plain and _makes_arrays(layer):
            plain.add(name)
        found = None
        if isinstance(layer, Blockwise) and isinstance(layer.task, Task):
            found = _source(layers, layer) or _job(layer, known) or _moved(layer, known)
            found = found or _expression(layer, known, plain)
        elif isinstance(layer, MaterializedLayer) and layer.mapping:
            found = _part(layer, known) or _reshaped(layer, known) or _coarse(layer, known)
            found = found or _placed(layer, known)
            counted = _histogram(layer, known)
            if counted is not None and name + COUNTED not in layers:
                known[name + COUNTED] = counted
        if found is not None:
            known[name] = found
    return known


def _makes_arrays(layer: Any) -> bool:
    """Tell whether all that a layer adds are arrays of numpy: no masked ones, no sparse ones."""
    if isinstance(layer, Blockwise):
        values = [value for value, index in layer.indices if index is None]
        return is_of_numpy(_function(layer)) and not any(map(_is_other_array, values))
    functions: dict[int, Any] = {}
    for task in getattr(layer, "mapping", {}).values():
        value = task.value if isinstance(task, DataNode) else task
        function = value[0] if isinstance(value, tuple) and value else getattr(value, "func", None)
        if callable(function):
            functions[id(function)] = function
        elif not isinstance(value, np.ndarray | Alias) or _is_other_array(value):
            return False
    return all(map(is_of_numpy, functions.values()))


def _is_other_array(value: Any) -> bool:
    """Tell whether pixels of a value may be other arrays, as those of masked variables of files."""
    is_array = hasattr(value, "__getitem__") and hasattr(value, "dtype")
    return is_array and not (type(value) is np.ndarray or isinstance(value, np.generic))


def _function(layer: Any) -> Any:
    """Give what a layer calls on chunks."""
    return getattr(layer.task, "func", None)


def layers_in_order(dependencies: Mapping[str, Any]) -> Iterator[str]:
    """Give the names of all layers, each after those that it depends on."""
    return in_order(dependencies, lambda name: dependencies.get(name, ()), str)


def _source(layers: Mapping[Any, Any], layer: Any) -> Known | None:
    """Know a layer that reads an opened array."""
    if _function(layer) is not pixels_of:
        return None
    source: Any
    grid: Any
    (source, _), (grid, _), *_ = layer.indices
    if isinstance(source, TaskRef):
        source = layers[source.key][source.key].value
    block_ids: Any
    (block_ids,) = layer.io_deps.values()
    labels = tuple(layer.output_indices)
    view, annotations = View.of(len(labels)), layer.annotations or {}
    return Known(source, block_ids.chunks, grid, view, labels, labels, annotations)


def _job(layer: Any, known: Mapping[str, Known]) -> Known | None:
    """Know a layer that does a job on a known one."""
    if layer.task.func is not run_job:
        return None
    (name, index), (job, _), *_ = layer.indices
    one = known.get(name)
    if one is None or one.step is not None or not one.is_as_read:
        return None
    step = Step(job, partial(run_job, job=job))
    output = tuple(layer.output_indices)
    return _annotated(one, layer)._replace(step=step, labels=tuple(index), output=output)


def _fused(*annotations: Any) -> dict[str, Any]:
    fused: dict[str, Any] = _fuse_annotations(*(one or {} for one in annotations))
    return fused


def _annotated(one: Known, layer: Any) -> Known:
    return one._replace(annotations=_fused(one.annotations, layer.annotations))


def _moved(layer: Any, known: Mapping[str, Known]) -> Known | None:
    """Know a layer that moves the axes of a known one."""
    (name, index), *more = layer.indices
    one = known.get(name) if index is not None else None
    if one is None or one.step is not None or more or layer.new_axes:
        return None
    if [*layer.task.args] != [TaskRef(blockwise_token(0))]:
        return None
    given = layer.task.kwargs
    order = list(range(len(index)))
    if layer.task.func is np.transpose and given.keys() == {"axes"}:
        order = list(given["axes"])
    elif layer.task.func is np.swapaxes and given.keys() == {"axis1", "axis2"}:
        a, b = given.values()
        order[a], order[b] = order[b], order[a]
    else:
        return None
    output = tuple(layer.output_indices)
    if sorted(order) != list(range(len(index))) or output != tuple(index[k] for k in order):
        return None
    view = one.view._replace(shown=tuple(one.view.shown[k] for k in order))
    return _annotated(one, layer).shown(view, output)


def _expression(layer: Any, known: Mapping[str, Known], plain: set[str]) -> Known | None:
    """Know a layer that computes something of known ones, and of arrays of numpy beside."""
    found = _operands(layer, known, plain)
    if found is None:
        return None
    (one, operands), function, kwargs = found, layer.task.func, dict(layer.task.kwargs)
    output = tuple(layer.output_indices)
    one = one._replace(output=output)
    beside = [x for x in operands if isinstance(x, Beside)]
    if is_elementwise(function, kwargs) and not any(x.has_further for x in beside):
        tree = Apply(function, kwargs, operands)
        return one._replace(tree=tree) if one.labels == output else None
    if len(operands) == 1:
        step = reduction_of(function, kwargs) if {*one.labels} == {*output} else None
        return one._replace(step=step) if step else None
    return _contraction(layer, one, operands) if len(operands) == 2 and len(beside) == 1 else None


def _contraction(layer: Any, one: Known, operands: tuple[Any, ...]) -> Known | None:
    """Know a layer that adds up products with an array beside.

    Of whole frames that is a matrix product; other products are made, and then added up.
    """
    function, kwargs, out = layer.task.func, dict(layer.task.kwargs), one.output
    is_second = operands[1] is one.tree
    weights = operands[0 if is_second else 1]
    index: Any = next(index for name, index in layer.indices if name == weights.name)
    labels = one.labels + tuple(x for x in index if x not in one.labels)
    found = contracted(function, kwargs, index if is_second else one.labels, out)
    unique = len({*labels}) == len(labels) == len(out) and len({*index}) == len(index)
    if found is None or not unique or {*labels} != {*out}:
        return None
    gone = tuple(axis for axis, label in enumerate(one.labels) if label in found)
    order = tuple(map(labels.index, out))
    finish = partial(transposed, order=order)
    parts = [part for axis in gone for part in one.view.shown[axis]]
    nav_ndim = one.source.layout.nav_ndim
    whole = {*parts} == {part for part in one.view.parts if part.axis >= nav_ndim}
    if parts and whole and {*found} <= {*index}:
        plain = partial(function, **kwargs)
        plain = partial(swapped, function=plain) if is_second else plain
        return one._replace(step=Step(Contraction(weights), plain, finish))
    if not gone or weights.has_further:
        return None
    step = Step(Reduction("sum", gone, None), partial(added, gone=gone, order=order), finish)
    return one._replace(tree=Apply(operator.mul, {}, operands), step=step)


def _operands(
    layer: Any, known: Mapping[str, Known], plain: set[str]
) -> tuple[Known, tuple[Any, ...]] | None:
    """List what a layer calls its function on: known ones of the same axes and chunks, and others.

    The first of the known ones gets the annotations of all.
    """
    numbers = {TaskRef(blockwise_token(k)): k for k in range(len(layer.indices))}
    if layer.new_axes or not all(isinstance(x, TaskRef) and x in numbers for x in layer.task.args):
        return None
    arguments = [layer.indices[numbers[x]] for x in layer.task.args]
    inner = [known.get(value) if index is not None else None for value, index in arguments]
    inner = [x if x is not None and x.step is None else None for x in inner]
    which = next((k for k, x in enumerate(inner) if x is not None), None)
    if which is None:
        return None
    first: Any = inner[which]
    first = first._replace(labels=tuple(arguments[which][1]))
    operands: list[Any] = []
    for one, (value, index) in zip(inner, arguments, strict=True):
        same = first.labels, first.chunks, first.view
        if one is not None and (tuple(index), one.chunks, one.view) == same:
            operands.append(one.tree)
        elif (
            one is not None or _is_other_array(value) or (index is not None and value not in plain)
        ):
            return None
        else:
            operands.append(value if index is None else _beside(layer, value, index, first))
    if any(isinstance(x, TaskRef) for x in operands):
        return None
    annotations = _fused(layer.annotations, *(x.annotations for x in inner if x is not None))
    return first._replace(annotations=annotations), tuple(operands)


def _beside(layer: Any, name: str, index: Any, first: Known) -> Beside | TaskRef:
    """Show an array that is repeated along axes that it has not, unless it may be longer."""
    axes = [first.labels.index(x) if x in first.labels else None for x in index]
    blocks = tuple(layer.numblocks[name])
    unknown = any(
        n > 1 if axis is None else first.shape[axis] == 1 or not first.view.shown[axis]
        for axis, n in zip(axes, blocks, strict=True)
    )
    if unknown or name in layer.io_deps or len({*index}) < len(index):
        return TaskRef(name)
    spans = tuple(() if axis is None else first.view.spans(axis) for axis in axes)
    return Beside(name, spans, blocks, (None,) * len(axes))


def _part(layer: Any, known: Mapping[Any, Known]) -> Known | None:
    """Know a layer that cuts a known one: what it cuts of each axis, the sources give at once."""
    key, task = next(iter(layer.mapping.items()))
    block, index = taken(task)
    whole = known.get(block[0]) if block else None
    if whole is None or whole.step is not None or not isinstance(key, tuple):
        return None
    new = [k for k, x in enumerate(index) if x is None]
    cuts = cuts_of(layer.mapping, key, Grid.of(whole.shown_chunks), new)
    if cuts is None:
        return None
    found = _cut(_annotated(whole, layer), cuts)
    if found is None:
        return None
    shown = list(found.view.shown)
    for k in new:
        # An axis before it that is gone is none of what the task gives.
        shown.insert(k - sum(isinstance(x, (int, np.integer)) for x in index[:k]), ())
    found = found.shown(found.view._replace(shown=tuple(shown)), tuple(range(len(shown))))
    return found if found and _has_as_many(found, layer) else None


def _has_as_many(one: Known, layer: Any) -> bool:
    return math.prod(map(len, one.shown_chunks)) == len(layer.mapping)


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


def _reshaped(layer: Any, known: Mapping[Any, Known]) -> Known | None:
    """Match a layer of chunks in other shapes: task by task, in C order, as the chunks of one."""
    shown = [reshaping_of(task) for task in layer.mapping.values()]
    name: Any = shown[0][0][0] if shown[0] else None
    one = known.get(name)
    if one is None or one.step is not None:
        return None
    blocks = product(*(range(len(axis)) for axis in one.shown_chunks))
    if [x and x[0] for x in shown] != [(name, *block) for block in blocks]:
        return None
    shapes = {key[1:]: x[1] for key, x in zip(layer.mapping, shown, strict=True) if x}
    ends = dict[tuple[int, int], int]()  # lengths of the chunks along each axis
    for place, shape in shapes.items():
        ends |= {(axis, k): n for axis, (k, n) in enumerate(zip(place, shape, strict=True))}
    ndim = len(next(iter(shapes)))
    counts = [1 + max(k for axis, k in ends if axis == a) for a in range(ndim)]
    chunks = tuple(tuple(ends[a, k] for k in range(n)) for a, n in enumerate(counts))
    places = product(*map(range, counts))
    if [*shapes.items()] != [*zip(places, product(*chunks), strict=True)]:
        return None
    view = one.view.reshaped(one.view.sizes(one.grid.shape), [sum(axis) for axis in chunks])
    found = _annotated(one, layer).shown(view, tuple(range(ndim)))
    return found if found and found.shown_chunks == chunks else None


def _coarse(layer: Any, known: Mapping[Any, Known]) -> Known | None:
    """Match a layer that makes one pixel of several neighbours of a known one."""
    call = coarsening_of(layer.mapping)
    one = known.get(call.of) if call else None
    if call is None or one is None or one.step is not None:
        return None
    ndim = len(one.view.shown)
    by = [call.axes.get(axis, 1) for axis in range(ndim)]
    step = binning_of(call.reduction, call.kwargs, ndim)
    if call.trim_excess:
        one = _cut(one, [Cut(0, 1, n - n % k) for n, k in zip(one.shape, by, strict=True)])
    if one is None or step is None:
        return None
    sizes = one.view.sizes(one.grid.shape)
    pairs = [n for length, k in zip(one.shape, by, strict=True) for n in (length // k, k)]
    view, labels = one.view.reshaped(sizes, pairs), tuple(k // 2 for k in range(2 * ndim))
    found = _annotated(one, layer).shown(view, labels)
    if found is None:
        return None
    # Chunks of which nothing is left have tasks, too, behind the others.
    name = next(iter(layer.mapping))[0]
    blocks = product(*(range(len(axis)) for axis in found.shown_chunks[::2]))
    if any((name, *block) not in layer.mapping for block in blocks):
        return None
    return found._replace(step=step, output=labels[::2])


def _placed(layer: Any, known: Mapping[Any, Known]) -> Known | None:
    """Match a layer that finds the place of a pixel in each chunk of a known one."""
    name, task = next(iter(layer.mapping.items()))
    step = places_of(task)
    one = known.get(task[1][0]) if step else None
    if step is None or one is None or one.step is not None:
        return None
    function, (of, *_), axes, _ = task
    ends = {part.axis for axis in axes for part in one.view.shown[axis]}
    found = _annotated(one, layer).shown(one.view, tuple(range(len(one.view.shown))))
    if found is None or ends & one.view.flipped:
        return None
    shape, chunks = found.shape, found.shown_chunks
    flat = len(axes) == len(shape)  # places count all pixels, or those along one axis
    starts = product(*(accumulate(axis[:-1], initial=0) for axis in chunks))
    expected = {
        (name[0], *block): (function, (of, *block), axes, (at, shape) if flat else at[axes[0]])
        for block, at in zip(product(*(range(len(axis)) for axis in chunks)), starts, strict=True)
    }
    return found._replace(step=step) if layer.mapping == expected else None


def _histogram(layer: Any, known: Mapping[Any, Known]) -> Known | None:
    """Match a layer of histograms of all chunks of a known one, in the same given bins."""
    name, task = next(iter(layer.mapping.items()))
    if getattr(task, "func", None) is not routines._block_hist:  # noqa: SLF001 - what dask calls
        return None
    of, bins = task.args[0].key[0], task.args[1]
    one = known.get(of)
    if one is None or one.step is not None:
        return None
    ndim = len(one.view.shown)
    found = _annotated(one, layer).shown(one.view, tuple(range(ndim)))
    if found is None or not _has_as_many(found, layer):
        return None
    blocks = product(*(range(len(axis)) for axis in found.shown_chunks))
    for number, block in enumerate(blocks):
        task = layer.mapping.get((name[0], number, 0))
        if not isinstance(task, Task) or task.func is not routines._block_hist:  # noqa: SLF001
            return None
        alike = task.args[:1] == (TaskRef((of, *block)),) and task.args[1] is bins
        if not alike or len(task.args) > 2 or len(task.dependencies) > 1 or task.kwargs:
            return None
    return found._replace(step=histogram_of(bins, ndim))


def taken(task: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Read which chunk a task takes, and what of it; nothing where it does something else."""
    if isinstance(task, Alias) and isinstance(task.target, tuple):
        return task.target, (slice(None),) * (len(task.target) - 1)
    if not isinstance(task, Task) or task.func not in (operator.getitem, chunk.getitem):
        return (), ()
    of, index = task.args[0], task.args[1]
    if not isinstance(of, TaskRef) or not isinstance(of.key, tuple) or not isinstance(index, tuple):
        return (), ()
    return of.key, index


def cuts_of(
    tasks: Mapping[Any, Any], first: tuple[Any, ...], grid: Grid, new: Sequence[int] = ()
) -> list[Cut] | None:
    """Read what dask's tasks of basic indices take of each axis; None for others.

    Those of the numbers ``new`` are no axes: they make one.
    """
    name = first[0]
    origin = (name, *(0 for _ in first[1:]))
    block, index = taken(tasks.get(origin))
    if len(index) != len(grid.axes) + len(new) or not _is_product(tasks, origin, block, index):
        return None
    cuts, kept = list[Cut](), 0
    for one in index:
        axis = len(cuts)
        found: Cut | None = None
        if one is None:
            kept += 1
            continue
        if isinstance(one, slice):
            kept += 1
            found = _cut_along(tasks, origin, kept, axis, grid)
        elif isinstance(one, (int, np.integer)):
            low, high = grid.axes[axis][block[1 + axis]]
            if low - high <= one < high - low:  # others are an error, as in numpy
                found = Cut(int(low + one + (high - low) * (one < 0)), 1, 1, kept=False)
        if found is None:
            return None
        cuts.append(found)
    return cuts if kept == len(first) - 1 else None


def _is_product(
    tasks: Mapping[Any, Any], origin: Place, block: Place, index: tuple[Any, ...]
) -> bool:
    """Return whether the tasks of a row all take the same part of an axis."""
    shown = [k for k, x in enumerate(index) if x is None or isinstance(x, slice)]
    number = [k + 1 - sum(x is None for x in index[:k]) for k in shown]  # the axis of the block
    rows = []
    for axis, (k, at) in enumerate(zip(shown, number, strict=True), 1):
        row: list[tuple[Any, Any]] = []
        while (key := (*origin[:axis], len(row), *origin[axis + 1 :])) in tasks:
            of, entries = taken(tasks[key])
            if len(of) != len(block) or len(entries) != len(index):
                return False
            row.append((None if index[k] is None else of[at], entries[k]))
        rows.append(row)
    if math.prod(map(len, rows)) != len(tasks):
        return False
    of_one, cut_one = list(block), list(index)
    for place in product(*(range(len(row)) for row in rows)):
        for k, at, row, one in zip(shown, number, rows, place, strict=True):
            of, cut_one[k] = row[one]
            if of is not None:
                of_one[at] = of
        if taken(tasks.get((origin[0], *place))) != (tuple(of_one), tuple(cut_one)):
            return False
    return True


def _cut_along(
    tasks: Mapping[Any, Any], origin: tuple[Any, ...], kept: int, axis: int, grid: Grid
) -> Cut | None:
    """Put together what slices take of the chunks along an axis."""
    positions: list[range] = []
    for number in count():
        task = tasks.get((*origin[:kept], number, *origin[kept + 1 :]))
        if task is None:
            break
        block, index = taken(task)
        index = tuple(x for x in index if x is not None)
        if len(index) != len(grid.axes):
            return None
        low, high = grid.axes[axis][block[1 + axis]]
        if not isinstance(index[axis], slice):
            return None
        positions.append(range(low, high)[index[axis]])
    start, length = positions[0][0] if positions[0] else -1, sum(map(len, positions))
    step = positions[0].step
    one_chunk = grid.axes[axis][0] == (0, grid.shape[axis])
    if not all(positions) or (step < 1 and not one_chunk):
        return None
    if len(positions) > 1 and len(positions[0]) == 1:
        step = positions[1][0] - start
    expected = range(start, start + step * length, step)
    done = 0
    for some in positions:
        if some != expected[done : done + len(some)]:
            return None
        done += len(some)
    return Cut(start, step if length > 1 else 1, length)
