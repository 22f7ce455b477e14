"""Detect files at rest: mapping a file that may change while it is read is not safe."""

from __future__ import annotations

import time
from functools import partial

from dask import config

from dask_tiled.errors import check_whole
from dask_tiled.files.file import File
from dask_tiled.files.paths import SHORT, is_url, with_room
from dask_tiled.reading.limits import REST_SECONDS
from dask_tiled.system.changes import is_network, is_written


def rests(file: File, fd: int) -> bool:
    """Return whether a file is at rest, so that it is safe to map it.

    It has been unchanged for ``dask-tiled.rest-seconds`` of dask's configuration, lies on this
    machine, and neither grows nor is open for writing. The times of a local file are of this
    machine's clock; a time in the future is no evidence of rest.

    Raises
    ------
    DatasetError
        The configuration is not a number of seconds.
    """
    seconds = rest_seconds()
    age = time.time_ns() - max(file.mtime_ns, file.ctime_ns)
    young = age < 0 or age < seconds * 10**9
    return not (young or not can_rest(file) or is_written(fd))


def rest_seconds() -> int:
    """Return how long a file at rest has been unchanged; raise a DatasetError if it is no time."""
    name = "dask-tiled.rest-seconds"
    return check_whole(name, config.get(name, REST_SECONDS), least=0)


def can_rest(file: File) -> bool:
    """Return whether a file is local and does not grow."""
    return not (file.grows or is_remote(file.path))


def is_remote(path: str) -> bool:
    """Return whether a file is behind a URL, or on a network file system.

    Loading mapped pages can fail there.
    """
    if is_url(path):
        return True
    try:
        return with_room(partial(is_network, path), path)
    except OSError as error:
        if error.errno in SHORT:
            raise
        return False
