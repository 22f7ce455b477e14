"""Resources of the machine: processors, cache per thread, memory.

Only this module queries them. Functions that use them accept them as arguments too, so that results
can be reproduced on other machines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from dask_tiled.system.resources import physical_memory, sysconf
from dask_tiled.tiling.limits import USUAL_CACHE_BYTES

CPUS = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")


@cache
def cache_bytes() -> int:
    """Return the share of the second-level cache of one thread."""
    return _sysfs_cache(CPUS) or sysconf("SC_LEVEL2_CACHE_SIZE") or USUAL_CACHE_BYTES


def _sysfs_cache(cpus: Path) -> int:
    """Read the cache size of the first processor from sysfs; 0 if unknown."""
    for index in sorted(cpus.glob("cpu0/cache/index*")):
        try:
            level, kind, size, shared = (
                (index / name).read_text("ascii").strip()
                for name in ("level", "type", "size", "shared_cpu_list")
            )
            if level == "2" and kind != "Instruction":
                return _size(size) // _count(shared)
        except (OSError, ValueError):
            continue
    return 0


def _size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text.rstrip("KMG")) * units.get(text[-1:], 1)


def _count(cpus: str) -> int:
    """Return the number of processors in a list like ``0-3,8``."""
    ends = [part.split("-") for part in cpus.split(",")]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def thread_memory() -> tuple[int, str]:
    """Return the bytes that a dask thread may use (0 without a known limit), and their source."""
    limits = [
        int(worker["memory_limit"]) // max(1, int(worker.get("nthreads") or 1))
        for worker in _workers()
        if worker.get("memory_limit")
    ]
    if limits:
        return min(limits), "the smallest memory per thread of the workers"
    allowed = min([n for n in memory() if n], default=0)
    return allowed // processors(), "the memory of this machine per core"


def _workers() -> Iterable[Any]:
    """Return the workers of the current client, if any, without the slow import of distributed."""
    try:
        client = sys.modules["distributed"].default_client()
        workers: Iterable[Any] = client.scheduler_info()["workers"].values()
    except (LookupError, AttributeError, ValueError, OSError):
        return ()  # not imported, partly imported, or no open client
    return workers


def processors() -> int:
    """Return the number of processors that this process may use, as dask counts them."""
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


@cache
def memory() -> tuple[int, int]:
    """Return the physical memory and the limit of control groups in bytes; 0 if unknown."""
    limits = [n for n in _cgroup_limits(CGROUPS, Path("/proc/self/cgroup")) if n]
    return physical_memory(), min(limits, default=0)


def _cgroup_limits(root: Path, mine: Path) -> Iterator[int]:
    """Read the memory limits of the control groups of this process, in version 1 or 2."""
    try:
        lines = mine.read_text("utf8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        here = top / group.lstrip("/")
        for folder in (here, *here.parents):
            if not folder.is_relative_to(top):
                break
            try:
                yield int((folder / name).read_text("ascii"))
            except (OSError, ValueError):  # not mounted here, or "max"
                continue
