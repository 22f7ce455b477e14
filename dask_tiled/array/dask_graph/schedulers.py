"""Where tasks run: in threads of this process, or elsewhere."""

from __future__ import annotations

from typing import Any

from dask import threaded
from dask.base import get_scheduler
from dask.local import get_sync


def is_here(scheduler: Any = None) -> bool:
    """Return whether dask computes in threads of this process."""
    return get_scheduler(scheduler=scheduler) in (None, get_sync, threaded.get)
