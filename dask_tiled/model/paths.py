"""Questions about paths, asked of the system, or of a server where they are URLs.

``os.path.split``, ``join`` and ``splitext`` do for both; what looks at files is here.
"""

from __future__ import annotations

import os
from typing import BinaryIO

from dask_tiled.model.files import File, open_bytes
from dask_tiled.model.open_files import listed
from dask_tiled.remote.session import is_url, join, session

__all__ = [
    "absolute",
    "file_size",
    "is_file",
    "is_link",
    "is_url",
    "list_folder",
    "named_in",
    "names_in",
    "opened",
    "real",
]


def absolute(path: str | os.PathLike[str]) -> str:
    """Write a path from the root on; a URL stays as it is."""
    return os.fspath(path) if is_url(path) else os.path.abspath(path)


def real(path: str | os.PathLike[str]) -> str:
    """Give what links lead to; a URL is none."""
    return os.fspath(path) if is_url(path) else os.path.realpath(path)


def is_link(path: str) -> bool:
    """Tell whether a path is a symbolic link."""
    return not is_url(path) and os.path.islink(path)


def is_file(path: str) -> bool:
    """Tell whether there is a file. What a server does not let us see is not there."""
    if not is_url(path):
        return os.path.isfile(path)
    try:
        session().look(path)
    except OSError:
        return False
    return True


def file_size(path: str) -> int:
    """Give the length of a file."""
    return session().look(path)[1].size if is_url(path) else os.path.getsize(path)


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading."""
    return File.at(path).open() if is_url(path) else open_bytes(path)


def named_in(folder: str, name: str) -> str:
    """Give the path of a file in a folder, by its name as it is written in another file."""
    return join(folder, name) if is_url(folder) else os.path.normpath(os.path.join(folder, name))


def list_folder(folder: str) -> list[str] | None:
    """List what a folder holds, of URLs only files; None where the server does not tell."""
    if is_url(folder):
        return session().names(folder)
    folder = folder or "."
    return listed(folder)


def names_in(folder: str, *guesses: str) -> list[str]:
    """List what a folder holds; where the server does not tell, those of the guesses there are."""
    names = list_folder(folder)
    if names is None:
        names = [name for name in guesses if is_file(os.path.join(folder, name))]
    return names
