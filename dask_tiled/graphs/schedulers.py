"""Where tasks run: in threads of this process, or elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from dask import config, threaded
from dask.base import get_scheduler
from dask.local import get_sync

Get = Callable[[Any, Any], Any]
"""A scheduler: computes keys of a graph."""


def scheduler() -> Any:
    """Return dask's scheduler: threads, unless one is configured or there is a client.

    dask would import distributed, which takes 0.2 s; where nobody has, there is no client.
    """
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
