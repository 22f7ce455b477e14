"""Where samples are kept: whole or not at all, each in a folder of its own."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from dask import config

from dask_tiled.errors import DatasetError, warn

SETTING = "dask_tiled.samples-folder"
ABANDONED = 3600.0
"""Seconds after which nobody writes a sample any more that takes some seconds."""


def kept(name: str, file: str, write: Callable[[Path], None]) -> Path:
    """Return the path of a sample, which is made if it is not there.

    Any number of processes may do so at once: what is being made has another name.

    Parameters
    ----------
    name : str
        Of the folder, with the version of what is written: another version is another sample.
    file : str
        The name of its file that one opens.
    write : callable
        Writes all files of the sample into a folder.

    Raises
    ------
    DatasetError
        It cannot be written; or as for ``write``.
    """
    configured = _configured()
    if (configured / name / file).is_file():
        return configured / name / file
    folder = _writable(configured)
    if not (folder / name / file).is_file():
        try:
            _make(folder, name, file, write)
        except OSError as error:
            raise _unwritable(error, folder) from error
    return folder / name / file


def _make(folder: Path, name: str, file: str, write: Callable[[Path], None]) -> None:
    for left in folder.glob(f".{name}-*"):  # by processes that were killed
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left)
    with TemporaryDirectory(prefix=f".{name}-", dir=folder) as hidden:
        made = Path(hidden, name)
        made.mkdir()
        write(made)
        try:
            made.rename(folder / name)
        except OSError:  # there is one already
            if (folder / name / file).is_file():  # another process was quicker
                return
            shutil.rmtree(folder / name)  # a part of one, after somebody has tidied up
            made.rename(folder / name)


def _configured() -> Path:
    """Return the folder that is set, or that of the user's caches where the system has them."""
    given = config.get(SETTING, None)
    if given is not None:
        return Path(given).expanduser()
    home = os.path.expanduser("~")
    if not os.path.isabs(home):  # the user has none
        home = os.devnull
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if sys.platform == "darwin":
        caches = os.path.join(home, "Library", "Caches")
    else:  # the specification of XDG ignores relative paths
        caches = xdg if os.path.isabs(xdg) else os.path.join(home, ".cache")
    return Path(caches, "dask-tiled", "samples")


def _writable(folder: Path) -> Path:
    """Return the folder, or a temporary one where nobody has set it and it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder):
            return folder
    except OSError as error:
        if config.get(SETTING, None) is not None:
            raise _unwritable(error, folder) from error
        return _temporary(folder)


@cache
def _temporary(folder: Path) -> Path:
    """Make a folder for this process, and remove it at its end."""
    warn(f"{folder} cannot be written to: samples are kept as long as this process. Set {SETTING}.")
    made = mkdtemp(prefix="dask-tiled-samples-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _unwritable(error: OSError, folder: Path) -> DatasetError:
    return DatasetError(
        "no sample can be written there",
        path=folder,
        found=error,
        hint=f'Name another folder: dask.config.set({{"{SETTING}": "..."}})',
    )
