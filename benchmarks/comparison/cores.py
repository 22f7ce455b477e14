"""The cores that a process may use. Nothing is imported here that starts threads."""

from __future__ import annotations

import os


def pin(threads: str) -> None:
    """Keep this process, and all that it starts, on some cores.

    Threads of BLAS that have nothing more to do wait for work without giving up their core, for
    long enough to slow down whoever has the next turn: they are told to go to sleep at once.

    Parameters
    ----------
    threads : str
        A number, or "all".
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2**4 cycles, instead of 2**26
    if threads == "all":
        return
    if not hasattr(os, "sched_setaffinity"):
        raise SystemExit("processes can be kept on some cores on Linux only: take --threads all")
    available = sorted(os.sched_getaffinity(0))
    if len(available) < int(threads):
        raise SystemExit(f"{threads} cores were asked for, {len(available)} are available")
    os.sched_setaffinity(0, available[: int(threads)])


def core_count() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
