"""Limits of this process: a deadline that ends it, and its memory."""

from __future__ import annotations

import faulthandler
import signal
import time
from contextlib import suppress
from typing import Any

from dask_tiled.system.names import offered
from dask_tiled.system.resources import sysconf

_setitimer, _getitimer = offered("signal", "setitimer"), offered("signal", "getitimer")
_setrlimit, _getrlimit = offered("resource", "setrlimit"), offered("resource", "getrlimit")
_TIMERS = [offered("signal", name) for name in ("ITIMER_PROF", "ITIMER_REAL")]
_SIGNALS = [offered("signal", name) for name in ("SIGPROF", "SIGALRM", "SIGCHLD")]
_sigmask = offered("signal", "pthread_sigmask")
CPU_EXCEEDED, CLOCK_EXCEEDED = (
    (None, 1) if _setitimer is None else [-number for number in _SIGNALS[:2]]
)
"""Exit codes of processes that exceeded their deadlines."""

_end = 0.0


def reset() -> None:
    """Undo settings of signals that a process inherits, and write no core file."""
    for number in _SIGNALS:
        if number is not None:
            signal.signal(number, signal.SIG_DFL)
    if _sigmask is not None:
        _sigmask(signal.SIG_SETMASK, ())
    _limit("RLIMIT_CORE", 0)


def set_deadline(cpu: float, wall: float) -> None:
    """End the process after seconds of CPU time, or of wall time; 0 is unlimited.

    Without timers of the system, only wall time counts.
    """
    global _end  # noqa: PLW0603
    if _setitimer is not None:
        for timer, seconds in zip(_TIMERS, (cpu, wall), strict=True):
            _setitimer(timer, seconds)
    elif wall:
        _end = time.monotonic() + wall
        faulthandler.dump_traceback_later(wall, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


def seconds_left() -> tuple[float, float]:
    """Return the rest of both times."""
    if _getitimer is None:
        return 0, max(0.001, _end - time.monotonic())
    cpu, wall = (_getitimer(timer)[0] for timer in _TIMERS)
    return cpu, wall


def limit_memory(nbytes: int | None) -> None:
    """Limit what the process may map beyond its present use, if the system can."""
    _limit("RLIMIT_AS", None if nbytes is None else _mapped() + nbytes)


def _limit(name: str, most: int | None) -> None:
    """Limit a resource, if the system supports it; None restores the hard limit."""
    if _setrlimit is None or _getrlimit is None:
        return
    number, unlimited = offered("resource", name), offered("resource", "RLIM_INFINITY")
    _, hard = _getrlimit(number)
    within: Any = hard if most is None or most > hard != unlimited else most
    with suppress(OSError, ValueError):
        _setrlimit(number, (within, hard))


def _mapped() -> int:
    """Return the mapped bytes; 1 GiB if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1 << 30
