"""Loaded first by worker processes: faults of their machine, from the environment variable FAULTS.

``FAULTS="unseen=/data"`` hides a folder, ``elsewhere=/data:/other`` shows another one in its place,
``read_only=/data`` takes the right to write to it, ``absent=name`` hides a module and its version,
and ``clock=9`` sets the clock forward.
"""

import errno
import importlib.metadata
import importlib.util
import os
import sys
import time
from pathlib import Path


def below(path, folder):
    return isinstance(path, str) and bool(folder) and Path(path).is_relative_to(folder)


def install(faults):
    """Replace functions of the system in this process."""
    stat, opened, may = os.stat, os.open, os.access
    spec, clock = importlib.util.find_spec, time.time

    def as_seen(path):
        """Return the path that the machine shows at a path, or raise FileNotFoundError."""
        path = os.fspath(path) if isinstance(path, os.PathLike) else path
        if below(path, faults.get("unseen")):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        folder, _, other = faults.get("elsewhere", "").partition(":")
        return other + path.removeprefix(folder) if below(path, folder) else path

    def access(path, mode, **options):
        forbidden = below(path, faults.get("read_only")) and mode & os.W_OK
        return not forbidden and may(path, mode, **options)

    os.stat = lambda path, **options: stat(as_seen(path), **options)
    os.open = lambda path, *args, **options: opened(as_seen(path), *args, **options)
    os.access = access
    if "absent" in faults:
        name = faults["absent"]
        importlib.util.find_spec = lambda one, *args: None if one == name else spec(one, *args)
        sys.modules[name] = None
        of, normal = importlib.metadata.Distribution.from_name, str.maketrans("-", "_")

        def from_name(_, one):
            if one.translate(normal) == name:
                raise importlib.metadata.PackageNotFoundError(one)
            return of(one)

        importlib.metadata.Distribution.from_name = classmethod(from_name)
    if "clock" in faults:
        time.time = lambda: clock() + float(faults["clock"])


# dask loads this module twice.
if text := os.environ.pop("FAULTS", ""):
    install(dict(one.split("=") for one in text.split(",")))
