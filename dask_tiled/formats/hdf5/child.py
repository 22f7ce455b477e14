"""The child process that calls the HDF5 library, which a damaged file may lead round in circles.

A job has a deadline and a limit of memory. It is done by a fork of this process, whose end costs
nothing.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partialmethod
from typing import Any, NamedTuple

from dask_tiled.formats.hdf5.tree import on_opening
from dask_tiled.model.files import File, following, seen
from dask_tiled.remote.session import Session, opened_together

JOB, DONE, RAISED, ASKED, ANSWER, ENDED, RENEW = range(7)
"""Kinds of messages."""
PRELOADED = ("dask_tiled.formats.hdf5.descriptor", "h5py", "numpy.ma", "encodings.ascii")
"""Modules that are imported before the first job."""
GONE, RENEWED, SILENT = range(3)
"""Exit codes of a fork: no more jobs; another fork is wanted; died without replying."""
SECONDS_PER_FILE, SECONDS_PER_BYTE, MOST_SECONDS = 0.02, 1e-6, 30
"""More for each further file and for each byte of it, up to a limit for all of them."""
BY_THE_CLOCK = 10
"""The deadline by the clock, as a multiple of that by the processor: the library would wait for a
writer for ever, at no cost."""


class Job(NamedTuple):
    """A function call that the child process makes."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    seconds: float
    """Deadline, in seconds of the processor."""
    nbytes: int
    """Bytes of memory, beside what the process has anyway."""
    following: bool
    seen: Sequence[File]
    """As :mod:`dask_tiled.model.files` has it."""


class Asking(Session):
    """Files behind URLs, which the other process looks at: it has the connections."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection

    def _ask(self, name: str, *args: Any) -> Any:
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0)  # servers take their time
        self._connection.send((ASKED, (name, args)))
        answer, error = self._connection.recv()[1]
        signal.setitimer(signal.ITIMER_REAL, left)
        if error is not None:
            raise error
        return answer

    look: Any = partialmethod(_ask, "look")
    names: Any = partialmethod(_ask, "names")
    read: Any = partialmethod(_ask, "read")


def serve(fd: int) -> None:
    """Do the jobs that come through a socket, until its other end is closed."""
    from multiprocessing.connection import Connection

    connection: Any = Connection(fd)
    for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # nobody knows what this process was given
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _limit("CORE", 0)
    for name in PRELOADED:
        with suppress(ImportError):  # jobs say so
            importlib.import_module(name)
    connection.send((DONE, None))
    while True:
        pid = os.fork()
        if not pid:
            code = SILENT
            try:
                code = _work(connection)
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code in {GONE, -signal.SIGKILL}:  # killed: perhaps in the middle of a message
            return
        if code != RENEWED:
            connection.send((ENDED, -code))


def _work(connection: Any) -> int:
    """Do jobs, up to the first that fails."""
    with suppress(EOFError, ConnectionError):
        while True:
            kind, job = connection.recv()
            if kind == RENEW:
                return RENEWED
            if kind == JOB:  # and not the answer to another fork
                kind, value = _do(job, connection)
                connection.send((kind, value))
                if kind == RAISED:
                    return RENEWED
    return GONE


def _do(job: Job, connection: Any) -> tuple[int, Any]:
    session = opened_together(Asking(connection))
    try:
        with _limited(job), following(job.following), seen(job.seen), session:
            return DONE, job.function(*job.args)
    except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
        return RAISED, _sendable(error)


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - errors of libraries, which need not stand that
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _limited(job: Job) -> Iterator[None]:
    """End this process at the deadline; let it have no more memory."""
    timers = {signal.ITIMER_PROF: 1, signal.ITIMER_REAL: BY_THE_CLOCK}
    rest: float = MOST_SECONDS

    def wait_longer(file: File) -> None:
        nonlocal rest
        more = min(SECONDS_PER_FILE + SECONDS_PER_BYTE * file.size, rest)
        rest -= more
        for timer, times in timers.items():
            left, _ = signal.getitimer(timer)
            signal.setitimer(timer, left + times * more)

    _limit("AS", _mapped() + job.nbytes)
    for timer, times in timers.items():
        signal.setitimer(timer, times * job.seconds)
    token = on_opening.set(wait_longer)
    try:
        yield
    finally:
        on_opening.reset(token)
        for timer in timers:
            signal.setitimer(timer, 0)
        _limit("AS", None)


def _limit(name: str, most: int | None) -> None:
    """Limit a resource, as far as the system knows it; None for what we were given."""
    import resource

    number = getattr(resource, f"RLIMIT_{name}")
    _, hard = resource.getrlimit(number)
    within = hard if most is None or most > hard != resource.RLIM_INFINITY else most
    with suppress(OSError, ValueError):
        resource.setrlimit(number, (within, hard))


def _mapped() -> int:
    """Count the bytes that are mapped; what the system does not tell is taken for 1 GiB."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1 << 30
