"""Child processes that read headers: a file that hangs or ends its reader is one problem."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from dask_tiled.apart.calls import DeadlineError, EndedError, Run, apart
from dask_tiled.apart.growing import GrowingPool

T = TypeVar("T")
MEMORY = 1 << 30
"""Bytes that the headers of a file may take."""
START_SECONDS = 1.0
"""Time to start a process, and to import the formats."""

Reader = tuple[ExitStack, Run]


class HeaderReaders:
    """Child processes, each of which runs one job at a time; for few files there is one.

    Parameters
    ----------
    seconds : float
        Deadline of a job, in CPU time; by the clock, it is ten times as long.
    prepare : callable
        Picklable function that is called first in each process, before any deadline.
    """

    def __init__(self, seconds: float, prepare: Callable[[], object]) -> None:
        self._seconds, self._prepare = seconds, prepare
        self._pool: GrowingPool[Reader] = GrowingPool(self._started, START_SECONDS)

    def __enter__(self) -> Self:
        """Return the readers."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the processes."""
        self._pool.close(lambda reader: reader[0].close())

    def read(
        self, function: Callable[..., T], *args: Any, alone: Callable[..., T] | None = None
    ) -> T:
        """Call a function in a child; if it ends its process, call ``alone`` in another one.

        Raises
        ------
        EndedError
            The second call ended its process, too, or the deadline was exceeded.
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
        reader = self._pool.take()
        assert reader is not None  # noqa: S101 - for the type checker: nothing is cancelled
        stack, run = reader
        try:
            found: T = run(self._seconds, MEMORY, function, *args)
        except BaseException:
            self._pool.forget(reader)
            stack.close()  # which ends the process if it is still busy
            raise
        self._pool.give(reader)
        return found

    def _started(self) -> Reader:
        stack = ExitStack()
        return stack, stack.enter_context(apart(prepare=self._prepare))
