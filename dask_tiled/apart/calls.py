"""Run jobs in a child process, because a library may crash, hang, or take all memory.

A child is started for the first job and kept for later ones; several run concurrently if threads
need them. They end with this process.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from dask_tiled.apart.child import (
    ANSWER,
    ASKED,
    BY_THE_CLOCK,
    DONE,
    ENDED,
    JOB,
    RAISED,
    RENEW,
    ChildCall,
)
from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.files.file import File, is_filling, is_following, seen_files
from dask_tiled.files.paths import GIVES_BACK, SHORT, border, with_room
from dask_tiled.remote.session import session
from dask_tiled.system.forks import after_fork
from dask_tiled.system.limits import CLOCK_EXCEEDED, CPU_EXCEEDED
from dask_tiled.system.processes import end, fork, start

START_SECONDS = 120
"""Time to start a process, which imports NumPy, perhaps from a slow disk."""
MOST_IDLE = 2
"""Idle processes to keep."""
SECONDS, SECONDS_PER_BYTE, MOST_SECONDS = 0.3, 1e-6, 10
"""Deadline of a job on a file, plus time per byte of it, up to a limit: an object takes some 0.1
ms, and up to 20,000 objects are read."""
MEMORY, MEMORY_RATIO, MOST_MEMORY = 192 << 20, 32, 8 << 30
"""Memory of a job on a file, plus bytes per byte of the file, up to a limit: a chunk index needs
several times its size in the file."""
PRELOADED: list[str] = []
"""Modules that a child imports before its first job; packages add those that they need."""

T = TypeVar("T")


class EndedError(Exception):
    """The process of a job has ended, or was terminated."""


class DeadlineError(EndedError):
    """A job exceeded its deadline, in CPU time."""


class ClockError(DeadlineError):
    """A job exceeded its deadline by the clock."""


_here: ContextVar[bool] = ContextVar("here", default=False)


@contextmanager
def reading_here() -> Iterator[None]:
    """Read files in this process, which is itself the child of another one."""
    token = _here.set(True)
    try:
        yield
    finally:
        _here.reset(token)


def safely(file: File, library: str, *attempts: Callable[[], T]) -> T:
    """Read a file in a child process, within limits of time and memory that grow with the file.

    Parameters
    ----------
    file : File
    library : str
        Name of the library that may crash, for errors.
    *attempts : callable
        Functions without arguments that pickle, and return a value that pickles, such as a partial
        function of a module. They are tried in turn.

    Returns
    -------
    object
        The result of the first attempt that does not crash or exceed a limit.

    Raises
    ------
    CorruptFileError
        All attempts crash or exceed a limit.
    DatasetError
        No process can be started.
    Exception
        Whatever an attempt raises.
    """
    if _here.get():
        return attempts[0]()
    seconds = SECONDS + min(SECONDS_PER_BYTE * file.size, MOST_SECONDS)
    nbytes = MEMORY + min(MEMORY_RATIO * file.size, MOST_MEMORY)
    why = EndedError()
    for attempt in attempts:
        try:
            with apart() as run:
                found: T = run(seconds, nbytes, attempt)
        except EndedError as error:
            why = error
        else:
            return found
    problem = f"{library} crashes or hangs on the file"
    raise CorruptFileError(problem, path=file.path, found=str(why)) from why


class Child:
    """A process, and the socket that it gets its jobs through; it is called to run one."""

    def __init__(self) -> None:
        self.prepare: Callable[[], Any] | None = None
        """Function to call before the first job, and in each process that replaces another."""
        self._start()

    def _start(self) -> None:
        self.busy = True
        """Whether a job is running."""
        self.fresh = True
        """Whether no job has run yet."""
        self.prepared = False
        """Whether `prepare` was called."""
        # Processes with threads fork badly.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        module = "dask_tiled.apart.child"
        self.process, self.connection = start(module, PRELOADED, environment=environment)
        _children.add(self)
        try:
            self._answer(START_SECONDS)
            self.busy = False
        except BaseException:
            self.end()
            raise

    def __call__(
        self,
        seconds: float,
        nbytes: int,
        function: Callable[..., Any],
        *args: Any,
        clock: float | None = None,
    ) -> Any:
        """Call a picklable function in the child, and return its result.

        Parameters
        ----------
        seconds : float
            Deadline in CPU seconds.
        nbytes : int
            Memory limit, in addition to the present use.
        function, *args
            Function and arguments.
        clock : float, optional
            Deadline by the clock, in seconds; by default ten times as long.

        Raises
        ------
        EndedError
            The function exceeds the deadline, or its process ends.
        """
        self.busy, fresh = True, self.fresh
        clock = BY_THE_CLOCK * seconds if clock is None else clock
        if self.prepare is not None and not self.prepared:
            self._asked(START_SECONDS, BY_THE_CLOCK * START_SECONDS, nbytes, self.prepare)
        kind, value = self._asked(seconds, clock, nbytes, function, *args)
        self.busy, self.fresh = kind == ENDED and fork is None, kind != DONE
        self.prepared = kind == DONE
        if kind == ENDED and value == CPU_EXCEEDED:
            raise DeadlineError(f"the deadline was exceeded: {seconds:g} s of CPU time")
        if kind == ENDED and value == CLOCK_EXCEEDED:
            raise ClockError(f"the deadline was exceeded: {clock:g} s by the clock")
        if kind == ENDED and not fresh:  # an earlier job may have caused it
            if fork is None:
                self.end()
                self._start()
            return self(seconds, nbytes, function, *args, clock=clock)
        if kind == ENDED:
            how = f"signal {-value}" if value < 0 else f"exit code {value}"
            raise EndedError(f"the process ended with {how}")
        if kind == RAISED:
            raise value
        return value

    def _asked(
        self,
        seconds: float,
        clock: float,
        nbytes: int,
        function: Callable[..., Any],
        *args: Any,
    ) -> tuple[int, Any]:
        with suppress(ConnectionError):
            states = is_following(), is_filling(), seen_files(), border()
            job = ChildCall(function, args, seconds, clock, nbytes, *states)
            self.connection.send((JOB, job))
        try:
            return self._answer()
        except EndedError:
            if fork is not None:
                raise
            return ENDED, self.process.wait()

    def _answer(self, seconds: float | None = None) -> tuple[int, Any]:
        kind: int = ASKED
        value: Any = None
        while kind == ASKED:
            if not self.connection.poll(seconds):
                raise EndedError(f"no reply in {seconds} s")
            try:
                kind, value = self.connection.recv()
            except (EOFError, ConnectionError):
                raise EndedError(f"the process ended with {self.process.wait()}") from None
            if kind == ASKED:
                self.connection.send((ANSWER, _answered(*value)))
        return kind, value

    def kill(self) -> None:
        """Terminate the process and its forks, also while another thread waits for a reply."""
        end(self.process)

    def end(self) -> None:
        """Terminate the process and its forks, and forget it."""
        _children.discard(self)
        self.connection.close()
        self.kill()


def _answered(name: str, args: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    """Answer a request for a remote file."""
    try:
        return getattr(session(), name)(*args), None
    except (OSError, DatasetError) as error:
        return None, error


_children: WeakSet[Child] = WeakSet()
_idle: list[Child] = []
_starting = threading.Lock()
"""Serialises starts when descriptors are scarce: a start needs several."""


@contextmanager
def apart(*, renewed: bool = False, prepare: Callable[[], Any] | None = None) -> Iterator[Child]:
    """Borrow a child process for some jobs.

    Parameters
    ----------
    renewed : bool
        Whether to discard all state afterwards, such as open files.
    prepare : callable, optional
        Function that is called before the first job without a deadline, to import modules.

    Yields
    ------
    Child
        The process.

    Raises
    ------
    DatasetError
        No process can be started.
    """
    child = _taken()
    child.prepare, child.prepared = prepare, False
    try:
        yield child
    finally:
        if child.busy:
            child.end()
        else:
            if renewed:
                child.fresh = True
                with suppress(ConnectionError):
                    child.connection.send((RENEW, None))
            _idle.append(child)
            _end_idle(MOST_IDLE)


def _taken() -> Child:
    try:
        try:
            return _taken_idle() or Child()
        except OSError as error:
            if error.errno not in SHORT:
                raise
        with _starting:
            return with_room(lambda: _taken_idle() or Child(), sys.executable or "")
    except (EndedError, OSError) as error:
        problem = "cannot start a process to read files"
        raise DatasetError(problem, found=str(error)) from error


def _taken_idle() -> Child | None:
    while _idle:
        with suppress(IndexError):  # another thread took it
            child = _idle.pop()
            if child.process.poll() is None:
                return child
            child.end()
    return None


def _end_idle(most: int) -> None:
    """End idle processes beyond a number: each holds a descriptor."""
    while len(_idle) > most and (child := _taken_idle()) is not None:
        child.end()


GIVES_BACK.append(partial(_end_idle, 0))


@atexit.register
def _end_all() -> None:
    for child in list(_children):
        child.end()


def _forget() -> None:
    """Forget the children in a forked process; the parent owns them."""
    global _starting  # noqa: PLW0603
    for child in list(_children):
        child.process.returncode = 0
        child.connection.close()
    _children.clear()
    _idle.clear()
    _starting = threading.Lock()


after_fork(_forget)
