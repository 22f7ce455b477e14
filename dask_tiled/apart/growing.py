"""A pool of processes that grows when waiting has cost more than another process would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

UNTRIED = 2
"""Starts that waiting may cost while a process has not ended its first job: most of that may be its
own start."""

T = TypeVar("T")


class GrowingPool(Generic[T]):
    """Processes for one job at a time each.

    A job waits for a busy process, unless the time that jobs have waited since the last start
    exceeds that of a start: at any time, starts have taken no longer than waiting.

    Parameters
    ----------
    start : callable
        Returns a new process.
    seconds : float
        Duration of a start.
    """

    def __init__(self, start: Callable[[], T], seconds: float) -> None:
        self._start, self._seconds = start, seconds
        self._changed = threading.Condition()
        self._free: list[T] = []
        self._untried = set[int]()
        """Identities of processes that have not ended a job."""
        self._count = 0
        self._waited = 0.0

    def take(self, is_cancelled: Callable[[], bool] = bool) -> T | None:
        """Return a free process, or a new one; None after a cancellation.

        Errors are those of a start.
        """
        with self._changed:
            while not self._free and self._count and not is_cancelled():
                left = self._seconds * (UNTRIED if self._untried else 1) - self._waited
                if left <= 0:
                    break
                begun = monotonic()
                self._changed.wait(left)
                self._waited += monotonic() - begun
            if is_cancelled():
                return None
            if self._free:
                return self._free.pop()
            self._count += 1
            self._waited = 0.0
        return self._started()

    def _started(self) -> T:
        try:
            process = self._start()
        except BaseException:
            self.forget()
            raise
        with self._changed:
            self._untried.add(id(process))
        return process

    def add(self) -> None:
        """Start a process before there is a job."""
        with self._changed:
            self._count += 1
        process = self._started()
        with self._changed:
            self._free.append(process)
            self._changed.notify()

    def give(self, process: T) -> None:
        """Take a process back that has ended a job."""
        with self._changed:
            if id(process) in self._untried:
                self._untried.remove(id(process))
                self._waited = 0.0
            self._free.append(process)
            self._changed.notify()

    def forget(self, process: T | None = None) -> None:
        """Take note that a process has ended."""
        with self._changed:
            self._untried.discard(id(process))
            self._count -= 1
            self._changed.notify()

    def wake(self) -> None:
        """Let jobs that wait ask whether they are cancelled."""
        with self._changed:
            self._changed.notify_all()

    def close(self, end: Callable[[T], object]) -> None:
        """End the free processes."""
        with self._changed:
            while self._free:
                process = self._free.pop()
                self._untried.discard(id(process))
                self._count -= 1
                end(process)
