"""How many bytes of files are fetched: counted where somebody asks, and only as long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

counters: list[Counter] = []
"""Those that count; where there are none, nobody needs to be told."""


class Counter:
    """Bytes that all threads of this process have fetched while it was there."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = Lock()

    def add(self, nbytes: int) -> None:
        """Count some more."""
        with self._lock:
            self.nbytes += nbytes


@contextmanager
def counted() -> Iterator[Counter]:
    """Count what is fetched meanwhile: the bytes of units and blocks, not what lies between."""
    counter = Counter()
    counters.append(counter)
    try:
        yield counter
    finally:
        counters.remove(counter)


def fetched(nbytes: int) -> None:
    """Tell those who count."""
    for counter in [*counters]:
        counter.add(nbytes)
