"""Lend workspaces to tasks: reused memory is faster, as fresh pages cost a fault each.

Tasks hold no memory themselves: workers keep them for as long as a client wants their results.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dask_tiled.reading.limits import IDLE_SECONDS
from dask_tiled.reading.reader import Workspace

_idle: deque[tuple[float, Workspace]] = deque()
"""Workspaces that no task uses, and since when; the process has at most one for each thread."""
_freeing: list[threading.Thread] = []
_never = threading.Event()


@contextmanager
def lent_workspace() -> Iterator[Workspace]:
    """Lend the workspace that was used last, or a new one; after an error it is dropped."""
    try:
        _, workspace = _idle.pop()
    except IndexError:
        workspace = Workspace()
    with workspace:
        yield workspace
    _idle.append((time.monotonic(), workspace))
    if not any(thread.is_alive() for thread in _freeing):  # a fork has no threads
        _freeing[:] = [threading.Thread(target=_free, name="dask-tiled-memory", daemon=True)]
        _freeing[0].start()


def _free() -> None:
    """Free idle memory until none is left."""
    while _idle:
        _never.wait(IDLE_SECONDS)
        while _idle and _idle[0][0] < time.monotonic() - IDLE_SECONDS:
            # A task may have taken the workspace meanwhile.
            with suppress(IndexError):
                _idle.popleft()
