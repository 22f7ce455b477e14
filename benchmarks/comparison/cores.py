"""CPU affinity of the process. No module that starts threads is imported here."""

from __future__ import annotations

import os


def pin(threads: str) -> None:
    """Restrict this process and its children to a number of cores.

    Idle threads of BLAS spin for long enough to slow down the next reader: they are set to sleep at
    once.

    Parameters
    ----------
    threads : str
        Number of cores, or "all".
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2**4 cycles, instead of 2**26
    if threads == "all":
        return
    if not hasattr(os, "sched_setaffinity"):
        raise SystemExit("the number of cores can be limited on Linux only; pass --threads all")
    available = sorted(os.sched_getaffinity(0))
    if len(available) < int(threads):
        raise SystemExit(
            f"expected at most {len(available)} cores, which are available; found {threads}"
        )
    os.sched_setaffinity(0, available[: int(threads)])


def core_count() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
