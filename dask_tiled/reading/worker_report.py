"""Report of a worker: its process, its versions, and whether it sees files and a folder."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import NamedTuple

from dask_tiled.errors import DatasetError, StaleFileError
from dask_tiled.files.file import File, RemoteFile, read_head

PACKAGES = "dask-tiled", "dask", "distributed", "numpy", "numba", "zarr", "numcodecs"
"""Packages whose versions are reported."""
PATIENCE = 20.0
"""Seconds that a worker may take to look at files: a lost network drive never answers."""


class WorkerQuestion(NamedTuple):
    """What a worker is asked."""

    files: tuple[tuple[File, bytes], ...] = ()
    """Files with their first bytes."""
    folder: tuple[str, int] | None = None
    """Path and inode of a folder to write to."""
    libraries: tuple[str, ...] = ()
    """Modules that decode the files or encode the target."""


class Report(NamedTuple):
    """The answer of a process."""

    host: str
    pid: int
    clock: float
    """Seconds since the epoch."""
    versions: dict[str, str]
    problems: dict[str, str]
    """What is wrong, by path or library."""


async def report(question: WorkerQuestion) -> Report:
    """Answer a question without blocking the event loop of the caller."""
    host, pid, now = platform.node(), os.getpid(), time.time()
    try:
        looking = asyncio.to_thread(lambda: dict(problems_of(question)))
        problems = await asyncio.wait_for(looking, PATIENCE)
    except TimeoutError:
        paths = [file.path for file, _ in question.files] or [""]
        problems = {paths[0]: f"no answer of the disk within {PATIENCE:.0f} s"}
    return Report(host, pid, now, versions(), problems)


@cache
def versions() -> dict[str, str]:
    """Return the versions of this process, by package."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def problems_of(question: WorkerQuestion) -> Iterator[tuple[str, str]]:
    """Yield what this process lacks, as the path or library and the problem."""
    for file, head in question.files:
        problem = _problem_of(file, head)
        if problem:
            yield file.path, problem
    for name in question.libraries:
        if find_spec(name) is None:
            yield name, "not installed"
    if question.folder is not None:
        path, inode = question.folder
        try:
            status = os.stat(path)
        except OSError as error:
            yield path, str(error.strerror)
            return
        if status.st_ino != inode:
            yield path, "another folder than that of the client"
        elif not os.access(path, os.W_OK | os.X_OK):
            yield path, "not writable"


def _problem_of(file: File, head: bytes) -> str:
    """Return why a file is not the one that the client opened; empty if it is."""
    try:
        if not isinstance(file, RemoteFile):
            _check_local(file, head)
        file.check()
    except OSError as error:
        return error.strerror or str(error)
    except DatasetError as error:
        return error.problem
    return ""


def _check_local(file: File, head: bytes) -> None:
    """Check that a path is not another file, or a copy, on this machine."""
    found = os.stat(file.path)
    if read_head(file.path, len(head)) != head:
        raise StaleFileError("another file, whose first bytes differ")
    if not file.grows and (found.st_size, found.st_mtime_ns) != (file.size, file.mtime_ns):
        size, seconds = found.st_size - file.size, (found.st_mtime_ns - file.mtime_ns) / 1e9
        raise StaleFileError(f"another file, of {size:+} bytes, written {seconds:+.3f} s later")
    if found.st_ino != file.inode:
        raise StaleFileError("a copy of the file, on another disk")
