"""Detect workers of a cluster, which limit their memory and send results over the network."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any


def on_a_cluster() -> bool:
    """Return whether the caller is a task of a distributed worker."""
    return _worker() is not None


def thread_limit() -> int | None:
    """Return the memory limit of a thread of this worker in bytes; None without a limit."""
    worker = _worker()
    limit: int | None = worker.memory_manager.memory_limit if worker else None
    return limit // worker.state.nthreads if limit else None


def name_worker(error: BaseException) -> None:
    """Add the worker of the caller to an error, once; in other processes, nothing."""
    worker = _worker()
    if worker is None:
        return
    note = f"on the worker {worker.address}: host {platform.node()}, process {os.getpid()}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _worker() -> Any:
    module = sys.modules.get("distributed.worker")
    if module is None:
        return None
    try:
        return module.get_worker()
    except ValueError:
        return None
