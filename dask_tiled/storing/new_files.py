"""New files, written next to their path, and renamed to it when complete."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import with_room
from dask_tiled.storing.claims import claimed
from dask_tiled.storing.disk import flush_folders, writing_to
from dask_tiled.storing.folders import local_path
from dask_tiled.storing.moves import about_to_move
from dask_tiled.storing.nodes import foreign


def file_path(target: Any) -> str:
    """Return the absolute path of a file that is to be written."""
    path = local_path(target) if isinstance(target, str | os.PathLike) else None
    if path is None:
        raise DatasetError("invalid path", expected="the path of a file", found=repr(target))
    return path


@contextmanager
def new_file(path: str, is_kind: Callable[[str], bool], *, overwrite: bool) -> Iterator[str]:
    """Create an empty file next to a path, yield its path, and rename it to the path on success.

    Parameters
    ----------
    path : str
        An absolute path.
    is_kind : callable
        Predicate: whether a file is of the written kind; other files are never replaced.
    overwrite : bool
        Replace an existing file.

    Raises
    ------
    DatasetError
        The path exists and may not be replaced, or cannot be written.
    """
    check_place(path, is_kind, overwrite=overwrite)
    with claimed(path) as part:
        written = os.path.join(part, uuid.uuid4().hex)
        try:
            with writing_to(path):
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
                os.close(with_room(partial(os.open, written, flags, 0o666), written))
            yield written
            check_place(path, is_kind, overwrite=overwrite)  # the path may have been created since
            with writing_to(path):
                flush_folders(written)
                about_to_move(written, path)
                os.replace(written, path)
                flush_folders(path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(written)
            raise


def check_place(
    path: str, is_kind: Callable[[str], bool], *, overwrite: bool, folder: bool = False
) -> None:
    """Refuse to write to a path, unless it is unused or holds a replaceable file of the same kind.

    Parameters
    ----------
    folder : bool
        Expect a folder instead of a file.
    """
    if not os.path.lexists(path):
        return
    known, what = (os.path.isdir, "folder") if folder else (os.path.isfile, "file")
    if os.path.islink(path) or not known(path) or not is_kind(path):
        raise foreign(path)
    if not overwrite:
        raise DatasetError(
            f"the {what} exists", path=path, hint="Pass overwrite=True to replace it."
        )
