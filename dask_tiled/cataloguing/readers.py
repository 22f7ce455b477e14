"""Child processes that read headers: a file that hangs or ends its reader is one problem."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from dask_tiled.apart.calls import DeadlineError, EndedError, Run, apart

T = TypeVar("T")
MEMORY = 1 << 30
"""Bytes that the headers of a file may take."""


class HeaderReaders:
    """Child processes, each of which runs one job at a time; more are started when needed.

    Parameters
    ----------
    seconds : float
        Deadline of a job, in CPU time; by the clock, it is ten times as long.
    prepare : callable
        Picklable function that is called first in each process, before any deadline.
    """

    def __init__(self, seconds: float, prepare: Callable[[], object]) -> None:
        self._seconds, self._prepare = seconds, prepare
        self._free: list[tuple[ExitStack, Run]] = []

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
        while self._free:
            self._free.pop()[0].close()

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
        stack, run = self._free.pop() if self._free else self._started()
        try:
            found: T = run(self._seconds, MEMORY, function, *args)
        except BaseException:
            stack.close()  # which ends the process if it is still busy
            raise
        self._free.append((stack, run))
        return found

    def _started(self) -> tuple[ExitStack, Run]:
        stack = ExitStack()
        return stack, stack.enter_context(apart(prepare=self._prepare))
