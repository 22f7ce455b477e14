"""Run tasks until all are done: in threads, in processes, or on a cluster that may lose workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import wait
from queue import Empty, SimpleQueue
from typing import Any

import dask.array as da
from dask.base import DaskMethodsMixin, compute, persist
from dask.callbacks import Callback
from dask.highlevelgraph import HighLevelGraph

from dask_tiled.blocks.failures import Failures
from dask_tiled.errors import format_bytes, warn
from dask_tiled.graphs.schedulers import cluster, scheduler_options
from dask_tiled.model.indexing import Array
from dask_tiled.plans.tasks import Key

LOOK_SECONDS = 5.0
"""Seconds between looks at the workers."""


def complete(
    of: da.Array,
    keys: Sequence[Key],
    beside: Sequence[da.Array] = (),
    *,
    done: Callable[[Key], None],
    take: Callable[[Key, Any], None] | None = None,
) -> list[Array]:
    """Run some tasks of an array, and compute other arrays in the same graph.

    On a cluster, the result of a task is released as soon as the task is done, and a task that
    fails because of its machine is tried again on another one: see :class:`Failures`. A warning
    names workers that have paused.

    Parameters
    ----------
    of : dask.array.Array
        The array.
    keys : sequence of keys
        Its tasks to run.
    beside : sequence of dask.array.Array
        Arrays to compute in the same graph.
    done : callable
        Called with the key of each task that is done, in this thread.
    take : callable, optional
        Called with key and result of each task before ``done``, in this thread; by default results
        are dropped where they are.

    Returns
    -------
    list of ndarray
        The values of ``beside``.

    Raises
    ------
    Exception
        The error of a task; those that run are cancelled. On a cluster, its notes name the workers.
    """
    tasks, client = _Tasks(of, [*keys]), cluster()
    if client is not None:
        return _on_cluster(client, tasks, beside, done, take)

    def finished(key: Key, result: Any, *_: Any) -> None:
        if key in wanted:
            if take is not None:
                take(key, result)
            done(key)

    wanted, options = {*keys}, {"traverse": False} | scheduler_options()
    # Passed, not registered: schedulers of other threads take registered ones away meanwhile.
    options["callbacks"] = [*Callback.active, (None, None, None, finished, None)]
    _, *results = persist(tasks, *beside, **options)
    return [*compute(*results, **options)]


class _Tasks(DaskMethodsMixin):
    """Some of the tasks of an array, as a collection of dask."""

    def __init__(self, of: da.Array, keys: list[Key], graph: Any = None) -> None:
        self.of = of
        self.keys = keys
        self.graph = of.dask if graph is None else graph

    __dask_scheduler__ = staticmethod(da.Array.__dask_scheduler__)

    @property
    def __dask_optimize__(self) -> Callable[..., Any]:
        # It is set by the user, or the package's own.
        optimize: Callable[..., Any] = self.of.__dask_optimize__
        return optimize

    def __dask_graph__(self) -> HighLevelGraph:
        return self.graph

    def __dask_keys__(self) -> list[Key]:
        return self.keys

    def __dask_layers__(self) -> tuple[str, ...]:
        return (self.of.name,)

    def __dask_postcompute__(self) -> tuple[Any, tuple[Any, ...]]:
        return list, ()

    def __dask_postpersist__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuilt, (self.of, self.keys)


def _rebuilt(graph: Any, of: da.Array, keys: list[Key], **_: Any) -> _Tasks:
    return _Tasks(of, keys, graph)


def _on_cluster(
    client: Any,
    tasks: _Tasks,
    beside: Sequence[da.Array],
    done: Callable[[Key], None],
    take: Callable[[Key, Any], None] | None,
) -> list[Array]:
    """Run tasks on a cluster; return the values of ``beside``."""
    from distributed import futures_of

    first, *results = client.persist([tasks, *beside])
    own = {*tasks.keys}
    running = {future.key: future for future in futures_of([first, *results])}
    del first  # it would keep all results
    try:
        fetched = own if take is not None else set[Key]()
        futures, others = [*running.values()], [*running.keys() - own]
        for future, result in _finished(client, futures, others, fetched):
            if take is not None and future.key in own:
                take(future.key, result)
            del running[future.key]
            if future.key in own:
                future.release()
                done(future.key)
        return [*compute(*results, traverse=False)]
    finally:
        # Not cancelled: dask loses its scheduler if tasks that others depend on are cancelled.
        for future in [*running.values(), *futures_of(results)]:
            future.release()


def _finished(
    client: Any, futures: list[Any], results: Sequence[Key], fetched: Container[Key]
) -> Iterator[tuple[Any, Any]]:
    """Yield finished futures and their results; other workers try those that failed.

    ``results`` are keys of tasks that combine the results of others. Only results of the keys in
    ``fetched`` are fetched.
    """
    ended: SimpleQueue[Any] = SimpleQueue()
    failures, watch, left = Failures(client, results), _Watch(client), len(futures)
    while left:
        for future in futures:
            future.add_done_callback(ended.put)
        futures, errors = [], {}
        watch.look()
        for future in _ended(ended):
            if future.cancelled():
                future.result()  # raises
            if future.status == "finished":
                found = _fetch(client, future, watch) if future.key in fetched else [None]
                if found:
                    left -= 1
                    yield future, found.pop()
                    continue
            futures.append(future)  # started again meanwhile, or to be tried again
            if future.status == "error":
                errors[future.key] = future.exception()
        if errors:
            failures.move(errors)


def _ended(queue: SimpleQueue[Any]) -> Iterator[Any]:
    """Yield futures that have ended, after at most a second of waiting for the first."""
    try:
        yield queue.get(timeout=1)
        while True:
            yield queue.get_nowait()
    except Empty:
        return


def _fetch(client: Any, future: Any, watch: _Watch) -> list[Any]:
    """Return the result of a finished task in a list, which is empty if its worker is lost.

    dask would compute it again, and wait for as long as there is no worker.
    """
    loop = client.loop.asyncio_loop
    result = asyncio.run_coroutine_threadsafe(client.gather([future], asynchronous=True), loop)
    while future.status == "finished":
        if wait([result], 1).done and (result.exception() is None or future.status == "finished"):
            found: list[Any] = result.result()
            return found
        watch.look()
    result.cancel()
    return []


class _Watch:
    """Warns of workers that have paused, or are all lost: a run may wait for them for ever."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._due = time.monotonic() + LOOK_SECONDS
        self._paused: set[str] = set()
        self._looks_without = 0

    def look(self) -> None:
        """Look at the workers if it is time."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + LOOK_SECONDS
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        self._looks_without = 0 if workers else self._looks_without + 1
        if self._looks_without == 2:  # a busy scheduler answers late, and dask tells of none then
            warn("the cluster has no workers: tasks wait until one joins")
        paused = {name for name, told in workers.items() if told.get("status") == "paused"}
        for name in sorted(paused - self._paused):
            limit, used = workers[name]["memory_limit"], workers[name]["metrics"].get("memory", 0)
            share = f" at {used / limit:.0%} of its memory limit of {format_bytes(limit)}"
            warn(
                f"{name}: the worker is paused{share if limit else ''}, and starts no task until "
                "its memory is freed"
            )
        self._paused = paused
