"""Interpretation of graph layers as trees of computations on opened arrays.

A layer treats all its chunks in the same way; otherwise it is opaque.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, product
from operator import itemgetter
from typing import Any

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.engine.expressions import astype, is_elementwise
from dask_tiled.graphs.functions import (
    ELEMENTWISE_OF_DASK,
    coarsening_of,
    contracted_labels,
    places_of,
    reduction_of,
    reshaping_of,
)
from dask_tiled.graphs.layers import DESCRIPTION, function_of
from dask_tiled.graphs.limits import MOST_PLACES
from dask_tiled.graphs.moves import is_broadcast, leaves_places, places_taken
from dask_tiled.graphs.names import (
    Blockwise,
    Layer,
    List,
    MaterializedLayer,
    Task,
    TaskRef,
    _concatenate2,
    blockwise_token,
    chunk,
    routines,
)
from dask_tiled.graphs.slices import as_now, cuts_of, taken
from dask_tiled.model.indexing import Cut, cut_chunks
from dask_tiled.plans.plan import layers_in_order
from dask_tiled.plans.tasks import Function, Key, Kwargs, Label, Labelling, pixels_of, run_job
from dask_tiled.plans.tree import (
    Argument,
    Bin,
    Broadcast,
    Call,
    Combine,
    Contract,
    Histogram,
    Join,
    Labelled,
    MappedChunks,
    Opaque,
    Read,
    Reduce,
    Reshape,
    Slice,
    Take,
    TileFunction,
    Transpose,
    Tree,
)
from dask_tiled.tiling.bases import Chunks, Grid

STACKS, CONCATENATES = "stack-", "concatenate-"
"""Name prefixes of dask's joining layers."""


def trees_of(graph: HighLevelGraph) -> dict[str, Tree]:
    """Return the tree of each layer of a graph, in topological order."""
    trees: dict[str, Tree] = {}
    for name in layers_in_order(graph.dependencies):
        layer: Layer = graph.layers[name]
        inner = {x: trees[x] for x in sorted(graph.dependencies[name])}
        tree: Tree | None = None
        if isinstance(layer, Blockwise) and isinstance(layer.task, Task):
            tree = _read(graph.layers, layer) or _of_chunks(layer, inner) or _mapped(layer, inner)
        elif isinstance(layer, MaterializedLayer) and layer.mapping:
            for look in (_slice, _reshape, _bin, _places, _histogram, _join):
                tree = tree or look(layer, inner)
            tree = tree or _combine(layer, inner, graph.layers) or _take(name, layer, inner)
        trees[name] = tree or _opaque(name, layer, inner)
    return trees


def _opaque(name: str, layer: Layer, inner: Mapping[str, Tree]) -> Opaque:
    of = _of(layer, name)
    listed = isinstance(layer, MaterializedLayer) and of["chunks"] is not None
    alike = bool(inner) and listed and leaves_places(name, layer.mapping)
    return Opaque(**of, of=tuple(inner.values()), keeps_axes=alike)


def _of(layer: Layer, name: str, chunks: Chunks | None = None) -> Kwargs:
    """Return the common fields of a node; chunks default to those that dask annotated."""
    noted = layer.collection_annotations or {}
    chunks = noted.get("chunks") if chunks is None else chunks
    if chunks is not None and any(math.isnan(sum(axis)) for axis in chunks):
        chunks = None
    shown = {"chunks": chunks, "dtype": noted.get("dtype")}
    return {"name": name, **shown, "annotations": layer.annotations or {}}


def _read(layers: Mapping[str, Layer], layer: Blockwise) -> Read | None:
    """Match a layer that reads the pixels of an opened array."""
    if function_of(layer) is not pixels_of:
        return None
    (source, _), (grid, _), *_ = layer.indices
    if isinstance(source, TaskRef):
        source = layers[source.key][source.key].value
    (block_ids,) = layer.io_deps.values()
    description = (layer.collection_annotations or {}).get(DESCRIPTION)
    of = _of(layer, layer.output, block_ids.chunks)
    if of["chunks"] is None:
        return None
    return Read(**of, source=source, grid=grid, description=description)


def _of_chunks(layer: Blockwise, inner: Mapping[str, Tree]) -> Tree | None:
    """Match a blockwise layer that calls one known function on chunks."""
    output = tuple(layer.output_indices)
    if isinstance(layer.task.func, Labelling):
        (labelled,), noted = inner.values(), layer.task.func
        of = _of(layer, layer.output, labelled.chunks)
        return Labelled(**of, of=labelled, axes=noted.axes, units=noted.units)
    if layer.task.func is run_job:
        (name, index), (job, _), *_ = layer.indices
        given: Kwargs = {"of": inner[name], "job": job, "labels": tuple(index), "output": output}
        return TileFunction(**_of(layer, layer.output), **given, new_axes=layer.new_axes)
    arguments = _arguments(layer, inner)
    function, kwargs = layer.task.func, dict(layer.task.kwargs)
    if function is chunk.astype and kwargs.keys() == {"astype_dtype"}:
        function = astype
    if not arguments:
        return None
    if len(arguments) == 1:
        moved = _transpose(layer, arguments[0], kwargs) or _reduce(layer, arguments[0], kwargs)
        if moved is not None:
            return moved
    given = {"function": function, "kwargs": kwargs, "arguments": arguments, "labels": output}
    given |= {"new_axes": layer.new_axes}
    on_tiles = is_elementwise(function, kwargs)
    if on_tiles or function in ELEMENTWISE_OF_DASK:
        of = _of(layer, layer.output, _chunks_of(output, arguments, layer))
        return Call(**of, **given, on_tiles=on_tiles)
    first = arguments[0].labels if len(arguments) == 2 else None
    gone = None if first is None else contracted_labels(function, kwargs, first, output)
    of = _of(layer, layer.output)
    return None if gone is None else Contract(**of, **given, gone=tuple(gone))


def _mapped(layer: Blockwise, inner: Mapping[str, Tree]) -> MappedChunks | None:
    """Match a blockwise layer that calls any other function on chunks."""
    arguments = tuple(
        Argument(value, None) if index is None else Argument(inner[value], tuple(index))
        for value, index in layer.indices
        if index is None or value in inner
    )
    if all(x.labels is None for x in arguments):
        return None
    given: Kwargs = {"function": layer.task.func, "kwargs": dict(layer.task.kwargs)}
    given = {**given, "arguments": arguments, "labels": tuple(layer.output_indices)}
    return MappedChunks(**_of(layer, layer.output), **given, new_axes=layer.new_axes)


def _reduce(layer: Blockwise, one: Argument, kwargs: Kwargs) -> Reduce | None:
    """Match the first step of a reduction."""
    function = partial(layer.task.func, **kwargs)
    axes, output = function.keywords.get("axis"), tuple(layer.output_indices)
    if not function.keywords.get("keepdims") or not isinstance(axes, tuple) or layer.new_axes:
        return None
    if one.labels is None or {*output} != {*one.labels} or len(output) != len(one.labels):
        return None
    step, chunks = reduction_of(layer.task.func, kwargs, one.value.dtype), None
    if one.value.chunks is not None:
        lengths = dict(zip(one.labels, one.value.chunks, strict=True))
        gone = {output[axis] for axis in axes}
        chunks = tuple((1,) * len(lengths[x]) if x in gone else lengths[x] for x in output)
    of = _of(layer, layer.output, chunks)
    given: Kwargs = {"of": one.value, "labels": one.labels, "output": output}
    return Reduce(**of, **given, function=function, axes=axes, step=step)


def _arguments(layer: Blockwise, inner: Mapping[str, Tree]) -> tuple[Argument, ...]:
    """Return the arguments of a layer's function; none if its tasks do more than call it."""
    numbers = {TaskRef(blockwise_token(k)): k for k in range(len(layer.indices))}
    if layer.io_deps or not all(isinstance(x, TaskRef) and x in numbers for x in layer.task.args):
        return ()
    arguments = list[Argument]()
    for value, index in (layer.indices[numbers[x]] for x in layer.task.args):
        if isinstance(value, TaskRef):  # a computed value that is no array
            return ()
        if index is None:
            arguments.append(Argument(value, None))
        else:
            arguments.append(Argument(inner[value], tuple(index), tuple(layer.numblocks[value])))
    return tuple(arguments) if any(x.labels is not None for x in arguments) else ()


def _chunks_of(
    output: Sequence[Label], arguments: Sequence[Argument], layer: Blockwise
) -> Chunks | None:
    """Return the chunks of an elementwise result; None if an argument has unknown chunks."""
    lengths: dict[Label, tuple[int, ...]] = {}
    for argument in arguments:
        if argument.labels is None:
            continue
        if argument.value.chunks is None or len(argument.value.chunks) != len(argument.labels):
            return None
        for label, axis in zip(argument.labels, argument.value.chunks, strict=True):
            if axis != (1,) or label not in lengths:
                lengths[label] = axis
    if layer.new_axes or not all(label in lengths for label in output):
        return None
    return tuple(lengths[label] for label in output)


def _transpose(layer: Blockwise, one: Argument, kwargs: Kwargs) -> Transpose | None:
    """Match a transpose."""
    if layer.new_axes or len(layer.indices) > 1 or one.labels is None:
        return None
    order = list(range(len(one.labels)))
    if layer.task.func is np.transpose and kwargs.keys() == {"axes"}:
        order = list(kwargs["axes"])
    elif layer.task.func is np.swapaxes and kwargs.keys() == {"axis1", "axis2"}:
        a, b = kwargs.values()
        order[a], order[b] = order[b], order[a]
    else:
        return None
    output, alike = tuple(layer.output_indices), sorted(order) == list(range(len(order)))
    if not alike or output != tuple(one.labels[k] for k in order):
        return None
    chunks = one.value.chunks and tuple(one.value.chunks[k] for k in order)
    return Transpose(**_of(layer, layer.output, chunks), of=one.value, order=tuple(order))


def _slice(layer: MaterializedLayer, inner: Mapping[str, Tree]) -> Slice | None:
    """Match a slice."""
    key, task = next(iter(layer.mapping.items()))
    block, index = taken(task)
    whole = inner.get(block[0]) if block else None
    if whole is None or whole.chunks is None or not isinstance(key, tuple):
        return None
    new = [k for k, x in enumerate(index) if x is None]
    cuts = cuts_of(layer.mapping, key, Grid.of(whole.chunks), new)
    if cuts is None:
        return None
    pairs = zip(whole.chunks, cuts, strict=True)
    kept = [(axis, cut) for axis, cut in pairs if cut.kept]
    chunks = [cut_chunks(*pair) if pair[1].step > 0 else (pair[1].length,) for pair in kept]
    places = [k - sum(isinstance(x, (int, np.integer)) for x in index[:k]) for k in new]
    for k in places:
        chunks.insert(k, (1,))
    if math.prod(map(len, chunks)) != len(layer.mapping):
        return None
    of = _of(layer, key[0], tuple(chunks))
    return Slice(**of, of=whole, cuts=tuple(cuts), new=tuple(places))


def _take(
    name: str, layer: MaterializedLayer, inner: Mapping[str, Tree]
) -> Take | Broadcast | None:
    """Match a layer that selects or broadcasts pixels."""
    if len(inner) != 1:
        return None
    (whole,), of = inner.values(), _of(layer, name)
    chunks = of["chunks"]
    if whole.chunks is None or chunks is None:
        return None
    if is_broadcast(layer.mapping):
        return Broadcast(**of, of=whole)
    if max(map(sum, (*whole.chunks, *chunks)), default=0) > MOST_PLACES:
        return None
    places = places_taken(layer.mapping, (name, *chunks), Grid.of(whole.chunks))
    if places is None or tuple(len(x) for _, x in places) != tuple(map(sum, chunks)):
        return None
    return Take(**of, of=whole, places=tuple(places))


def _reshape(layer: MaterializedLayer, inner: Mapping[str, Tree]) -> Reshape | None:
    """Match a reshape: chunks in C order become the chunks of the result."""
    shown = [reshaping_of(task) for task in layer.mapping.values()]
    whole = inner.get(shown[0][0][0]) if shown[0] else None
    if whole is None or whole.chunks is None:
        return None
    blocks = product(*(range(len(axis)) for axis in whole.chunks))
    if [x and x[0] for x in shown] != [(whole.name, *block) for block in blocks]:
        return None
    shapes = {key[1:]: x[1] for key, x in zip(layer.mapping, shown, strict=True) if x}
    ends = dict[tuple[int, int], int]()  # chunk lengths along each axis
    for place, shape in shapes.items():
        ends |= {(axis, k): n for axis, (k, n) in enumerate(zip(place, shape, strict=True))}
    ndim = len(next(iter(shapes)))
    counts = [1 + max(k for axis, k in ends if axis == a) for a in range(ndim)]
    chunks = tuple(tuple(ends[a, k] for k in range(n)) for a, n in enumerate(counts))
    places = product(*map(range, counts))
    if [*shapes.items()] != [*zip(places, product(*chunks), strict=True)]:
        return None
    return Reshape(**_of(layer, next(iter(layer.mapping))[0], chunks), of=whole)


def _bin(layer: MaterializedLayer, inner: Mapping[str, Tree]) -> Bin | None:
    """Match a layer that bins neighbouring pixels."""
    call = coarsening_of(layer.mapping)
    whole = inner.get(call.of) if call else None
    if call is None or whole is None or whole.chunks is None:
        return None
    name = next(iter(layer.mapping))[0]
    by = tuple(call.axes.get(axis, 1) for axis in range(len(whole.chunks)))
    trimmed: Chunks = whole.chunks
    if call.trim_excess:
        ends = (Cut(0, 1, max(1, n // k) * k) for n, k in zip(whole.shape, by, strict=True))
        trimmed = tuple(cut_chunks(axis, cut) for axis, cut in zip(trimmed, ends, strict=True))
    chunks = tuple(tuple(n // k for n in axis) for axis, k in zip(trimmed, by, strict=True))
    # Empty chunks have tasks as well; these follow the others.
    blocks = product(*(range(len(axis)) for axis in chunks))
    if any((name, *block) not in layer.mapping for block in blocks):
        return None
    of, trims = _of(layer, name, chunks), call.trim_excess
    return Bin(**of, of=whole, function=call.reduction, kwargs=call.kwargs, by=by, trims=trims)


def _places(layer: MaterializedLayer, inner: Mapping[str, Tree]) -> Reduce | None:
    """Match the first step of argmin or argmax."""
    name, task = next(iter(layer.mapping.items()))
    whole = inner.get(task[1][0]) if places_of(task) else None
    if whole is None or whole.chunks is None:
        return None
    function, (of, *_), axes, _ = task
    flat = len(axes) == len(whole.shape)  # positions count over all pixels, or along one axis
    starts = product(*(accumulate(axis[:-1], initial=0) for axis in whole.chunks))
    blocks = product(*(range(len(axis)) for axis in whole.chunks))
    expected = {
        (name[0], *block): (
            *(function, (of, *block), axes),
            (at, whole.shape) if flat else at[axes[0]],
        )
        for block, at in zip(blocks, starts, strict=True)
    }
    if layer.mapping != expected:
        return None
    labels = tuple(range(len(whole.shape)))
    given: Kwargs = {"axes": axes, "labels": labels, "output": labels, "step": places_of(task)}
    return Reduce(**_of(layer, name[0]), of=whole, function=function, **given)


def _histogram(layer: MaterializedLayer, inner: Mapping[str, Tree]) -> Histogram | None:
    """Match the histograms of all chunks, in the same explicit bins."""
    (name, *_), task = next(iter(layer.mapping.items()))
    if getattr(task, "func", None) is not routines._block_hist:  # noqa: SLF001 - called by dask
        return None
    (of, *_), bins = task.args[0].key, task.args[1]
    whole = inner.get(of)
    if whole is None or whole.chunks is None:
        return None
    blocks = [*product(*(range(len(axis)) for axis in whole.chunks))]
    if len(blocks) != len(layer.mapping):
        return None
    for number, block in enumerate(blocks):
        task = layer.mapping.get((name, number, 0))
        if not isinstance(task, Task) or task.func is not routines._block_hist:  # noqa: SLF001
            return None
        alike = task.args[:1] == (TaskRef((of, *block)),) and task.args[1] is bins
        if not alike or len(task.args) > 2 or len(task.dependencies) > 1 or task.kwargs:
            return None
    return Histogram(**_of(layer, name), of=whole, bins=bins)


def _combine(
    layer: MaterializedLayer, inner: Mapping[str, Tree], layers: Mapping[str, Layer]
) -> Combine | None:
    """Match a layer that calls a function on concatenated results of chunks.

    All tasks call the same function, and each result goes into one task: that of its own
    position along the remaining axes.
    """
    called = {key: _call(task) for key, task in layer.mapping.items()}
    function = _function_of_all(called.values())
    if function is None or len(inner) != 1:
        return None
    (of,) = inner.values()
    axes, keepdims = function.keywords.get("axis"), function.keywords.get("keepdims")
    keys = _keys_of(layers[of.name], of.name)
    if not isinstance(axes, tuple) or keepdims is None or not keys:
        return None
    ndim = len(next(iter(keys)))  # including the layer name
    gone = {axis % (ndim - 1) for axis in axes}
    kept = [k for k in range(1, ndim) if k - 1 not in gone]
    place_in, place_without = (itemgetter(0, *x) for x in (kept, range(1, 1 + len(kept))))
    given, taken_ones = {*keys}, list[Key]()
    for key, (_, refs) in called.items():
        if not given.issuperset(refs) or len(key) not in (ndim, 1 + len(kept)):
            return None
        taken_ones += refs
        place = (place_without if len(key) < ndim else place_in)(key)
        if kept and {x[1:] for x in map(place_in, refs)} != {place[1:]}:
            return None
    if len(taken_ones) != len(keys) or {*taken_ones} != given:
        return None
    name = next(iter(layer.mapping))[0]
    return Combine(**_of(layer, name), of=of, function=function, axes=axes, keepdims=keepdims)


def _keys_of(layer: Layer, name: str) -> Collection[Key]:
    """Return the keys of the chunks of a layer."""
    if isinstance(layer, Blockwise):
        return [*product([name], *(range(layer.dims[x]) for x in layer.output_indices))]
    keys: Collection[Key] = layer.mapping.keys() if isinstance(layer, MaterializedLayer) else ()
    return keys if all(isinstance(key, tuple) for key in keys) else ()


def _function_of_all(called: Iterable[Called]) -> partial[object] | None:
    """Return the function that all tasks of a layer call on concatenated results."""
    functions = {id(function): function for function, _ in called}
    function: Any
    (function, *others) = functions.values()
    if hasattr(function, "funcs"):  # a composition of functions
        concatenates = getattr(function.first, "func", None) is _concatenate2
        function = function.funcs[0] if concatenates and len(function.funcs) == 1 else None
    return partial(function) if callable(function) and not others else None


Called = tuple[Function | None, list[Key]]


def _call(task: Task) -> Called:
    """Return the function of a task with one argument, and the keys of its inputs."""
    if isinstance(task, Task) and len(task.args) == 1 and not task.kwargs:
        return task.func, _listed(task.args[0])
    if isinstance(task, tuple) and len(task) == 2 and isinstance(task[1], list):
        return task[0], _listed(task[1])
    return None, []


def _listed(part: list[Key] | List | TaskRef | Key) -> list[Key]:
    """Return the keys in nested lists; other items are kept and match no key."""
    if isinstance(part, TaskRef):
        return [part.key]
    if isinstance(part, (list, List)):
        return [*chain.from_iterable(map(_listed, part if isinstance(part, list) else part.args))]
    return [part]


def _join(layer: MaterializedLayer, inner: Mapping[str, Tree]) -> Join | None:
    """Match a layer that concatenates or stacks arrays."""
    key, task = next(iter(layer.mapping.items()))
    name = key[0] if isinstance(key, tuple) else key
    chunks = _of(layer, name)["chunks"]
    if not name.startswith((STACKS, CONCATENATES)) or chunks is None:
        return None
    parts, ndim = list[Tree](), len(chunks)
    if name.startswith(STACKS):
        index = task[-1] if isinstance(task, tuple) else ()  # legacy tuple tasks
        if not isinstance(index, tuple) or None not in index:
            return None
        axis = index.index(None)
    else:
        shape = tuple(map(sum, chunks))
        known = [x for x in inner.values() if x.chunks is not None and len(x.chunks) == ndim]
        differ = {a for tree in known for a in range(ndim) if tree.shape[a] != shape[a]}
        if len(differ) != 1:
            return None
        (axis,) = differ
    block = 0
    while block < len(chunks[axis]):
        key = (name, *(block * (a == axis) for a in range(ndim)))
        source, _ = taken(as_now(key, layer.mapping[key]))
        part = inner.get(source[0]) if source else None
        if part is None or part.chunks is None:
            return None
        parts.append(part)
        block += 1 if name.startswith(STACKS) else len(part.chunks[axis])
    stacked = name.startswith(STACKS)
    return Join(**_of(layer, name), of=tuple(parts), axis=axis, stacked=stacked)
