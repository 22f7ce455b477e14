"""Open file descriptors, kept for the next chunk: a bounded number in each process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from dask_tiled.errors import DatasetError
from dask_tiled.model.files import File

IDLE = 32
"""So many descriptors, and no more, wait to be used again."""

Key = tuple[File, bool]
"""A version of a file, and whether reads go past the page cache."""

# A deque, whose operations need no lock that a fork or a garbage collection could leave locked.
_idle: deque[tuple[Key, int]] = deque()


@contextmanager
def descriptor(file: File, *, direct: bool = False) -> Iterator[int]:
    """Lend a descriptor of a file that is still the one that was opened, before and after."""
    file.check()  # opening something else that has its name could wait for ever
    key = file, direct
    fd = _take(key)
    if fd is None:
        fd = _open(file.path, direct=direct)
    try:
        file.check(os.fstat(fd))
        yield fd
        file.check(os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    _idle.append((key, fd))
    while len(_idle) > IDLE:
        try:
            os.close(_idle.popleft()[1])
        except IndexError:  # another thread was quicker
            break


def _take(key: Key) -> int | None:
    try:
        entries = tuple(_idle)
    except RuntimeError:  # another thread changed the deque; a further descriptor does no harm
        return None
    for entry in entries:
        if entry[0] == key:
            try:
                _idle.remove(entry)
            except (ValueError, IndexError):  # another thread was quicker, or changed the deque
                continue
            return entry[1]
    return None


def _open(path: str, *, direct: bool) -> int:
    if not direct:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except (OSError, AttributeError) as error:
        raise DatasetError(
            "the file system does not do direct reads",
            path=path,
            expected="a file system that takes O_DIRECT",
            found=str(error),
            hint="Use io='buffered'.",
        ) from error
