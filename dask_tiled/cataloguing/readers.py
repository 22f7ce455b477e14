"""Child processes that read headers: a file that hangs or ends its reader is one problem."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from dask_tiled.apart.calls import Child, ClockError, DeadlineError, EndedError, apart
from dask_tiled.apart.growing import GrowingPool

T = TypeVar("T")
MEMORY = 1 << 30
"""Bytes that the headers of a file may take."""
START_SECONDS = 1.0
"""Time to start a process, and to import the formats."""


class HeaderReader(NamedTuple):
    """A child process, and the context that borrows it."""

    borrowed: ExitStack
    child: Child

    def release(self) -> None:
        """Release the process; it ends if it is still busy."""
        self.borrowed.close()


class HeaderReaders:
    """Child processes, each of which runs one job at a time; for few files there is one.

    Leaving the context ends the processes, also those of jobs that threads wait for.

    Parameters
    ----------
    seconds : float
        Deadline of a job, in CPU time.
    prepare : callable
        Picklable function that is called first in each process, before any deadline.
    clock : float, optional
        Deadline of a job by the clock, in seconds; by default ten times as long.
    longer : str
        Option that errors by the clock propose.
    """

    def __init__(
        self,
        seconds: float,
        prepare: Callable[[], object],
        clock: float | None = None,
        longer: str = "",
    ) -> None:
        self._seconds, self._prepare, self._clock = seconds, prepare, clock
        self._longer = longer
        self._pool: GrowingPool[HeaderReader] = GrowingPool(self._started, START_SECONDS)
        self._lock, self._busy, self._is_closed = threading.Lock(), set[HeaderReader](), False

    def __enter__(self) -> Self:
        """Return the readers."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the processes that are busy, and release the others."""
        with self._lock:
            self._is_closed = True
            for reader in self._busy:
                reader.child.kill()
        self._pool.wake()
        self._pool.close(HeaderReader.release)

    def read(
        self, function: Callable[..., T], *args: Any, alone: Callable[..., T] | None = None
    ) -> T:
        """Call a function in a child; if it ends its process, call ``alone`` in another one.

        Raises
        ------
        EndedError
            The second call ended its process, too, or the deadline was exceeded.
        CancelledError
            The context was left.
        """
        try:
            return self._run(function, *args)
        except DeadlineError:
            raise
        except EndedError:
            if alone is None:
                raise
            return self._run(alone, *args)

    def _run(self, function: Callable[..., T], *args: Any) -> T:
        reader = self._pool.take(lambda: self._is_closed)
        if reader is None:
            raise CancelledError
        is_ready = False
        try:
            with self._lock:
                if self._is_closed:
                    raise CancelledError
                self._busy.add(reader)
            found: T = reader.child(self._seconds, MEMORY, function, *args, clock=self._clock)
            is_ready = True
        except ClockError as error:
            hint = f". If the file is only slow, pass {self._longer}" if self._longer else ""
            raise ClockError(f"{error}{hint}") from None
        finally:
            with self._lock:
                self._busy.discard(reader)
                is_ready = is_ready and not self._is_closed
                if is_ready:
                    self._pool.give(reader)
            if not is_ready:
                self._pool.forget(reader)
                reader.release()
        return found

    def _started(self) -> HeaderReader:
        stack = ExitStack()
        return HeaderReader(stack, stack.enter_context(apart(prepare=self._prepare)))
