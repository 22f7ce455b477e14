"""Computations in stages: which results of tasks are kept, and which tasks remain to be run.

The graph is the one that a scheduler gets. Results worth keeping are those of the tasks that the
last step needs, and those of tasks that combine chunks, once they represent enough bytes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

from dask.highlevelgraph import HighLevelGraph

from dask_tiled.graphs.aggregation import combined, finished
from dask_tiled.graphs.chunk_calls import ChunkCall, box_of_read
from dask_tiled.graphs.limits import KEPT_SHARE, LEAST_KEPT, MOST_KEPT
from dask_tiled.graphs.names import (
    Alias,
    DataNode,
    List,
    MaterializedLayer,
    Task,
    TaskRef,
    _execute_subgraph,
    flatten,
)
from dask_tiled.model.indexing import Box
from dask_tiled.reading.reader import Source

Key = Any
"""Key of a task: text, or text and integers."""
Call = tuple[Any, ...]
"""A function and its arguments."""
OURS = combined, finished
"""Functions that combine the results of chunks."""
COMBINING = "-partial-", "-aggregate-"
"""Parts of the names that dask gives to layers that combine chunks."""


class ReadyTasks(NamedTuple):
    """Tasks that can run now."""

    tasks: dict[Key, Any]
    """With the results that they need."""
    ends: list[Key]
    """Keys of the results to keep."""

    def graph(
        self,
        name: str,
        values: Mapping[Key, Any],
        calls: Mapping[Key, Call],
        stores: Mapping[Key, Call],
    ) -> HighLevelGraph:
        """Return a graph whose tasks ``(name, number)`` store the results.

        Its keys are new: tasks of an earlier run, which may still be on a cluster, were computed
        from other results.

        Parameters
        ----------
        values, calls : mapping
            Results that are there, and functions with arguments that load such results.
        stores : mapping
            Functions with the first arguments; the result follows.
        """
        own = {key: _renamed(key, name) for key in self.tasks}
        tasks = dict[Key, Any]()
        for key, task in self.tasks.items():
            if key in values:
                tasks[own[key]] = DataNode(own[key], values[key])
            elif key in calls:
                tasks[own[key]] = Task(own[key], *calls[key])
            else:
                tasks[own[key]] = task.substitute(own, key=own[key])
        for number, key in enumerate(self.ends):
            tasks[name, number] = Task((name, number), *stores[key], TaskRef(own[key]))
        return HighLevelGraph({name: MaterializedLayer(tasks)}, {name: set()})


class Stages:
    """The tasks of a computation.

    Parameters
    ----------
    graph : mapping
        All tasks, or an expression of dask.
    keys : nested sequence of keys
        The results.
    block_bytes : int
        Bytes of the largest chunk of a result.
    """

    def __init__(self, graph: Any, keys: Any, block_bytes: int) -> None:
        tasks = graph if isinstance(graph, Mapping) else graph.__dask_graph__()
        self.wanted = keys_in(keys)
        self.tasks = needed_tasks(tasks, self.wanted, ())
        self.read = {key: self._bytes_of(task) for key, task in self.tasks.items()}
        self.sources = {
            source.token: source
            for task in self.tasks.values()
            for _, sources in self._reads(task, self.tasks)
            for source in sources
        }
        self.counts_bytes = any(self.read.values())
        if not self.counts_bytes:  # other arrays: count the tasks that need no others
            self.read = {
                key: int(not task.dependencies and isinstance(task, Task))
                for key, task in self.tasks.items()
            }
        order = TopologicalSorter({k: task.dependencies for k, task in self.tasks.items()})
        self.order = [*order.static_order()]
        self.below = dict[Key, int]()
        """Bytes that a task and those before it read."""
        for key in self.order:
            before = self.tasks[key].dependencies
            self.below[key] = self.read[key] + sum(self.below[x] for x in before)
        self.kept = self._worth_keeping(block_bytes)
        nodes = {k: task for k, task in self.tasks.items() if isinstance(task, DataNode)}
        self.values = {key: node.value for key, node in nodes.items()}
        """Values that need no task."""

    def _worth_keeping(self, block_bytes: int) -> set[Key]:
        """Return the keys of results to keep."""
        total = sum(self.read.values())
        count = total // (KEPT_SHARE * max(1, block_bytes)) if self.counts_bytes else MOST_KEPT
        least = max(1, total // min(MOST_KEPT, max(LEAST_KEPT, count)))
        ends = {x for key in self.wanted for x in self.inputs(self.actual(key))}
        kept = {key for key in ends if self.below[key]} | {*self.wanted}
        since = dict[Key, int]()
        for key in self.order:
            task = self.tasks[key]
            since[key] = self.read[key] + sum(since[x] for x in task.dependencies)
            is_large = since[key] >= least and task.dependencies
            if is_large and isinstance(task, Task) and (combines(key) or task.func in OURS):
                kept.add(key)
            if key in kept:
                since[key] = 0
        return kept

    def actual(self, key: Key) -> Key:
        """Return the key of the task that an alias refers to."""
        while isinstance(self.tasks[key], Alias):
            key = self.tasks[key].target
        return key

    def inputs(self, key: Key) -> set[Key]:
        """Return the keys of the tasks that a task needs, without aliases."""
        return {self.actual(x) for x in self.tasks[key].dependencies}

    def remaining(self, there: Collection[Key]) -> set[Key]:
        """Return the keys of tasks that are still needed, and of results that they read."""
        return {*needed_tasks(self.tasks, self.wanted, there)}

    def bytes_left(self, there: Collection[Key]) -> int:
        """Return the bytes of pixels still to be read; repeated reads are counted."""
        total, there = 0, {*there}
        while True:
            ends, seen = self.next(there).ends, {*there}
            total += sum(self.newly_read(key, seen) for key in ends)
            if not ends:
                return total
            there.update(ends)

    def newly_read(self, key: Key, seen: set[Key]) -> int:
        """Return the bytes of pixels that are read for a result, besides what was seen before.

        The tasks of the result are added to ``seen``.
        """
        new = needed_tasks(self.tasks, [key], seen).keys() - seen
        seen |= new
        return sum(self.read[x] for x in new)

    def next(self, there: Collection[Key]) -> ReadyTasks:
        """Return the tasks of all results that depend on no other missing result."""
        left = self.remaining(there)
        waits = dict[Key, bool]()
        ends = list[Key]()
        for key in self.order:
            if key not in left or key in there:
                continue
            before = [x for x in self.tasks[key].dependencies if x not in there]
            waits[key] = any(waits[x] or x in self.kept for x in before)
            if key in self.kept and not waits[key]:
                ends.append(key)
        return ReadyTasks(needed_tasks(self.tasks, ends, there), ends)

    def reads(self, key: Key) -> Iterator[tuple[Box, list[Source]]]:
        """Yield the boxes and the sources that a task reads."""
        yield from self._reads(self.tasks[key], self.tasks)

    def _bytes_of(self, task: Any) -> int:
        """Return the bytes of pixels that a task reads itself."""
        found = 0
        for box, sources in self._reads(task, self.tasks):
            pixels = math.prod(b - a for a, b in box)
            found += pixels * sum(source.dtype.itemsize for source in sources)
        return found

    def _reads(self, task: Any, values: Mapping[Key, Any]) -> Iterator[tuple[Box, list[Source]]]:
        """Yield the boxes and the sources that a task reads, and tasks inside it."""
        if isinstance(task, List):
            task = [*task.args]
        if isinstance(task, list | tuple):
            for item in task:
                yield from self._reads(item, values)
        elif isinstance(task, Task) and task.func is _execute_subgraph:
            inner, _, names, *args = task.args
            given = {name: _value(x, values) for name, x in zip(names, args, strict=True)}
            for item in inner.values():
                yield from self._reads(item, given)
        elif isinstance(task, Task):
            yield from _reading(task, values)
            yield from self._reads([*task.args, *task.kwargs.values()], values)


def _reading(task: Task, values: Mapping[Key, Any]) -> Iterator[tuple[Box, list[Source]]]:
    """Yield the box and the sources that a task reads; nothing for another task."""
    args = [_value(x, values) for x in task.args]
    call, box = ChunkCall.of(task.func, args), box_of_read(args)
    if call is not None and call.pixels is None:
        sources = {x.token: x for recipe in call.recipes.recipes for x in recipe.read_sources}
        yield call.box, [*sources.values()]
    elif box is not None:
        yield box, [args[0]]


def _value(one: Any, values: Mapping[Key, Any]) -> Any:
    """Return the value of an argument that is data."""
    if isinstance(one, TaskRef):
        one = values.get(one.key)
    return one.value if isinstance(one, DataNode) else one


def needed_tasks(
    tasks: Mapping[Key, Any], keys: Collection[Key], there: Collection[Key]
) -> dict[Key, Any]:
    """Return the tasks that keys need; those that are there need no others."""
    needed, waiting = dict[Key, Any](), [*keys]
    while waiting:
        key = waiting.pop()
        if key not in needed:
            needed[key] = tasks[key]
            if key not in there:
                waiting += tasks[key].dependencies
    return needed


def keys_in(nested: Any) -> list[Key]:
    """Return nested keys in one list, each once."""
    return [*dict.fromkeys(flatten([nested]))]


def _renamed(key: Key, name: str) -> Key:
    return (f"{key[0]}-{name}", *key[1:]) if isinstance(key, tuple) else f"{key}-{name}"


def combines(key: Key) -> bool:
    """Return whether dask's task of a key combines the results of chunks."""
    name = key[0] if isinstance(key, tuple) else key
    return any(x in name for x in COMBINING)
