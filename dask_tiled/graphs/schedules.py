"""Simulation of dask's schedulers: the order of tasks, and the memory held."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from dask_tiled.graphs.names import DataNode, order
from dask_tiled.model.indexing import Shaped


class Memory:
    """A block of memory that several values may share."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class Held(NamedTuple):
    """Value of a task: its shape, and the memory it refers to."""

    memory: tuple[Memory, ...]
    nbytes: int
    """Size of its items in bytes, wherever they are stored."""
    shaped: Shaped | None = None

    @property
    def items(self) -> int:
        """Number of items; of bytes if the shape is unknown."""
        return math.prod(self.shaped.shape) if self.shaped else self.nbytes


class Done(NamedTuple):
    """Outcome of a task."""

    value: Any
    working: int = 0
    """Temporary bytes while the task runs."""
    results: Mapping[int, int] = {}
    """Bytes of the result buffers that the task writes into, by identity; they stay allocated."""


Graph = Mapping[Any, Any]
Steps = Iterable[tuple[bool, Any]]
"""Keys of tasks as they begin (True) and end (False), in order of time."""


def schedules(graph: Graph, threads: int) -> Iterator[Steps]:
    """Yield plausible schedules of a graph, for different durations of tasks."""
    yield steps(graph, threads, first_of)
    if threads > 1:
        yield steps(graph, threads, lambda running: len(running) - 1)
        chance = Random(0)  # noqa: S311 - reproducible
        yield steps(graph, threads, lambda running: chance.randrange(len(running)))


def first_of(running: Sequence[Any]) -> int:  # noqa: ARG001 - unused here
    """Choose the task that began first."""
    return 0


def steps(graph: Graph, threads: int, ending: Callable[[Sequence[Any]], int]) -> Steps:
    """Yield the begin and end of tasks as in dask's local schedulers: last ready, first run."""
    priorities = order(dict(graph)) if len(graph) > 1 else dict.fromkeys(graph, 0)
    there = [key for key, task in graph.items() if isinstance(task, DataNode)]
    waiting = {key: set(task.dependencies) & graph.keys() for key, task in graph.items()}
    users: dict[Any, list[Any]] = defaultdict(list)
    for key in sorted(graph, key=priorities.__getitem__, reverse=True):
        for x in waiting[key]:
            users[x].append(key)
    for key in there:
        yield True, key
        yield False, key
        for x in users[key]:
            waiting[x].discard(key)
    ready = [
        key
        for key, needed in waiting.items()
        if not needed and not isinstance(graph[key], DataNode)
    ]
    ready.sort(key=priorities.__getitem__, reverse=True)
    running = list[Any]()
    while ready or running:
        while ready and len(running) < threads:
            running.append(ready.pop())
            yield True, running[-1]
        key = running.pop(ending(running))
        yield False, key
        for x in users[key]:
            waiting[x].discard(key)
            if not waiting[x]:
                ready.append(x)


def peak_of(graph: Graph, done: Mapping[Any, Done], wanted: Collection[Any], course: Steps) -> int:
    """Return the peak memory of a schedule in bytes."""
    users = Counter(x for task in graph.values() for x in task.dependencies)
    shown, results = Counter[int](), dict[int, int]()
    live = peak = 0

    def leave(key: Any) -> int:
        gone = 0
        for memory in memory_in(done[key].value):
            shown[id(memory)] -= 1
            gone += memory.nbytes * (not shown[id(memory)])
        return gone

    for begins, key in course:
        one = done[key]
        if begins:
            for place in one.results.keys() - results.keys():
                results[place] = one.results[place]
                live += results[place]
            live += one.working
            for memory in memory_in(one.value):
                live += memory.nbytes * (not shown[id(memory)])
                shown[id(memory)] += 1
            peak = max(peak, live)
            continue
        live -= one.working
        for x in graph[key].dependencies:
            users[x] -= 1
            if not users[x] and x not in wanted and x in done:
                live -= leave(x)
    return peak


def memory_in(value: Any) -> Iterator[Memory]:
    """Yield the memory that a value refers to."""
    if isinstance(value, Held):
        yield from value.memory
    elif isinstance(value, list):
        for one in value:
            yield from memory_in(one)


def without(value: Any, some: Collection[int]) -> Any:
    """Remove memory that existed before."""
    if isinstance(value, Held):
        return value._replace(memory=tuple(m for m in value.memory if id(m) not in some))
    return [without(x, some) for x in value] if isinstance(value, list) else value
