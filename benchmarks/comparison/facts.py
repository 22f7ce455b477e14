"""Environment of a benchmark run."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import dask_tiled

PACKAGES = ("libertem", "rosettasciio", "dask", "numpy", "numba")


def facts(mib: float, repeats: int) -> dict[str, str]:
    """Collect the machine, the versions and the options of a run."""
    versions = {"dask-tiled": dask_tiled.__version__}
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    versions["Python"] = platform.python_version()
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "files": f"{mib:g} MiB",
        "repeats": str(repeats),
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def sentence(facts: Mapping[str, str]) -> str:
    """Format the facts of a run as a sentence."""
    return (
        f"Files of {facts['files']}, medians of {facts['repeats']} repeats, {facts['date']}. "
        f"{facts['processor']}, {facts['cores']} cores. {facts['versions']}."
    )
