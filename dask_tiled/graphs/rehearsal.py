"""Dry run of a computation: the bytes its tasks read, and the memory they need.

The graph is the one that the scheduler gets. Tasks are visited in dask's order; arrays are
represented by their shapes, and their memory is freed after the last task that needs them.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from dask import config
from dask.base import compute
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.engine.expressions import OPERATORS
from dask_tiled.graphs.aggregation import (
    combined,
    finished,
    finished_chunk,
    finished_later,
    moved,
)
from dask_tiled.graphs.costs import Cost, cost_of
from dask_tiled.graphs.functions import ELEMENTWISE, is_of_numpy
from dask_tiled.graphs.lending import Spare, Unread, lent
from dask_tiled.graphs.names import (
    Alias,
    DataNode,
    List,
    Task,
    TaskRef,
    _execute_subgraph,
    chunk,
    flatten,
    reductions,
)
from dask_tiled.graphs.results import OutputBuffer, put, whole
from dask_tiled.graphs.rewriting import Planned, optimize, planned
from dask_tiled.graphs.schedules import (
    Done,
    Graph,
    Held,
    Memory,
    Steps,
    first_of,
    memory_in,
    peak_of,
    schedules,
    steps,
    without,
)
from dask_tiled.graphs.wrapped import unwrapped
from dask_tiled.model.indexing import Shaped
from dask_tiled.plans.recipes import Recipes, make, make_all, make_later
from dask_tiled.plans.tasks import Function, pixels_of
from dask_tiled.reading.amounts import ReadPart, memory_of
from dask_tiled.reading.reader import Source
from dask_tiled.tiling.bases import Chunks, Grid

TASK_BYTES = 5 << 10
"""Approximate memory of a task in dask."""
PROCESS_BYTES = 1 << 18
"""Memory that does not depend on array sizes, without compiled code."""
THREAD_BYTES = 1 << 17
"""Additional memory per thread."""
MARGIN = 1.06
"""Safety factor on the estimate, for untracked memory."""
VIEWS = {
    *("reshape", "transpose", "swapaxes", "moveaxis", "expand_dims"),
    *("squeeze", "broadcast_to", "asarray", "asanyarray", "flip", "ravel", "real", "imag"),
}
"""Functions that usually return views."""
JOINING = {"concatenate_shaped", "concatenate3", "concatenate", "finalize", "stack", "concatenate2"}
"""Functions that need no memory besides their results."""
PART = re.compile(r"-part-\d+$")
"""Suffix of the layers of parts of joined arrays."""
LENDERS = lent, Unread
"""Functions that read chunks into memory of a pool."""
PRODUCTS = {"matmul", "tensordot", "chunk_einsum"}
"""Functions that multiply operands of one dtype."""
LIGHT = {
    chunk.sum,
    chunk.prod,
    reductions.chunk_min,
    reductions.chunk_max,
    chunk.any,
    chunk.all,
    np.where,
    np.clip,
    np.round,
    np.around,
}
"""Functions that need little memory besides their results."""


MANIFOLD = {"moment_chunk": 3, "moment_combine": 3, "mean_chunk": 2, "mean_combine": 2}
"""Functions that return several arrays, of which dask annotates only one."""


class Later(NamedTuple):
    """A chunk that is computed into memory supplied later."""

    recipes: Recipes
    block_id: tuple[int, ...]
    pixels: object
    blocks: Sequence[object]


class ResultPlace(NamedTuple):
    """Memory of a result into which chunks are written."""

    shape: tuple[int, ...]


class Rehearsed(NamedTuple):
    """Cost of a computation."""

    tasks: int
    reads: Mapping[str, Counter[ReadPart]]
    sources: Mapping[str, Source]
    peak: int
    """Peak memory in bytes."""
    plans: tuple[str, ...]
    """Plans as text."""
    left: tuple[tuple[str, str], ...]
    """Layers left to dask, with reasons."""
    unseen: tuple[str, ...]
    """Functions of users, whose temporaries are not in the peak."""


def rehearse(collections: Sequence[Any], threads: int) -> Rehearsed:
    """Dry-run a computation on ``threads`` threads."""
    noted = _noted(collections)
    found = _Rehearsal(noted)
    graph, keys, plans = _scheduled(collections)
    done = found.evaluated(graph, {}, steps(graph, 1, first_of))
    peak = max(peak_of(graph, done, keys, course) for course in schedules(graph, threads))
    # A thread may keep its last value, and reach shared chunks in another order.
    passed_on = (x.value for key, x in done.items() if key not in keys)
    largest = max((sum(m.nbytes for m in memory_in(x)) for x in passed_on), default=0)
    peak += largest * threads
    fixed = PROCESS_BYTES + THREAD_BYTES * threads + TASK_BYTES * len(graph)
    tasks = sum(not isinstance(task, DataNode) for task in graph.values())
    peak = int(peak * MARGIN) + fixed
    left = {x for one in plans for x in one.left(but=keys)}  # without concatenated results
    late = (x for x in found.late if x[:2] not in left)
    left |= {(what, f"{why}, in chunks of {shape} pixels") for what, why, shape in late}
    if not all(isinstance(one.__dask_graph__(), HighLevelGraph) for one in collections):
        left.add(("expressions", "dask uses array expressions, which have other graphs"))
    texts = tuple(text for one in plans for text in one.on_tiles)
    unseen = tuple(sorted(found.unseen))
    return Rehearsed(tasks, found.reads, found.sources, peak, texts, tuple(sorted(left)), unseen)


def _scheduled(collections: Sequence[Any]) -> tuple[dict[Any, Any], set[Any], list[Planned]]:
    """Return the task graph that a scheduler gets, the keys it computes, and the plans for it."""
    got: list[tuple[Any, Any]] = []
    plans: list[Planned] = []

    def planning(graph: Any, keys: Any, **options: Any) -> Any:
        if isinstance(graph, HighLevelGraph):
            plans.append(planned(unwrapped(graph), keys))
        return optimize(graph, keys, **options)

    def scheduler(graph: Any, keys: Any, **_: object) -> None:
        got.append((graph, keys))
        raise _Got

    ours = config.get("array_optimize", None) is optimize
    with suppress(_Got), config.set({"array_optimize": planning} if ours else {}):
        compute(*collections, traverse=False, scheduler=scheduler)
    ((graph, keys),) = got
    tasks = graph if isinstance(graph, Mapping) else graph.__dask_graph__()
    wanted = {*flatten([keys])}
    waiting, needed = [*wanted], dict[Any, Any]()
    while waiting:
        key = waiting.pop()
        if key not in needed:
            needed[key] = tasks[key]
            waiting += tasks[key].dependencies
    return needed, wanted, plans


class _Got(Exception):  # noqa: N818 - no error
    """Raised to leave dask once the graph is captured."""


def _noted(collections: Sequence[Any]) -> dict[str, tuple[Chunks, np.dtype]]:
    """Return the chunks and dtypes that dask annotated, by layer."""
    found: dict[str, tuple[Chunks, np.dtype]] = {}
    for one in collections:
        graph = one.__dask_graph__()
        for name, layer in graph.layers.items() if isinstance(graph, HighLevelGraph) else ():
            noted = layer.collection_annotations or {}
            if noted.get("chunks") is not None and noted.get("dtype") is not None:
                found[name] = noted["chunks"], np.dtype(noted["dtype"])
    return found


class _Rehearsal:
    """State of a dry run: annotations, reads, cached costs."""

    def __init__(self, noted: Mapping[str, tuple[Chunks, np.dtype]]) -> None:
        self._noted = noted
        self.reads: dict[str, Counter[ReadPart]] = defaultdict(Counter)
        self.sources: dict[str, Source] = {}
        self._costs: dict[object, Cost] = {}
        self._places: dict[int, ResultPlace] = {}
        self.late: set[tuple[str, str, tuple[int, ...]]] = set()
        """Operations on whole chunks of some shapes, which the plan does not know."""
        self.unseen: set[str] = set()
        """Functions of users."""

    def evaluated(
        self, graph: Graph, given: Mapping[Any, Any], course: Steps, index: tuple[int, ...] = ()
    ) -> dict[Any, Done]:
        """Visit the tasks of a graph in order; keys without an index get ``index``."""
        values, found = dict(given), dict[Any, Done]()
        for begins, key in course:
            if begins:
                place = key[1:] if isinstance(key, tuple) else index
                found[key] = self._task(graph[key], key, place, values)
                values[key] = found[key].value
        return found

    def _task(self, task: Any, key: Any, place: tuple[int, ...], values: Mapping[Any, Any]) -> Done:
        """Visit one task."""
        if isinstance(task, Alias):
            return Done(values.get(task.target))
        if isinstance(task, DataNode):
            return Done(task.value)
        if task.func is _execute_subgraph:
            return self._subgraph(task, place, values)
        nested = list[Done]()

        def value(one: Any) -> Any:
            if isinstance(one, TaskRef):
                return values.get(one.key)
            if isinstance(one, Alias):
                return values.get(one.target)
            if isinstance(one, DataNode):
                return one.value
            if isinstance(one, List):
                return [value(x) for x in one.args]
            if isinstance(one, Task):
                nested.append(self._task(one, key, place, values))
                return nested[-1].value
            return [*map(value, one)] if isinstance(one, list | tuple) and _has_nodes(one) else one

        args = [value(x) for x in task.args]
        kwargs = {name: value(x) for name, x in task.kwargs.items()}
        done = self._call(task.func, args, kwargs, key, place)
        below = sum(m.nbytes for x in nested for m in memory_in(x.value))
        return done._replace(working=max(done.working, *(x.working for x in nested), 0) + below)

    def _subgraph(self, task: Any, place: tuple[int, ...], values: Mapping[Any, Any]) -> Done:
        """Visit a fused subgraph, whose intermediate values are freed at its end."""
        graph, wanted, names, *args = task.args

        def value_of(one: Any) -> Any:
            if isinstance(one, List):  # the chunks of an operand
                return [*map(value_of, one.args)]
            found = values.get(one.key) if isinstance(one, TaskRef) else one
            return found.value if isinstance(found, DataNode) else found

        given = {name: value_of(one) for name, one in zip(names, args, strict=True)}
        course = [*steps(graph, 1, first_of)]
        done = self.evaluated(graph, given, course, place)
        value, results = done[wanted].value, dict[int, int]()
        for one in done.values():
            results |= one.results
        before = {id(m) for x in given.values() for m in memory_in(x)}
        own = {id(m): m.nbytes for m in memory_in(value) if id(m) not in before}
        inside = {
            key: one._replace(value=without(one.value, before), results={})
            for key, one in done.items()
        }
        # Memory that is lent waits for the next chunk of the thread.
        lenders = {key for key, one in graph.items() if getattr(one, "func", None) in LENDERS}
        peak = peak_of(graph, inside, {wanted, *lenders}, course)
        return Done(value, max(0, peak - sum(own.values())), results)

    def _call(
        self,
        function: Function,
        args: list[Any],
        kwargs: Mapping[str, Any],
        key: Any,
        place: tuple[int, ...],
    ) -> Done:
        """Visit a function call."""
        if function in (OutputBuffer, Spare):  # spare memory is kept for the next chunk of a thread
            return Done(ResultPlace(*args) if args else None)
        if function in (put, OutputBuffer.whole):
            return self._put(*args) if function is put else Done(args[0])
        if function is finished_chunk:
            recipes, ending, _, block_id, *blocks = args
            made = self._made(Later(recipes, ending.block_of(block_id), None, blocks), make, key)
            shaped, first = self._shaped(key, place), _nbytes(made.value)
            held = sum(x.nbytes for x in memory_in(made.value))
            return Done(_new(first, shaped), made.working + held + 4 * first)
        if function in (make, make_all, make_later):
            later = Later(args[0], args[1], args[2], args[3:])
            return Done(later) if function is make_later else self._made(later, function, key)
        if args and isinstance(args[0], Source):
            return self._read(function, args, key, place)
        return self._other(function, args, kwargs, key, place)

    def _read(self, function: Function, args: list[Any], key: Any, place: tuple[int, ...]) -> Done:
        """Visit a task that reads a whole chunk."""
        source: Source = args[0]
        if function is whole:
            box = tuple((0, n) for n in args[1])
        else:
            (grid,) = (x for x in args if isinstance(x, Grid))
            box = grid.box(args[-1])
        self._reads(source, ReadPart(box, ()))
        shaped = Shaped(tuple(b - a for a, b in box), source.dtype)
        if function not in (pixels_of, *LENDERS, whole):
            shaped = self._shaped(key, place) or shaped
        return Done(_new(shaped.nbytes, shaped), memory_of(source, box))

    def _reads(self, source: Source, read: ReadPart) -> None:
        self.sources[source.token] = source
        self.reads[source.token][read] += 1

    def _made(
        self, later: Later, function: Function, key: Any, room: tuple[int, ...] | None = None
    ) -> Done:
        """Visit a task of the engine."""
        recipes, block_id, pixels, blocks = later
        box = recipes.grid.box(block_id[: len(recipes.grid.axes)])  # results may have further axes
        beside = [_stand_in(x) for x in blocks]
        shape = tuple(b - a for a, b in box)
        kind = id(recipes), shape, repr(_shapes(beside)), pixels is None, room
        if kind not in self._costs:
            has_pixels = pixels is not None
            cost = cost_of(recipes, block_id, beside, has_pixels=has_pixels, room=room)
            self._costs[kind] = cost
        cost = self._costs[kind]
        self.late |= {*cost.whole}
        self.unseen |= {*cost.unseen}
        for source, parts in cost.reads:
            self._reads(source, ReadPart(box, parts))
        made = [Held((Memory(x.held),), x.nbytes, x.shaped) for x in cost.results]
        if function is make_all:
            return Done(made, cost.working)
        shaped = made[0].shaped or self._shaped(key, block_id)
        return Done(made[0]._replace(shaped=shaped), cost.working)

    def _put(self, place: ResultPlace, grid: Grid, block_id: tuple[int, ...], chunk: Any) -> Done:
        """Visit a task that writes a chunk into a result."""
        shape = tuple(b - a for a, b in grid.box(block_id))
        fits = _is_contiguous(shape, place.shape)
        if isinstance(chunk, Later):
            made = self._made(chunk, make_later, None, shape if fits else None)
        elif isinstance(chunk, Source):
            made = self._read(pixels_of, [chunk, grid, block_id], None, ())
        else:
            made = Done(chunk)
        nbytes, working = _nbytes(made.value), made.working
        if made.value is not chunk and not fits:
            working += nbytes
        count = math.prod(shape)
        whole_bytes = math.prod(place.shape) * (nbytes // count) if count else 0
        self._places[id(place)] = place  # keeps its id unique
        return Done(Held((), nbytes), working, {id(place): whole_bytes})

    def _other(
        self,
        function: Function,
        args: list[Any],
        kwargs: Mapping[str, Any],
        key: Any,
        place: tuple[int, ...],
    ) -> Done:
        """Visit a call of another function."""
        given = [*_arrays([*args, *kwargs.values()])]
        name, inner = _function_of(function)
        if name in ("getitem", "getter"):
            return self._part(args[0], args[1], key, place, copies=inner is chunk.getitem)
        taken = sum(one.nbytes for one in given)
        shaped = _reduced(function, kwargs, given, self._shaped(key, place))
        combining = _combining(inner, args, given, shaped)
        if combining is not None:
            return combining
        light = inner in LIGHT or inner in OPERATORS - {operator.pow} or isinstance(inner, np.ufunc)
        light = light or inner in ELEMENTWISE or name == "astype"
        if shaped is not None and light and PART.search(_layer_of(key)):
            known = [one.shaped.shape for one in given if one.shaped is not None]
            shaped = shaped._replace(shape=np.broadcast_shapes(*known))
        nbytes = (shaped.nbytes if shaped else taken) * MANIFOLD.get(name, 1)
        if name in VIEWS:
            return Done(Held((*memory_in(given),), nbytes, shaped))
        if name in JOINING:
            return Done(_new(max(nbytes, taken if shaped is None else 0), shaped))
        is_of_user = not is_of_numpy(inner)
        self.unseen |= {name} if is_of_user else set()
        if (
            is_of_user
            or light
            or (name == "mean_chunk" and kwargs.get("sum", chunk.sum) is chunk.sum)
        ):
            return Done(_new(nbytes, shaped))
        return Done(_new(nbytes, shaped), _beside(name, given, nbytes, shaped))

    def _part(self, of: Any, index: Any, key: Any, place: tuple[int, ...], *, copies: bool) -> Done:
        """Visit an indexing operation, which returns a view unless positions are listed.

        With ``copies``, dask copies the view if it is at most half of a chunk.
        """
        if isinstance(of, list):
            return Done(of[index])
        items = index if type(index) in (list, tuple) else [index]
        listed = any(isinstance(x, list | tuple | np.ndarray) for x in items)
        try:
            found = _stand_in(of)[tuple(items)]
            shaped = Shaped(found.shape, found.dtype)
        except (IndexError, TypeError, ValueError):  # a computed or unusual index
            shaped = self._shaped(key, place) or Shaped((), np.dtype(object))
            listed = True
        if listed or (copies and _nbytes(of) >= 2 * shaped.nbytes):
            return Done(_new(shaped.nbytes, shaped))
        return Done(Held((*memory_in(of),), shaped.nbytes, shaped))

    def _shaped(self, key: Any, place: tuple[int, ...]) -> Shaped | None:
        """Return the annotated shape of a chunk; of the largest one if its position is unknown."""
        name = _layer_of(key)
        whole_name = PART.sub("", name)  # for parts of joined arrays
        if whole_name not in self._noted:
            return None
        chunks, dtype = self._noted[whole_name]
        if isinstance(key, tuple):
            place = key[1:]
        known = (name, len(place)) == (whole_name, len(chunks)) and all(
            isinstance(k, int) and k < len(axis) for k, axis in zip(place, chunks, strict=True)
        )
        sizes = (
            [axis[k] for k, axis in zip(place, chunks, strict=True)]
            if known
            else [max(axis, default=0) for axis in chunks]
        )
        if any(math.isnan(n) for n in sizes):
            return None
        return Shaped(tuple(map(int, sizes)), dtype)


def _combining(
    inner: Any, args: Sequence[Any], given: Sequence[Held], shaped: Shaped | None
) -> Done | None:
    """Visit a function that combines results of chunks; None for another function."""
    if inner is moved and given[0].shaped is not None:  # positions in the whole array are int64
        noted = given[0].shaped.dtype
        value = noted["value"] if noted.names else noted
        places = np.dtype([("value", value), ("place", np.int64)])
        found = given[0].shaped._replace(dtype=places)
        return Done(_new(found.nbytes, found), 4 * 8 * given[0].items)
    if inner not in (combined, finished, finished_later):
        return None
    width = np.dtype(args[0].dtype or "u1").itemsize if inner is finished_later else 0
    first = max((max(one.nbytes, width * one.items) for one in given), default=0)
    return Done(_new(first, shaped), 4 * first)


def _reduced(
    function: Function, kwargs: Mapping[str, Any], given: Sequence[Held], noted: Shaped | None
) -> Shaped | None:
    """Return the shape of a reduced chunk, whose axes keep length 1; dask annotates them longer."""
    keywords = {**getattr(function, "keywords", {}), **kwargs}
    axes, of = keywords.get("axis"), given[0].shaped if len(given) == 1 else None
    if noted is None or of is None or not keywords.get("keepdims") or not isinstance(axes, tuple):
        return noted
    gone = {axis % len(of.shape) for axis in axes}
    return noted._replace(shape=tuple(1 if k in gone else n for k, n in enumerate(of.shape)))


def _new(nbytes: int, shaped: Shaped | None) -> Held:
    return Held((Memory(nbytes),), nbytes, shaped)


def _layer_of(key: Any) -> str:
    """Return the layer name of a task, which may be part of a fused task."""
    name = key[0] if isinstance(key, tuple) else key
    return name.partition("_.")[0] if isinstance(name, str) else ""


def _beside(name: str, given: Sequence[Held], nbytes: int, shaped: Shaped | None) -> int:
    """Return the bytes of temporaries that a NumPy or user function may need."""
    taken = sum(one.nbytes for one in given)
    if name in MANIFOLD:
        return 16 * max((one.items for one in given), default=0)
    if name not in PRODUCTS:
        return 2 * max(taken, nbytes)
    # Operands are cast to the result dtype, and all but matmul reorder them.
    width = nbytes // max(1, math.prod(shaped.shape)) if shaped else 8
    others = (x for x in given if x.shaped is None or x.shaped.dtype.itemsize != width)
    return sum(x.items * width for x in others) + taken * (name != "matmul")


def _arrays(values: Any) -> Iterator[Held]:
    """Yield the arrays in nested values."""
    if isinstance(values, Held):
        yield values
    elif isinstance(values, np.ndarray):
        yield Held((), values.nbytes, Shaped(values.shape, values.dtype))
    elif isinstance(values, list | tuple):
        for one in values:
            yield from _arrays(one)


def _nbytes(value: Any) -> int:
    return sum(one.nbytes for one in _arrays(value))


def _stand_in(value: Any) -> Any:
    """Return a placeholder for an array that is represented by its shape."""
    if isinstance(value, list):
        return [*map(_stand_in, value)]
    if isinstance(value, Held) and value.shaped is not None:
        return np.broadcast_to(np.zeros((), value.shaped.dtype), value.shaped.shape)
    return value


def _shapes(values: Any) -> Any:
    if isinstance(values, list):
        return [*map(_shapes, values)]
    return getattr(values, "shape", ()), getattr(values, "dtype", None)


def _function_of(function: Any) -> tuple[str, Any]:
    """Return the name of a function, and the innermost function of partials and compositions."""
    inner = function
    while hasattr(inner, "func") or hasattr(inner, "funcs"):
        inner = inner.func if hasattr(inner, "func") else inner.funcs[0]
    return str(getattr(inner, "__name__", type(inner).__name__)).lstrip("_"), inner


def _has_nodes(values: Iterable[Any]) -> bool:
    return any(isinstance(x, Task | TaskRef | Alias | DataNode) for x in values)


def _is_contiguous(part: Sequence[int], whole_shape: Sequence[int]) -> bool:
    """Return whether a part of an array is contiguous."""
    pairs = [(n, m) for n, m in zip(part, whole_shape, strict=True)]
    while pairs and pairs[0][0] == 1:
        pairs.pop(0)
    return all(n == m for n, m in pairs[1:])
