"""What is said while kernels are compiled: once, and afterwards how long it took.

That is a warning of the logger ``dask_tiled``, which Python writes to stderr, and notebooks show.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("dask_tiled")
SOON = 1.0
"""Seconds: kernels that follow one another so soon are compiled for the same work."""
NOTICEABLE = 0.2


class Notice:
    """Tells that something is compiled, and how long that took."""

    def __init__(self) -> None:
        self._spent, self._is_said = 0.0, False
        self._end: threading.Timer | None = None

    def begin(self) -> None:
        """Say that a kernel is compiled which is not there."""
        if not self._is_said:
            self._is_said = True
            atexit.register(self._last)
            LOGGER.warning("compiling for this kind of data; that is kept for the next time ...")

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure what is compiled, or only loaded, one kernel at a time."""
        if self._end is not None:
            self._end.cancel()
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - start
            if self._is_said and self._spent > NOTICEABLE:
                self._end = threading.Timer(SOON, self._finish)
                self._end.daemon = True
                self._end.start()

    def _finish(self) -> None:
        LOGGER.warning("... compiled in %.1f s", self._spent)
        self._spent = -float("inf")  # it is not said again

    def _last(self) -> None:
        """Say it now where the process ends too soon."""
        if self._end is not None and self._end.is_alive():
            self._end.cancel()
            self._finish()


NOTICE = Notice()
