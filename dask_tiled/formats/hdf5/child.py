"""The process that looks at HDF5 files for another one: the library that it asks may end it.

What does so is a damaged file, whose links go round in circles, or whose lengths are believed. So a
job has so much time of the processor for each step, and so much memory. Jobs on one file are done
by a fork of this process, which has seen no other file, and whose end costs nothing.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from dask_tiled.model.files import File, following, seen
from dask_tiled.remote.session import Session, opened_together
from dask_tiled.remote.stores import Place, Version

JOB, DONE, RAISED, ASKED, ANSWER, ENDED, RENEW = range(7)
"""What a message is."""
PRELOADED = ("dask_tiled.formats.hdf5.descriptor", "h5py", "numpy.ma", "encodings.ascii")
"""What is imported before there is a job."""
GONE, RENEWED, SILENT = range(3)
"""How a fork ends: nobody has a job any more; another fork is wanted; and nobody was told so."""

WAIT_SECONDS = 1.0
"""So long may a step take on the clock where the library would wait for a writer for ever."""

_seconds = 0.0
_waits = False


class Limits(NamedTuple):
    """What a job may take."""

    step: float
    """Seconds of the processor, for one step of it."""
    seconds: float
    """Seconds of the clock, for all of it."""
    nbytes: int
    """Bytes of memory, beside what the process has anyway."""


class Job(NamedTuple):
    """What is to be done."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    limits: Limits
    following: bool
    seen: Sequence[File]
    """As :mod:`dask_tiled.model.files` has it."""


class Asking(Session):
    """Files behind URLs, which the other process looks at: it has the connections."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection

    def look(self, url: str) -> tuple[Place, Version]:
        """Have it looked at."""
        found: tuple[Place, Version] = self._ask("look", url)
        return found

    def names(self, folder: str) -> list[str] | None:
        """Have it listed."""
        found: list[str] | None = self._ask("names", folder)
        return found

    def read(self, place: Place, version: Version, start: int, stop: int) -> Any:
        """Have it read."""
        return self._ask("read", place, version, start, stop)

    def _ask(self, name: str, *args: Any) -> Any:
        self._connection.send((ASKED, (name, args)))
        answer, error = self._connection.recv()[1]
        if error is not None:
            raise error
        return answer


def go_on() -> None:
    """Begin a step: whoever goes through many things says so for each of them."""
    if _seconds:
        signal.setitimer(signal.ITIMER_PROF, _seconds)
        signal.setitimer(signal.ITIMER_REAL, WAIT_SECONDS if _waits else 0)


def limit_waits(*, on: bool) -> None:
    """Let steps end by the clock, too, or no longer."""
    global _waits  # noqa: PLW0603
    _waits = on
    go_on()


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
    with (
        _limited(job.limits),
        following(job.following),
        seen(job.seen),
        opened_together(Asking(connection)),
    ):
        try:
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
def _limited(limits: Limits) -> Iterator[None]:
    """End this process when a job takes too long; let it have no more memory."""
    global _seconds, _waits  # noqa: PLW0603
    _limit("AS", _mapped() + limits.nbytes)
    _seconds = limits.step
    go_on()
    try:
        yield
    finally:
        _seconds, _waits = 0.0, False
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
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
