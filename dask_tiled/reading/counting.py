"""Count the bytes fetched from files, while a counter is active."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

counters: list[Counter] = []
"""The active counters; callers skip counting if there are none."""


class Counter:
    """Bytes fetched by all threads of this process while the counter is active."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = Lock()

    def add(self, nbytes: int) -> None:
        """Add fetched bytes."""
        with self._lock:
            self.nbytes += nbytes


@contextmanager
def counted() -> Iterator[Counter]:
    """Count the bytes of units and blocks fetched in the context, without the gaps between them."""
    counter = Counter()
    counters.append(counter)
    try:
        yield counter
    finally:
        counters.remove(counter)


def fetched(nbytes: int) -> None:
    """Add fetched bytes to all active counters."""
    for counter in [*counters]:
        counter.add(nbytes)
