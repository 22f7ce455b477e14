"""The child process that calls the HDF5 library, which may loop forever on damaged files.

A job has a deadline and a memory limit. It runs in a fork of the child, so that a crash is
harmless.
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
"""Modules to import before the first job."""
GONE, RENEWED, SILENT = range(3)
"""Exit codes of a fork: no more jobs; another fork is requested; died without replying."""
SECONDS_PER_FILE, SECONDS_PER_BYTE, MOST_SECONDS = 0.02, 1e-6, 30
"""Extra time for each further file and for each of its bytes, up to a total."""
BY_THE_CLOCK = 10
"""Wall-clock deadline as a multiple of the CPU deadline: the library may wait for a writer
forever without using the CPU."""


class Job(NamedTuple):
    """A function call for the child process."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    seconds: float
    """Deadline in CPU seconds."""
    nbytes: int
    """Memory limit in bytes, beyond what the process uses already."""
    following: bool
    seen: Sequence[File]
    """As in :mod:`dask_tiled.model.files`."""


class Asking(Session):
    """Remote files, read by the parent process, which has the connections."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection

    def _ask(self, name: str, *args: Any) -> Any:
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0)  # pauses the timer: servers may be slow
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
    """Run the jobs that come through a socket, until it is closed."""
    from multiprocessing.connection import Connection

    connection: Any = Connection(fd)
    for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # inherited settings are unknown
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _limit("CORE", 0)
    for name in PRELOADED:
        with suppress(ImportError):  # the job that needs it will raise
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
        if code in {GONE, -signal.SIGKILL}:  # killed, perhaps in the middle of a message
            return
        if code != RENEWED:
            connection.send((ENDED, -code))


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


def _do(job: Job, connection: Any) -> tuple[int, Any]:
    session = opened_together(Asking(connection))
    try:
        with _limited(job), following(job.following), seen(job.seen), session:
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
def _limited(job: Job) -> Iterator[None]:
    """Enforce the deadline and the memory limit of a job."""
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
    """Limit a resource, if the system supports it; None restores the hard limit."""
    import resource

    number = getattr(resource, f"RLIMIT_{name}")
    _, hard = resource.getrlimit(number)
    within = hard if most is None or most > hard != resource.RLIM_INFINITY else most
    with suppress(OSError, ValueError):
        resource.setrlimit(number, (within, hard))


def _mapped() -> int:
    """Return the mapped bytes; 1 GiB if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1 << 30
