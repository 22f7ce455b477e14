"""The formats: which there are, and which of them a file is."""

from __future__ import annotations

import glob
import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dask_tiled.description import Description
from dask_tiled.errors import DatasetError, UnknownFormatError
from dask_tiled.files import File, read_head

HEAD_BYTES = 4096
"""Bytes at the start of a file that a format sees when it says whether the file is its own."""

_MODULES = {name: f"dask_tiled.formats.{name}" for name in ("npy", "mib", "raw")}
_registered: dict[str, Format] = {}


@dataclass(frozen=True, slots=True)
class Format:
    """A file format.

    Attributes
    ----------
    name : str
        What ``open_dataset(format=...)`` calls it.
    extensions : tuple of str
        Usual endings of its files, with the dot.
    summary : str
        What is read, in one line.
    nav_shape_from : str
        Where the scan shape comes from, in a few words.
    sniff : callable
        ``sniff(path, head)`` sees the first 4096 bytes of a file and returns None if the file is of
        this format, or else a few words that say why it is not.
    describe : callable
        ``describe(paths, **options)`` returns a :class:`Description`. Its keyword-only parameters
        are the options of the format; ``nav_shape``, ``sig_shape`` and ``dtype`` are handed over to
        those that have them.
    """

    name: str
    extensions: tuple[str, ...]
    summary: str
    nav_shape_from: str
    sniff: Callable[[str, bytes], str | None]
    describe: Callable[..., Description]

    def options(self) -> dict[str, Any]:
        """Give the options of the format and their default values."""
        parameters = inspect.signature(self.describe).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def register_format(format: Format) -> None:
    """Add a format, or replace one of the same name, in this process.

    A package can announce a format for every process by an entry point in the group
    ``dask_tiled.formats`` that names its :class:`Format`.
    """
    if not isinstance(format, Format):
        raise DatasetError(
            "not a format", expected="a dask_tiled.Format", found=type(format).__name__
        )
    _registered[format.name] = format


def formats() -> dict[str, Format]:
    """Give the formats by name, in the order in which they are tried."""
    return {**_installed(), **_registered}


@cache
def _installed() -> Mapping[str, Format]:
    from importlib.metadata import entry_points  # takes as long to import as this package

    own = {name: importlib.import_module(module).FORMAT for name, module in _MODULES.items()}
    others = {entry.name: entry.load() for entry in entry_points(group="dask_tiled.formats")}
    return {**others, **own}


def expand(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[tuple[str, ...], bool]:
    """Turn what the user gave into paths: one, a list, or what a pattern matches.

    Returns
    -------
    paths : tuple of str
    listed : bool
        Whether they are a list of exactly the files that are meant.

    Raises
    ------
    FileNotFoundError
        A pattern matches nothing.
    """
    if not isinstance(path, (str, os.PathLike)):
        paths = tuple(os.fspath(p) for p in path)
        if not paths:
            raise DatasetError("no files", expected="at least one path", found="an empty list")
        return paths, True
    text = os.fspath(path)
    if not glob.has_magic(text) or os.path.exists(text):  # brackets occur in names too
        return (text,), False
    matches = tuple(sorted(glob.glob(text), key=natural_key))
    if not matches:
        raise FileNotFoundError(f"no file matches {text}")
    return matches, True


def natural_key(path: str) -> tuple[tuple[str, int], ...]:
    """Sort key by which ``scan10`` comes after ``scan9``."""
    parts = re.split(r"(\d+)", path)
    texts, numbers = parts[::2], [int(n) for n in parts[1::2]]
    return tuple(zip(texts, [*numbers, -1], strict=True))


def describe_as(
    name: str | None,
    paths: tuple[str, ...],
    common: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    listed: bool,
) -> Description:
    """Describe files, in a format that is named or found out.

    Parameters
    ----------
    name : str or None
        Name of the format.
    paths : tuple of str
        The files.
    common : mapping
        ``nav_shape``, ``sig_shape`` and ``dtype``, or None for each; they are handed over to
        formats that have an option of that name.
    options : mapping
        Options of the format.
    listed : bool
        Whether exactly these files are meant. Otherwise formats with an option ``series`` look for
        the series that a file belongs to.
    """
    File.at(paths[0])  # before anything is opened: a pipe would wait for ever
    format = detect(paths[0]) if name is None else _named(name)
    known = format.options()
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise DatasetError(
            f"format {format.name!r} has no option {unknown[0]!r}",
            path=paths[0],
            expected=", ".join(sorted(set(known) - set(common))) or "no options",
        )
    given: dict[str, Any] = {key: value for key, value in common.items() if key in known}
    if "series" in known and listed:
        given["series"] = False
    desc = format.describe(paths, **{**given, **options})
    sig_shape = common["sig_shape"]
    if sig_shape is not None and desc.sig_shape != sig_shape:
        raise DatasetError(
            "the frames have another shape", path=paths[0], expected=desc.sig_shape, found=sig_shape
        )
    return replace(desc, format=format.name)


def detect(path: str) -> Format:
    """Find out the format of a file: by its content first, by its suffix second.

    Raises
    ------
    UnknownFormatError
        It says what was tried and why each format said no.
    """
    head = read_head(path, HEAD_BYTES)
    reasons = {}
    for format in formats().values():
        reason = format.sniff(path, head)
        if reason is None:
            return format
        reasons[format.name] = reason
    suffix = os.path.splitext(path)[1].lower()
    claimants = [format for format in formats().values() if suffix in format.extensions]
    if len(claimants) == 1:
        return claimants[0]
    tried = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise UnknownFormatError("no format recognises the file", path=path, found=tried)


def _named(name: str) -> Format:
    try:
        return formats()[name]
    except KeyError:
        known = ", ".join(formats())
        raise UnknownFormatError("no such format", expected=known, found=name) from None
