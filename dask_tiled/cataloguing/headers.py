"""What the headers of a file tell of its pictures, as plain values."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.apart.calls import reading_here
from dask_tiled.errors import (
    DatasetError,
    MissingFileError,
    TruncatedFileError,
    UnknownFormatError,
    unwarned,
)
from dask_tiled.files.file import File
from dask_tiled.files.paths import is_url, noting_looked
from dask_tiled.formats.registry import add_formats, formats, recognised_by
from dask_tiled.formats.tools.files import natural_key
from dask_tiled.model.axes import Axis
from dask_tiled.model.description import Description
from dask_tiled.model.doubts import as_json
from dask_tiled.model.mark import json_value
from dask_tiled.opening.listing import FAULTS, Contents, list_contents

# fmt: off
OF_ALL_KINDS = frozenset({
    ".bin", ".dat", ".hdr", ".img", ".map", ".mat", ".raw", ".toml", ".xml",
})
# fmt: on
"""Suffixes that other files have, too: an unrecognised file is not a damaged one."""


MOST_LABELS = 16
"""Maximum number of names of positions of an axis."""


class PictureHeader(NamedTuple):
    """A picture of a file, described by JSON values."""

    name: str
    """Name in a file with several pictures, else empty."""
    options: dict[str, Any]
    """Options of ``open_dataset`` that it needs."""
    shape: tuple[int, ...] = ()
    nav_ndim: int = 0
    dtype: str = ""
    nbytes: int = 0
    axes: tuple[dict[str, Any], ...] = ()
    instrument: Mapping[str, tuple[Any, str]] = {}
    """Values and units by vocabulary name."""
    doubts: tuple[dict[str, str], ...] = ()
    missing: int = 0
    """Number of missing frames."""
    lacking: str = ""
    """How many frames are there, if it is incomplete."""
    problem: str = ""
    """Why it cannot be opened; empty if it can."""


class FileHeader(NamedTuple):
    """What a path holds: pictures, a problem, or neither if it is no dataset."""

    path: str
    format: str = ""
    pictures: tuple[PictureHeader, ...] = ()
    files: frozenset[str] = frozenset()
    """Files that lead to the pixels, and those that hold them."""
    pixels: frozenset[str] = frozenset()
    """Files that hold the pixels; empty for a folder."""
    looked: frozenset[str] = frozenset()
    """All files that were looked at."""
    problem: str = ""
    fault: str = ""
    """The file in which the problem lies; empty if unknown."""
    is_lasting: bool = True
    """Whether the result is the same as long as no file changes."""

    @property
    def is_dataset(self) -> bool:
        """Whether the path is a dataset, perhaps a damaged one."""
        return bool(self.pictures or self.problem)

    @property
    def parts(self) -> set[str]:
        """Files that need not be read; the first one may be the better one to open."""
        return {*sorted(self.pixels, key=natural_key)[1:]}


def stem(path: str) -> str:
    """Return a file's name without suffixes; files of one dataset may share it."""
    return os.path.basename(path).partition(".")[0]


def prepared(registered: bytes) -> int:
    """Import all formats in a child process, and add those of its parent; return their number.

    Warnings of libraries are ignored there.
    """
    warnings.simplefilter("ignore")
    add_formats(registered)
    return len(formats())


def read_header(path: str, *, alone: bool = False) -> FileHeader:
    """Describe the pictures of a file; only headers are read.

    Parameters
    ----------
    path : str
        A file, or a folder that is a dataset.
    alone : bool
        Whether the HDF5 library is called in a process of its own.
    """
    with noting_looked() as looked, nullcontext() if alone else reading_here():
        try:
            contents, missing = _contents_of(path)
            described = [_described(contents, name, missing) for name in contents.keys]
        except Exception as error:  # noqa: BLE001 - a plug-in or a library may raise any error
            problem, is_lasting = _problem(path, error), isinstance(error, DatasetError)
            told: dict[str, Any] = {"problem": problem, "is_lasting": is_lasting}
            if problem:
                told["fault"] = _fault(error)
            return FileHeader(path, looked=frozenset(looked if problem else ()), **told)
    pictures = tuple(picture for picture, _ in described)
    descs = [] if os.path.isdir(path) else [desc for _, desc in described if desc is not None]
    files = frozenset(file.path for desc in descs for file in desc.files if not is_url(file.path))
    pixels = frozenset().union(*map(_pixel_files, descs))
    form = "" if contents.default is None else contents.default.format
    return FileHeader(path, form, pictures, files, pixels, frozenset(looked))


def read_headers(paths: Sequence[str]) -> list[FileHeader | bool | None]:
    """Describe the pictures of several files.

    Returns
    -------
    list of FileHeader, bool or None
        For each path, its header; of no dataset, whether that lasts as long as no file changes;
        None if the path is not read, as it is a part of one before.
    """
    headers, parts = list[FileHeader | bool | None](), set[str]()
    for path in paths:
        if path in parts:
            headers.append(None)
            continue
        header = read_header(path)
        parts |= header.parts
        headers.append(header if header.is_dataset else header.is_lasting)
    return headers


def _contents_of(path: str) -> tuple[Contents, dict[str, str]]:
    """List the pictures, also of a truncated file; return the option that it then needs."""
    quiet: dict[str, Any] = {"doubts": "ignore"}
    with unwarned():  # the header has what warnings tell
        if os.path.isfile(path):
            File.at(path)  # of an empty file, nothing else need be tried
        try:
            return list_contents(path, None, quiet), {}
        except (MissingFileError, TruncatedFileError) as error:
            missing = {"missing": "fill"}
            with suppress(*FAULTS):
                return list_contents(path, None, quiet | missing), missing
            raise error from None


def _described(
    contents: Contents, name: str, missing: dict[str, str]
) -> tuple[PictureHeader, Description | None]:
    key = contents.keys[name]
    told = missing if key is None else {contents.option: key, **missing}
    shown = "" if key is None else name
    try:
        desc = contents.described(name)
    except FAULTS as error:
        return PictureHeader(shown, told, problem=_without_path(contents.path, error)), None
    return _told(shown, told, desc), desc


def _pixel_files(desc: Description) -> set[str]:
    """Return the files that hold pixels: a file may only lead to others."""
    numbers = np.unique(desc.layout.pieces.column("file")).tolist()
    return {desc.files[k].path for k in numbers}


def _told(name: str, options: dict[str, Any], desc: Description) -> PictureHeader:
    axes = [_axis(*one) for one in zip(desc.axes, desc.shape, strict=True)]
    return PictureHeader(
        name,
        options,
        desc.shape,
        desc.nav_ndim,
        str(desc.dtype),
        desc.nbytes,
        tuple(json_value(axes)),
        {key: (fact.value, fact.unit) for key, fact in desc.instrument.items()},
        tuple(json_value(as_json(desc.doubts))),
        desc.layout.count_missing(),
        desc.lacking(),
    )


def _axis(axis: Axis, size: int) -> dict[str, Any]:
    return {
        "name": axis.name,
        "size": size,
        "units": axis.units or axis.coordinate_units,
        "scale": axis.scale,
        "offset": axis.offset,
        "labels": axis.labels[:MOST_LABELS],
        "spacing": axis.spacing.strip(" ()"),
    }


def _problem(path: str, error: Exception) -> str:
    """Return why a file cannot be opened; empty if it is no dataset, or was removed."""
    if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
        return ""
    suffix = os.path.splitext(path)[1].lower()
    is_claimed = any(suffix in one.extensions for one in formats().values())
    if suffix not in OF_ALL_KINDS and is_claimed:
        return _without_path(path, error)
    is_none = isinstance(error, UnknownFormatError) or not _is_recognised(path)
    return "" if is_none else _without_path(path, error)


def _fault(error: Exception) -> str:
    """Return the file that an error names; empty if it names none."""
    found = error.path if isinstance(error, DatasetError) else getattr(error, "filename", None)
    return found if isinstance(found, str) else ""


def _is_recognised(path: str) -> bool:
    """Return whether a format recognises the content of a file, or the file cannot be read."""
    try:
        return recognised_by(formats().values(), path, {}) is not None
    except OSError:
        return True


def _without_path(path: str, error: Exception) -> str:
    if isinstance(error, DatasetError):
        return str(error).removeprefix(f"{path}: ").replace("\n", ". ")
    told = error.strerror if isinstance(error, OSError) else str(error)
    return told or type(error).__name__
