"""Jobs that another process does, because they may end the process that does them.

A process is started for the first job, and does the next ones, too; several do them beside each
other where threads ask. They go when this one does.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

from dask_tiled.errors import DatasetError
from dask_tiled.formats.hdf5.child import (
    ANSWER,
    ASKED,
    DONE,
    ENDED,
    JOB,
    RAISED,
    RENEW,
    Job,
    Limits,
)
from dask_tiled.model.files import is_following, seen_files
from dask_tiled.model.paths import SHORT, with_room
from dask_tiled.remote.session import session

START_SECONDS = 120
"""So long may it take to start a process: it imports NumPy, perhaps from a slow disk."""
MOST_IDLE = 2
"""So many processes are kept for later jobs."""
START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from dask_tiled.formats.hdf5.child import serve
serve(int(sys.argv[2]))
"""

Run = Callable[..., Any]
"""``run(limits, function, *args)``: let another process call a function that it can import."""


class EndedError(Exception):
    """A process has ended, or was ended, in the middle of a job."""

    def __init__(self, why: str, *, once_more: bool = False, waited: bool = False) -> None:
        super().__init__(why)
        self.once_more = once_more
        """Whether that may be the fault of the jobs before, which this one can go without."""
        self.waited = waited
        """Whether it did nothing but wait for a writer."""


class Child:
    """A process, and the socket through which it gets its jobs."""

    def __init__(self) -> None:
        from fcntl import F_DUPFD_CLOEXEC, fcntl
        from multiprocessing.connection import Pipe
        from multiprocessing.spawn import get_executable
        from subprocess import DEVNULL, Popen

        self.busy = True
        """Whether the answer to a job is awaited."""
        self.fresh = True
        """Whether it has done no job yet."""
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        self.connection, theirs = Pipe()
        with theirs:  # 0 to 2, which may be closed here, mean something else there
            given = fcntl(theirs.fileno(), F_DUPFD_CLOEXEC, 3)
        try:
            self.process = Popen(  # noqa: S603 - our own
                [get_executable() or "", "-P", "-c", START, paths, str(given)],
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                pass_fds=[given],
                process_group=0,  # a terminal interrupts this process alone
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # what has threads forks badly
            )
        finally:
            os.close(given)
        _children.add(self)
        try:
            self._answer(START_SECONDS)
            self.fresh = True
        except BaseException:
            self.end()
            raise

    def run(self, limits: Limits, function: Callable[..., Any], *args: Any) -> Any:
        """Let it call a function that it can import; give the result, or raise what it raises.

        Raises
        ------
        EndedError
            It does not come to an end, or ends its process.
        """
        self.busy = True
        with suppress(ConnectionError):
            self.connection.send((JOB, Job(function, args, limits, is_following(), seen_files())))
        return self._answer(limits.seconds)

    def _answer(self, seconds: float) -> Any:
        kind: int = ASKED
        value: Any = None
        while kind == ASKED:
            if not self.connection.poll(seconds):
                raise EndedError(f"no answer in {seconds:.0f} s")
            try:
                kind, value = self.connection.recv()
            except (EOFError, ConnectionError):
                raise EndedError(f"the end of its process, with {self.process.wait()}") from None
            if kind == ASKED:
                self.connection.send((ANSWER, _answered(*value)))
        fresh, self.busy, self.fresh = self.fresh, False, kind != DONE
        if kind == ENDED and value in {signal.SIGPROF, signal.SIGALRM}:
            raise EndedError("no end to a step of it", waited=value == signal.SIGALRM)
        if kind == ENDED:
            why = f"the end of its process, with signal {value}"
            raise EndedError(why, once_more=not fresh)
        if kind == RAISED:
            raise value
        return value

    def renew(self) -> None:
        """Leave nothing in it of what it has done."""
        with suppress(ConnectionError):
            self.connection.send((RENEW, None))
        self.fresh = True

    def end(self) -> None:
        """End it, and what it has forked."""
        _children.discard(self)
        self.connection.close()
        if self.process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _answered(name: str, args: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    """Look at a file behind a URL."""
    try:
        return getattr(session(), name)(*args), None
    except (OSError, DatasetError) as error:
        return None, error


_children: WeakSet[Child] = WeakSet()
_idle: list[Child] = []
_starting = threading.Lock()
"""Where descriptors are short, one process is started at a time: that takes several of them."""


@contextmanager
def apart(*, renewed: bool = False) -> Iterator[Run]:
    """Have a process for some jobs, which does no others meanwhile.

    Parameters
    ----------
    renewed : bool
        Whether nothing may be left of them afterwards, such as files that are open.

    Yields
    ------
    callable
        :meth:`Child.run`.

    Raises
    ------
    DatasetError
        None can be started.
    """
    child = _taken()
    try:
        yield child.run
    finally:
        if child.busy or len(_idle) >= MOST_IDLE:
            child.end()
        else:
            if renewed:
                child.renew()
            _idle.append(child)


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
        problem = "no process can be started that looks at HDF5 files"
        raise DatasetError(problem, found=str(error)) from error


def _taken_idle() -> Child | None:
    while _idle:
        with suppress(IndexError):  # another thread was quicker
            child = _idle.pop()
            if child.process.poll() is None:
                return child
            child.end()
    return None


@atexit.register
def _end_all() -> None:
    for child in list(_children):
        child.end()


def _forget() -> None:
    """Leave the processes to who has started them: this one is a fork of that."""
    global _starting  # noqa: PLW0603
    for child in list(_children):
        child.process.returncode = 0
        child.connection.close()
    _children.clear()
    _idle.clear()
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_forget)
