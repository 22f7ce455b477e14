"""Memory, cache and open files that the system grants a process."""

from __future__ import annotations

from collections.abc import Callable

from dask_tiled.system.names import WINDOWS, offered

_sysconf, _getrlimit = offered("os", "sysconf"), offered("resource", "getrlimit")
_physical: Callable[[], int] | None = offered(WINDOWS, "physical_memory")


def sysconf(name: str) -> int:
    """Return a figure of the system; 0 if unknown."""
    try:
        return max(0, _sysconf(name)) if _sysconf is not None else 0
    except (ValueError, OSError):
        return 0


def physical_memory() -> int:
    """Return the memory of the machine in bytes; 0 if unknown."""
    return _physical() if _physical else sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES")


def most_files() -> tuple[int | None, int | None] | None:
    """Return how many files may be open, and up to what the user may raise it; None if unknown.

    A number is None if it is unlimited.
    """
    if _getrlimit is None:
        return None
    unlimited = offered("resource", "RLIM_INFINITY")
    soft, hard = _getrlimit(offered("resource", "RLIMIT_NOFILE"))
    return None if soft == unlimited else soft, None if hard == unlimited else hard
