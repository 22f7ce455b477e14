"""File system operations: flushing, and many files at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import with_room
from dask_tiled.remote.stores import first_line
from dask_tiled.system import files


def unwritable(
    path: str, error: BaseException, where: str | None = None, hint: str | None = None
) -> DatasetError:
    """Return the error that a path cannot be written, with the reason."""
    found = getattr(error, "strerror", None) or first_line(error)
    return DatasetError(
        "the target cannot be written", path=path, where=where, found=found, hint=hint
    )


@contextmanager
def writing_to(path: str) -> Iterator[None]:
    """Convert OSErrors of writing to a DatasetError with the path."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def write_at(file: int, data: Any, at: int) -> None:
    """Write all bytes of a contiguous buffer at an offset of an open file."""
    flat: Any = data.reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else data
    view = memoryview(flat)
    while view:
        done = files.pwrite(file, view, at)
        view, at = view[done:], at + done


def flush(path: str) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    with_room(partial(files.flush, path), path)


def flush_folders(path: str) -> None:
    """Flush a file, or the names in a folder, and all its parent folders to the disk."""
    with writing_to(path), suppress(PermissionError):  # some folders may not be opened
        for each in (path, *map(str, Path(path).parents)):
            flush(each)


def at_once(
    func: Callable[[str], None], names: Iterable[str], turn: Callable[[str], Any] = lambda _: 0
) -> None:
    """Call a function for many files in threads, as each call waits for the disk.

    Parameters
    ----------
    turn : callable
        Sort key: files with a lower one are finished first.
    """
    with ThreadPoolExecutor() as pool:
        for _, some in groupby(sorted(names, key=turn), turn):
            for _ in pool.map(func, some):
                pass
