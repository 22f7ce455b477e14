"""The tasks of a computation, each run as soon as the frames that it reads are there."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np

from dask_tiled.blocks.completing import complete
from dask_tiled.graphs.schedulers import cluster, scheduler_options
from dask_tiled.graphs.stages import Key, ReadyTasks, Stages
from dask_tiled.graphs.unfinished import Unfinished
from dask_tiled.reading.growing import GrowingSource
from dask_tiled.tiling import machine

BATCH = 0.04
"""Approximate seconds of the tasks that run between two looks at the files."""

Run = Callable[[ReadyTasks, Mapping[Key, Any]], dict[Key, Any]]
"""Runs tasks with the results that they need; returns the results of their ends."""


class ArrivingTasks:
    """The tasks of a computation on growing files.

    A task that reads runs when all its frames are there, in the order of the frames, and any other
    task when those that it needs are done. Results are kept while a task needs them.

    Parameters
    ----------
    stages : Stages
        The tasks.
    run : callable
    """

    def __init__(self, stages: Stages, run: Run) -> None:
        self._stages, self._run = stages, run
        self._values = dict[Key, Any]()
        self._done = set[Key]()
        self._batch = 2 * machine.processors()
        tasks = stages.tasks
        self._left = {key: len({*task.dependencies}) for key, task in tasks.items()}
        self._users = dict[Key, list[Key]]()
        for key in stages.order:
            for before in tasks[key].dependencies:
                self._users.setdefault(before, []).append(key)
        self._uses = Counter({key: len(users) for key, users in self._users.items()})
        self._total = sum(stages.read.values())
        self._read = 0
        self._ready = list[tuple[dict[GrowingSource, int], Key]]()
        self._in_order = True
        self._other = list[Key]()
        for key in [key for key, n in self._left.items() if not n]:
            self._queue(key)

    def _queue(self, key: Key) -> None:
        """Note that a task needs no results that are not there."""
        if key in self._stages.values:
            self._values[key] = self._stages.values[key]
            self._finish(key)
        elif self._stages.read[key]:
            self._ready.append((self._frames_of(key), key))
            self._in_order = False
        else:
            self._other.append(key)

    def _frames_of(self, key: Key) -> dict[GrowingSource, int]:
        """Return the last frame that a task reads of each growing source."""
        last = dict[GrowingSource, int]()
        for box, sources in self._stages.reads(key):
            for source in sources:
                if isinstance(source, GrowingSource):
                    last[source] = max(last.get(source, -1), source.last_frame(box))
        return last

    def _finish(self, key: Key) -> None:
        """Note that a task is done."""
        self._done.add(key)
        self._read += self._stages.read[key]
        for user in self._users.get(key, ()):
            self._left[user] -= 1
            if not self._left[user]:
                self._queue(user)

    @property
    def share(self) -> float:
        """Fraction of the pixels that have been read."""
        return self._read / self._total if self._total else float(self.are_done)

    @property
    def are_done(self) -> bool:
        """Whether all results are there."""
        return all(key in self._done for key in self._stages.wanted)

    def step(self, *, complete: bool) -> bool:
        """Run some tasks that can run; return whether there were any.

        ``complete`` runs tasks whose frames are missing, too.
        """
        chosen, later = list[Key](), list[tuple[dict[GrowingSource, int], Key]]()
        if not self._in_order:
            self._ready.sort(key=lambda one: max(one[0].values(), default=-1))
            self._in_order = True
        for last, key in self._ready:
            there = complete or all(n < x.layout.n_frames for x, n in last.items())
            if there and len(chosen) < self._batch:
                chosen.append(key)
            else:
                later.append((last, key))
        self._ready = later
        count = len(chosen)
        for key in chosen:
            self._finish(key)
        while self._other:  # those that combine results
            key = self._other.pop()
            chosen.append(key)
            self._finish(key)
        if not chosen:
            return False
        start = time.perf_counter()
        self._compute(chosen)
        seconds = time.perf_counter() - start
        if count == self._batch or seconds > BATCH:
            least = machine.processors()
            size = count * BATCH / max(seconds, 1e-4)
            self._batch = max(least, min(int(size), 2 * self._batch))
        return True

    def _compute(self, chosen: Sequence[Key]) -> None:
        tasks, wanted = self._stages.tasks, {*self._stages.wanted}
        some = {*chosen}
        ends = [
            key
            for key in chosen
            if key in wanted or any(user not in some for user in self._users.get(key, ()))
        ]
        inputs = {x for key in chosen for x in tasks[key].dependencies} - some
        given = {key: self._values[key] for key in inputs}
        graph = {key: tasks[key] for key in (*inputs, *chosen)}
        self._values |= self._run(ReadyTasks(graph, ends), given)
        used = Counter(x for key in chosen for x in tasks[key].dependencies)
        for key, n in used.items():
            self._uses[key] -= n
            if not self._uses[key] and key not in wanted:
                self._values.pop(key, None)

    def values(self) -> list[Any]:
        """Return the results; all have to be there."""
        return [self._values[key] for key in self._stages.wanted]

    def unfinished(self, arrays: Sequence[da.Array]) -> list[Any]:
        """Return the results so far, as masked arrays."""
        found = Unfinished(self._stages, self._values.__contains__, self._values.__getitem__)
        return [found.array(k, arr.shape, arr.chunks) for k, arr in enumerate(arrays)]


def run_tasks(ready: ReadyTasks, given: Mapping[Key, Any]) -> dict[Key, Any]:
    """Run tasks on dask's scheduler."""
    name = f"arriving-{uuid.uuid4().hex}"
    stores: dict[Key, tuple[Any, ...]] = dict.fromkeys(ready.ends, (_same,))
    graph = ready.graph(name, given, {}, stores)
    ends = {(name, n): key for n, key in enumerate(ready.ends)}
    if cluster() is None:  # without callbacks, which dask shares between threads
        options = scheduler_options()
        get = options.pop("scheduler")
        return dict(zip(ready.ends, get(graph.to_dict(), [*ends], **options), strict=True))
    of = da.Array(graph, name, ((1,) * len(ends),), meta=np.empty(0, bool))
    results = dict[Key, Any]()

    def take(end: Key, result: Any) -> None:
        results[ends[end]] = result

    complete(of, [*ends], done=lambda _: None, take=take)
    return results


def _same(value: Any) -> Any:
    return value
