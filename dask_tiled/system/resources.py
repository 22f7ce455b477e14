"""Memory, cache and open files that the system grants a process."""

from __future__ import annotations

from collections.abc import Callable

from dask_tiled.system.names import WINDOWS, offered

_sysconf = offered("os", "sysconf")
getrlimit: Callable[[int], tuple[int, int]] | None = offered("resource", "getrlimit")
NOFILE: int = offered("resource", "RLIMIT_NOFILE")
UNLIMITED: int = offered("resource", "RLIM_INFINITY")
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
