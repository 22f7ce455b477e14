"""The child process that calls libraries, which may loop forever on damaged files.

A job has a deadline and a memory limit. It runs in a fork of the child, so that a crash is
harmless. Without forks a crash ends the child, and its parent starts another one.
"""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partialmethod
from typing import Any, NamedTuple

from dask_tiled.files.file import File, filling, following, seen
from dask_tiled.files.paths import Border, within
from dask_tiled.remote.session import Session, opened_together
from dask_tiled.system.limits import limit_memory, reset, seconds_left, set_deadline
from dask_tiled.system.processes import connection_of, fork

JOB, DONE, RAISED, ASKED, ANSWER, ENDED, RENEW = range(7)
"""Kinds of messages."""
RENEWING: list[Callable[[], None]] = []
"""Functions that discard what jobs have kept, such as open files; libraries add theirs."""
on_opening: ContextVar[Callable[[File], object]] = ContextVar("on_opening", default=id)
"""To be called by a job for each further file, before a library opens it."""
KILLED = 9
GONE, RENEWED, SILENT = range(3)
"""Exit codes of a fork: no more jobs; another fork is requested; died without replying."""
SECONDS_PER_FILE, SECONDS_PER_BYTE, MOST_SECONDS = 0.02, 1e-6, 30
"""Extra time for each further file and for each of its bytes, up to a total."""
BY_THE_CLOCK = 10
"""Default of the wall-clock deadline as a multiple of the CPU deadline: the library may wait for a
writer forever without using the CPU."""


class ChildCall(NamedTuple):
    """A function call for the child process."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    seconds: float
    """Deadline in CPU seconds."""
    clock: float
    """Deadline in seconds by the clock."""
    nbytes: int
    """Memory limit in bytes, beyond what the process uses already."""
    following: bool
    filling: bool
    seen: Sequence[File]
    """As in :mod:`dask_tiled.files.file`."""
    border: Border | None


class Asking(Session):
    """Remote files, read by the parent process, which has the connections."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection

    def _ask(self, name: str, *args: Any) -> Any:
        cpu, wall = seconds_left()
        set_deadline(cpu, 0)  # servers may be slow
        self._connection.send((ASKED, (name, args)))
        answer, error = self._connection.recv()[1]
        set_deadline(seconds_left()[0], wall)
        if error is not None:
            raise error
        return answer

    look: Any = partialmethod(_ask, "look")
    names: Any = partialmethod(_ask, "names")
    read: Any = partialmethod(_ask, "read")


def serve(number: int, preloaded: Sequence[str]) -> None:
    """Run the jobs that come through a connection, until it is closed."""
    connection = connection_of(number)
    reset()
    for name in preloaded:
        with suppress(ImportError):  # the job that needs it will raise
            importlib.import_module(name)
    connection.send((DONE, None))
    while True:
        if fork is None:
            code = _work(connection)
            for renew in RENEWING:
                renew()
        else:
            code = _forked(fork, connection)
        if code in {GONE, -KILLED}:  # killed, perhaps in the middle of a message
            return
        if code != RENEWED:
            connection.send((ENDED, code))


def _forked(fork: Callable[[], int], connection: Any) -> int:
    """Run jobs in a fork, and return its exit code."""
    pid = fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = SILENT
    try:
        code = _work(connection)
    finally:
        os._exit(code)


def _work(connection: Any) -> int:
    """Run jobs until the first one that fails."""
    with suppress(EOFError, ConnectionError):
        while True:
            kind, job = connection.recv()
            if kind == RENEW:
                return RENEWED
            if kind == JOB:  # ignores answers to an earlier fork
                kind, value = _do(job, connection)
                connection.send((kind, value))
                if kind == RAISED:
                    return RENEWED
    return GONE


def _do(job: ChildCall, connection: Any) -> tuple[int, Any]:
    session = opened_together(Asking(connection))
    try:
        asked = following(job.following), filling(job.filling)
        with _limited(job), asked[0], asked[1], seen(job.seen), within(job.border), session:
            return DONE, job.function(*job.args)
    except Exception as error:  # noqa: BLE001 - raised again in the parent process
        return RAISED, _sendable(error)


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled here
    except Exception:  # noqa: BLE001 - errors of libraries may not be picklable
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _limited(job: ChildCall) -> Iterator[None]:
    """Enforce the deadline and the memory limit of a job."""
    rest: float = MOST_SECONDS

    def wait_longer(file: File) -> None:
        nonlocal rest
        more = min(SECONDS_PER_FILE + SECONDS_PER_BYTE * file.size, rest)
        rest -= more
        cpu, wall = seconds_left()
        set_deadline(cpu + more, wall + BY_THE_CLOCK * more)

    limit_memory(job.nbytes)
    set_deadline(job.seconds, job.clock)
    token = on_opening.set(wait_longer)
    try:
        yield
    finally:
        on_opening.reset(token)
        set_deadline(0, 0)
        limit_memory(None)
