"""Whether a task is done by a worker of a cluster, which counts its memory and sends results."""

from __future__ import annotations

import sys
from typing import Any


def on_a_cluster() -> bool:
    """Return whether this is a task of a distributed worker."""
    return _worker() is not None


def thread_limit() -> int | None:
    """Return the bytes that a thread of this task's worker may use; None without a limit."""
    worker = _worker()
    limit: int | None = worker.memory_manager.memory_limit if worker else None
    return limit // worker.state.nthreads if limit else None


def _worker() -> Any:
    module = sys.modules.get("distributed.worker")
    if module is None:
        return None
    try:
        return module.get_worker()
    except ValueError:
        return None
