"""Walk over the tasks of a computation: the bytes they read, and the memory they hold.

The graph is the one that the scheduler gets. Arrays are represented by their shapes.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from dask import config
from dask.base import compute
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.aggregation import combined, finished, finished_chunk, finished_later, moved
from dask_tiled.graphs.chunk_calls import ChunkCall, box_of_read
from dask_tiled.graphs.costs import Cost, cost_of
from dask_tiled.graphs.functions import is_known, is_of_numpy
from dask_tiled.graphs.lending import Spare, Unread, lent
from dask_tiled.graphs.names import (
    Alias,
    DataNode,
    List,
    Task,
    TaskRef,
    _execute_subgraph,
    chunk,
    methodcaller,
    order,
)
from dask_tiled.graphs.results import OutputBuffer, put, whole
from dask_tiled.graphs.rewriting import Planned, optimize
from dask_tiled.graphs.stages import keys_in, needed_tasks
from dask_tiled.model.indexing import Shaped
from dask_tiled.plans.recipes import Recipe, make, make_all, make_later
from dask_tiled.plans.tasks import Function, pixels_of
from dask_tiled.plans.tree import name_of
from dask_tiled.reading.amounts import ReadPart, memory_of
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Grid

VIEWS = {
    *("reshape", "transpose", "swapaxes", "moveaxis", "expand_dims", "squeeze", "ravel", "flip"),
    *("broadcast_to", "asarray", "asanyarray", "real", "trim"),
}
"""Functions of NumPy that usually return views."""
SEVERAL = {"moment_chunk": 3, "moment_combine": 3, "mean_chunk": 2, "mean_combine": 2}
"""Functions of dask that return several arrays, of which it annotates only one."""
MEANS = "mean_combine", "mean_agg"
"""Functions of dask that hold two copies of joined results, cast to the dtype of their result."""
WRAPPERS = "apply", "enforce_dtype", "pass_extra_kwargs"
"""Functions of dask that call one of their arguments."""
CONTAINERS = "identity_cast", "to_container"
"""Functions of dask that return a list of their arguments."""
COMBINING = combined, finished, finished_later, moved
"""Functions that combine results of the engine, in up to eight bytes."""
LENDERS = lent, Unread
"""Functions that read chunks into memory of a pool."""
PART = re.compile(r"-part-\d+$")
"""Suffix of the layers of parts of joined arrays."""

Place = tuple[int, ...]


class Memory:
    """A block of memory that several values may share."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class ResultMemory(Memory):
    """Memory of a result of some shape, into which tasks write chunks; it stays."""

    def __init__(self, shape: Place) -> None:
        super().__init__(0)
        self.shape = shape


class TaskValue(NamedTuple):
    """Value of a task: its shape if known, and the memory it refers to."""

    nbytes: int
    """Size of its items in bytes, wherever they are stored."""
    shaped: Shaped | None
    memory: tuple[Memory, ...]

    @property
    def items(self) -> int:
        """Number of items; of bytes if the shape is unknown."""
        return math.prod(self.shaped.shape) if self.shaped else self.nbytes


class TaskWalk:
    """Walk over the tasks that ``dask.compute`` passes to a scheduler."""

    def __init__(self, collections: Sequence[Any]) -> None:
        self._annotated = dict(_annotated(collections))
        self._costs = dict[object, Cost]()
        self._results = list[ResultMemory]()
        self.reads = defaultdict[str, Counter[ReadPart]](Counter)
        self.sources = dict[str, Source]()
        self.counts = Counter[Recipe]()
        """Number of chunks that each recipe computes."""
        self.refusals = Counter[tuple[Recipe, str, str, Place]]()
        """Number of chunks computed whole: their recipe, operation, reason and shape."""
        self.unseen = set[str]()
        """What may take more memory than is known: functions, and pixels of dtype object."""
        if any(dtype.hasobject for _, dtype in self._annotated.values()):
            self.unseen.add("pixels of dtype object")
        self.sent, keys, self.plans = _sent(collections)
        self.keys = {*keys_in(keys)}
        tasks = self.sent if isinstance(self.sent, Mapping) else self.sent.__dask_graph__()
        needed = needed_tasks(tasks, self.keys, ())
        values, self._bytes_of_tasks = self._visit(needed, self.keys, {})
        passed_on = (x for key, x in values.items() if key not in self.keys)
        sizes = (sum(memory.nbytes for memory in _memory_in(x)) for x in passed_on)
        self._passed_on = sorted(sizes, reverse=True)
        self.number = sum(not isinstance(task, DataNode) for task in needed.values())

    def peak(self, threads: int) -> int:
        """Return the most bytes held: in dask's order, by the largest other tasks, and in results.

        Each thread may keep its last value, and reach shared chunks in another order.
        """
        largest = sorted((own for _, own in self._bytes_of_tasks), reverse=True)[:threads]
        others, every = sum(largest[: threads - 1]), sum(largest)
        held = (before + min(own + others, every) for before, own in self._bytes_of_tasks)
        results = sum(memory.nbytes for memory in self._results)
        return max(held, default=0) + results + sum(self._passed_on[:threads])

    def _visit(
        self,
        graph: Mapping[Any, Any],
        wanted: Collection[Any],
        given: Mapping[Any, Any],
        index: Place = (),
    ) -> tuple[dict[Any, Any], list[tuple[int, int]]]:
        """Visit tasks in dask's order; return their values, and the bytes before and in each task.

        A value is held until its last consumer is done. ``given`` values are not counted. Keys
        without an index get ``index``.
        """
        values, users = dict(given), Counter(x for one in graph.values() for x in one.dependencies)
        uses = Counter(_memory_in([*given.values()]))
        held, bytes_of_tasks = 0, list[tuple[int, int]]()
        for key in _in_order(graph):
            place = key if isinstance(key, tuple) else (key, *index)
            values[key], working = self._task(graph[key], place, values)
            fresh = sum(memory.nbytes for memory in {*_memory_in(values[key])} if not uses[memory])
            uses.update(_memory_in(values[key]))
            bytes_of_tasks.append((held, working + fresh))
            held += fresh
            for x in graph[key].dependencies:
                users[x] -= 1
                for memory in _memory_in(values.get(x)) if not users[x] and x not in wanted else ():
                    uses[memory] -= 1
                    held -= memory.nbytes * (not uses[memory])
        return values, bytes_of_tasks

    def _task(self, task: Any, key: tuple[Any, ...], values: Mapping[Any, Any]) -> tuple[Any, int]:
        """Return the value of a task or of an argument, and the bytes that it takes besides."""
        if isinstance(task, TaskRef | Alias):
            return values.get(task.key if isinstance(task, TaskRef) else task.target), 0
        if isinstance(task, DataNode):
            return task.value, 0
        if isinstance(task, List) or (isinstance(task, list | tuple) and _has_nodes(task)):
            items = task.args if isinstance(task, List) else task
            made = [self._task(x, key, values) for x in items]
            return [x for x, _ in made], max((n for _, n in made), default=0)
        if not isinstance(task, Task):
            return task, 0
        given = [*task.args, *task.kwargs.values()]
        if task.func is _execute_subgraph:
            graph, wanted, names, *given = given
            before = {x: self._task(y, key, values)[0] for x, y in zip(names, given, strict=True)}
            # Memory that is lent waits for the next chunk of the thread.
            lenders = {x for x, one in graph.items() if getattr(one, "func", None) in LENDERS}
            inner, bytes_of_tasks = self._visit(graph, {wanted, *lenders}, before, key[1:])
            own = {*_memory_in(inner[wanted])} - {*_memory_in([*before.values()])}
            most = max(map(sum, bytes_of_tasks))
            return inner[wanted], max(0, most - sum(x.nbytes for x in own))
        made = [self._task(x, key, values) for x in given]
        args, n = [x for x, _ in made], len(task.args)
        kwargs = dict(zip(task.kwargs, args[n:], strict=True))
        value, working = self._call(task.func, args[:n], kwargs, key)
        inside = [x for x, one in zip(args, given, strict=True) if type(one) is Task]
        below = sum(memory.nbytes for memory in _memory_in(inside))
        return value, max(working, *(n for _, n in made), 0) + below

    def _call(
        self, function: Function, args: list[Any], kwargs: Mapping[str, Any], key: Any
    ) -> tuple[Any, int]:
        """Return the value of a call, and the bytes that it takes besides."""
        if function is put:
            return self._put(*args)
        if function in (make, make_all, finished_chunk):
            return self._made(function, args, key)
        if args and isinstance(args[0], Source):
            return self._read(function, args, key)
        if function is OutputBuffer:
            value: Any = ResultMemory(*args)
            self._results.append(value)
        elif function is OutputBuffer.whole:
            value = args[1]
        elif function is Spare:
            value = args
        elif function is make_later:
            value = partial(make, *args)
        else:
            return self._other(function, args, kwargs, key)
        return value, 0

    def _read(self, function: Function, args: Sequence[Any], key: Any) -> tuple[TaskValue, int]:
        """Return the value of a task that reads a whole chunk."""
        source, box = args[0], box_of_read(args)
        assert box is not None  # noqa: S101 - for the type checker
        self._count(source, ReadPart(box, ()))
        shaped = Shaped(tuple(b - a for a, b in box), source.dtype)
        value = _new(shaped.nbytes, shaped)
        if function not in (pixels_of, whole, *LENDERS):
            value = value._replace(shaped=self._shaped(key) or shaped)
        return value, memory_of(source, box)

    def _count(self, source: Source, read: ReadPart) -> None:
        self.sources[source.token] = source
        self.reads[source.token][read] += 1

    def _made(self, function: Function, args: Sequence[Any], key: Any) -> tuple[Any, int]:
        """Return what a task of the engine computes."""
        call = ChunkCall.of(function, args)
        assert call is not None  # noqa: S101 - for the type checker
        (recipes, block_id, pixels, operands), box = call, call.box
        shape = tuple(b - a for a, b in box)
        kind = id(recipes), shape, *(x.shaped for x in _values(operands)), pixels is None
        if kind not in self._costs:
            beside = [*map(_stand_in, operands)]
            self._costs[kind] = cost_of(recipes, block_id, beside, has_pixels=pixels is not None)
        cost = self._costs[kind]
        self.unseen |= {*cost.unseen}
        for recipe, refusal in zip(recipes.recipes, cost.refusals, strict=True):
            self.counts[recipe] += 1
            if refusal is not None:
                self.refusals[recipe, *refusal, shape] += 1
        for source, parts in cost.reads:
            self._count(source, ReadPart(box, parts))
        made = [_new(nbytes, shaped) for nbytes, shaped in cost.results]
        if function is make_all:
            return made, cost.working
        (value,) = made
        if function is finished_chunk:
            return _new(value.nbytes, self._shaped(key)), cost.working + 5 * value.nbytes
        return value._replace(shaped=value.shaped or self._shaped(key)), cost.working

    def _put(
        self, result: ResultMemory, grid: Grid, block_id: Place, part: Any
    ) -> tuple[TaskValue, int]:
        """Return the value of a task that writes a chunk into a result.

        A chunk that is computed in place counts as if it was copied.
        """
        value, working = part, 0
        if isinstance(part, partial):
            value, working = self._made(make, part.args, ("",))
        elif isinstance(part, Source):
            value, working = self._read(pixels_of, [part, grid, block_id], ("",))
        nbytes, shape = sum(x.nbytes for x in _values(value)), grid.box(block_id)
        if count := math.prod(b - a for a, b in shape):
            result.nbytes = math.prod(result.shape) * (nbytes // count)
        return TaskValue(nbytes, None, ()), working + nbytes * (value is not part)

    def _other(
        self, function: Function, args: list[Any], kwargs: Mapping[str, Any], key: Any
    ) -> tuple[Any, int]:
        """Return the value of a call of another function."""
        given, (name, inner) = [*_values([*args, *kwargs.values()])], _function_of(function)
        casts = name == "enforce_dtype"
        if name in WRAPPERS:
            called = next(filter(callable, [*args, *kwargs.values()]), inner)
            name, inner = _function_of(called)
        taken, shaped = sum(x.nbytes for x in given), self._shaped(key)
        if name in CONTAINERS:
            return args, 0
        if name in ("getitem", "getter"):
            part = _part(args[0], args[1], copies=inner is chunk.getitem)
            if part is not None:
                return part, 0
        if inner in COMBINING:
            nbytes = max((max(x.nbytes, 8 * x.items * bool(x.shaped)) for x in given), default=0)
            return _new(nbytes, shaped or given[0].shaped), 4 * nbytes
        if name in VIEWS and is_of_numpy(inner):
            nbytes = shaped.nbytes if shaped else taken
            return TaskValue(nbytes, shaped, (*_memory_in(given),)), 0
        shaped = _reduced({**getattr(function, "keywords", {}), **kwargs}, given, shaped)
        known = is_known(inner) and not casts
        known = known or (name == "mean_chunk" and kwargs.get("sum", chunk.sum) is chunk.sum)
        if shaped is not None and known and PART.search(_layer_of(key)):
            shapes = [x.shaped.shape for x in given if x.shaped is not None]
            shaped = shaped._replace(shape=np.broadcast_shapes(*shapes))
        nbytes = (shaped.nbytes if shaped else taken) * SEVERAL.get(name, 1)
        if name in MEANS:
            width = shaped.dtype.itemsize if shaped else 8
            taken = sum(max(x.nbytes, width * x.items) for x in given)
            return _new(nbytes, shaped), 2 * max(nbytes, taken)
        self.unseen |= set() if known else {name_of(inner)}
        return _new(nbytes, shaped), taken * hasattr(function, "funcs")  # of joined results

    def _shaped(self, key: Any) -> Shaped | None:
        """Return the annotated shape of a chunk; of the largest one if its position is unknown."""
        name, place = _layer_of(key), key[1:]
        whole_name = PART.sub("", name)  # for parts of joined arrays
        if whole_name not in self._annotated:
            return None
        chunks, dtype = self._annotated[whole_name]
        known = (name, len(place)) == (whole_name, len(chunks)) and all(
            isinstance(k, int) and k < len(axis) for k, axis in zip(place, chunks, strict=True)
        )
        places = place if known else [np.argmax(axis) for axis in chunks]
        sizes = [axis[k] for k, axis in zip(places, chunks, strict=True)]
        return None if any(map(math.isnan, sizes)) else Shaped(tuple(map(int, sizes)), dtype)


class _SentError(Exception):
    """Raised once the tasks are sent, so that nothing is computed."""


def _sent(collections: Sequence[Any]) -> tuple[Any, Any, list[Planned]]:
    """Return the graph and the keys that a scheduler gets, and the plans for it."""
    sent, plans = list[tuple[Any, Any]](), list[Planned]()

    def scheduler(graph: Any, keys: Any, **_: object) -> None:
        sent.append((graph, keys))
        raise _SentError

    ours = config.get("array_optimize", None) is optimize
    noting = {"array_optimize": partial(optimize, noted=plans.append)} if ours else {}
    with suppress(_SentError), config.set(noting):
        compute(*collections, traverse=False, scheduler=scheduler)
    return *sent[0], plans


def _annotated(collections: Sequence[Any]) -> Iterator[tuple[str, tuple[Chunks, np.dtype]]]:
    """Yield the layers whose chunks and dtype dask annotated."""
    for graph in (one.__dask_graph__() for one in collections):
        for name, layer in graph.layers.items() if isinstance(graph, HighLevelGraph) else ():
            chunks, dtype = map((layer.collection_annotations or {}).get, ("chunks", "dtype"))
            if chunks is not None and dtype is not None:
                yield name, (chunks, np.dtype(dtype))


def _in_order(graph: Mapping[Any, Any]) -> Iterator[Any]:
    """Yield keys as dask's schedulers run them in one thread: the last one that is ready first."""
    priorities = order(dict(graph)) if len(graph) > 1 else dict.fromkeys(graph, 0)
    keys = sorted(graph, key=priorities.__getitem__, reverse=True)
    waiting, users = {x: graph.keys() & graph[x].dependencies for x in keys}, defaultdict(list)
    for key in keys:
        for x in waiting[key]:
            users[x].append(key)
    ready = [key for key in keys if not waiting[key]]
    ready.sort(key=lambda key: isinstance(graph[key], DataNode))  # data is there at once
    while ready:
        yield (key := ready.pop())
        for x in users[key]:
            waiting[x].discard(key)
            ready += [] if waiting[x] else [x]


def _part(of: Any, index: Any, *, copies: bool) -> Any:
    """Return the value of an index, which is a view unless positions are listed; None if unusual.

    With ``copies``, dask copies a view if it is at most half of a chunk.
    """
    if isinstance(of, list):
        return of[index]
    items = index if type(index) in (list, tuple) else [index]
    listed = any(isinstance(x, list | tuple | np.ndarray) for x in items)
    try:
        part = _stand_in(of)[tuple(items)]
        shaped = Shaped(part.shape, part.dtype)
    except (IndexError, TypeError, ValueError):  # a computed or unusual index
        return None
    if listed or (copies and sum(x.nbytes for x in _values(of)) >= 2 * shaped.nbytes):
        return _new(shaped.nbytes, shaped)
    return TaskValue(shaped.nbytes, shaped, (*_memory_in(of),))


def _reduced(
    keywords: Mapping[str, Any], given: Sequence[TaskValue], annotated: Shaped | None
) -> Shaped | None:
    """Return the shape of a reduced chunk, whose axes keep length 1; dask annotates them longer."""
    axes, of = keywords.get("axis"), given[0].shaped if len(given) == 1 else None
    if not (annotated and of and keywords.get("keepdims")) or not isinstance(axes, tuple):
        return annotated
    gone = {axis % len(of.shape) for axis in axes}
    return annotated._replace(shape=tuple(1 if k in gone else n for k, n in enumerate(of.shape)))


def _memory_in(value: Any) -> Iterator[Memory]:
    """Yield the memory that a value refers to."""
    for one in _values(value):
        yield from one.memory


def _values(nested: Any) -> Iterator[TaskValue]:
    """Yield the arrays in nested values."""
    if isinstance(nested, TaskValue):
        yield nested
    elif isinstance(nested, np.ndarray):
        yield TaskValue(nested.nbytes, Shaped(nested.shape, nested.dtype), ())
    elif type(nested) in (list, tuple):
        for one in nested:
            yield from _values(one)


def _new(nbytes: int, shaped: Shaped | None) -> TaskValue:
    return TaskValue(nbytes, shaped, (Memory(nbytes),))


def _stand_in(value: Any) -> Any:
    """Return a placeholder for an array that is represented by its shape."""
    if isinstance(value, list):
        return [*map(_stand_in, value)]
    if isinstance(value, TaskValue) and value.shaped is not None:
        return np.broadcast_to(np.zeros((), value.shaped.dtype), value.shaped.shape)
    return value


def _layer_of(key: Any) -> str:
    """Return the layer name of a task, which may be part of a fused task."""
    return key[0].partition("_.")[0] if isinstance(key[0], str) else ""


def _function_of(function: Any) -> tuple[str, Any]:
    """Return the name of a function, and the innermost function of partials and compositions."""
    inner = function
    while hasattr(inner, "func") or hasattr(inner, "funcs"):
        if isinstance(inner, methodcaller):
            return inner.method, inner
        inner = inner.func if hasattr(inner, "func") else inner.funcs[0]
    return str(getattr(inner, "__name__", type(inner).__name__)).lstrip("_"), inner


def _has_nodes(values: Sequence[Any]) -> bool:
    return any(isinstance(x, Task | TaskRef | Alias | DataNode) for x in values)
