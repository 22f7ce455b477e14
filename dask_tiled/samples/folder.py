"""The folder of samples, each complete and in a subfolder of its own."""

from __future__ import annotations

import atexit
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from dask import config

from dask_tiled.errors import DatasetError, warn
from dask_tiled.system.folders import user_caches

SETTING = "dask_tiled.samples-folder"
ABANDONED = 3600.0
"""Age in seconds after which an unfinished sample is removed; making a sample takes seconds."""


def kept(name: str, file: str, write: Callable[[Path], None]) -> Path:
    """Return the path of a sample, which is made if it is missing.

    Parameters
    ----------
    name : str
        Name of the folder, with the version of its content.
    file : str
        Name of the file to open.
    write : callable
        Function that writes all files of the sample into a folder.

    Raises
    ------
    DatasetError
        The sample cannot be written; or as for ``write``.
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
    for left in folder.glob(f".{name}-*"):  # left by processes that were killed
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left)
    with TemporaryDirectory(prefix=f".{name}-", dir=folder) as hidden:
        made = Path(hidden, name)
        made.mkdir()
        write(made)
        try:
            made.rename(folder / name)
        except OSError:  # the folder exists
            if (folder / name / file).is_file():  # another process was faster
                return
            shutil.rmtree(folder / name)  # incomplete: the user has deleted files
            made.rename(folder / name)


def _configured() -> Path:
    """Return the configured folder, or the one in the user's cache folder."""
    given = config.get(SETTING, None)
    if given is not None:
        return Path(given).expanduser()
    return Path(user_caches(), "dask-tiled", "samples")


def _writable(folder: Path) -> Path:
    """Return the folder, or a temporary one if the default is not writable."""
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
    """Return a folder that is removed when this process ends."""
    warn(f"{folder} is not writable: samples are deleted when this process ends. Set {SETTING}.")
    made = mkdtemp(prefix="dask-tiled-samples-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _unwritable(error: OSError, folder: Path) -> DatasetError:
    return DatasetError(
        "the folder of samples is not writable",
        path=folder,
        found=error,
        hint=f'Set another folder: dask.config.set({{"{SETTING}": "..."}})',
    )
