"""The cluster on which a conversion computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class SchedulerPlace(NamedTuple):
    """A scheduler of dask, as another process connects to it."""

    address: str
    security: Any
    """Certificates, as a ``distributed.Security``; None without encryption."""

    @classmethod
    def of(cls, client: Any) -> SchedulerPlace:
        """Return the scheduler of a client."""
        return cls(client.scheduler.address, client.security)


@contextmanager
def connected(scheduler: SchedulerPlace | None) -> Iterator[None]:
    """Compute on a cluster in this context; None: in threads of this process."""
    if scheduler is None:
        yield
        return
    from distributed import Client

    with Client(scheduler.address, security=scheduler.security):
        yield
