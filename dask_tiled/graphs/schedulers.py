"""Where tasks run: in threads of this process, or elsewhere."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import Any

from dask import config, threaded
from dask.base import get_scheduler
from dask.local import get_sync

from dask_tiled.foreign import Missing
from dask_tiled.graphs import names
from dask_tiled.system.forks import after_fork, held_at_fork

Get = Callable[[Any, Any], Any]
"""A scheduler: computes keys of a graph."""


_pool: ContextVar[Executor | None] = ContextVar("pool", default=None)


@contextmanager
def threads_of(pool: Executor) -> Iterator[None]:
    """Let this thread's :func:`scheduler` be the threads of a pool in this context.

    dask's configuration is that of all threads.
    """
    token = _pool.set(pool)
    try:
        yield
    finally:
        _pool.reset(token)


def scheduler_options() -> dict[str, Any]:
    """Return the scheduler, as options of dask's functions."""
    pool = _pool.get()
    return {"scheduler": scheduler()} | ({} if pool is None else {"pool": pool})


def scheduler() -> Any:
    """Return dask's scheduler: threads, unless one is configured or there is a client.

    dask would import distributed, which takes 0.2 s; where nobody has, there is no client.
    """
    if _pool.get() is not None:
        return threaded.get
    is_default = "distributed" not in sys.modules and not config.get("scheduler", None)
    return threaded.get if is_default else get_scheduler() or threaded.get


def cluster() -> Any:
    """Return the client of the cluster that computes, or None."""
    client = getattr(scheduler(), "__self__", None)
    return client if hasattr(client, "scheduler_info") else None


def get_here(given: Any = None) -> Get | None:
    """Return the scheduler if dask computes in threads of this process, otherwise None."""
    try:
        get: Get = scheduler() if given is None else get_scheduler(scheduler=given)
    except RuntimeError:  # a cluster's scheduler optimises graphs in threads without a client
        return None
    return get if get in (get_sync, threaded.get) else None


def _begin_fork() -> None:
    """Let a forked process compute in threads of its own: those of its parent do not exist in it.

    Pools of the parent would never run a task, and its client of a cluster never answer.
    """
    changed: dict[str, Any] = {}
    pools = names.pools
    if isinstance(pools, Missing) or isinstance(names.default_pool, Missing):
        changed["scheduler"] = "synchronous"
    else:
        of_threads = chain.from_iterable(some.values() for some in pools.values())
        for pool in filter(None, (threaded.default_pool, *of_threads)):
            atexit.unregister(pool.shutdown)
        threaded.default_pool = None
        pools.clear()
    if config.get("pool", None) is not None:
        changed["pool"] = None
    if cluster() is not None:
        changed["scheduler"] = "threads"
    if changed:
        config.set(changed)


for _lock in (names.config_lock, names.pools_lock, names.tokenize_lock):
    held_at_fork(_lock)
after_fork(_begin_fork)
