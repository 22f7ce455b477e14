"""From the paths that a user passes to a description of the files."""

from __future__ import annotations

import cmath
import fnmatch
import glob
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import IOBase
from typing import Any

import numpy as np

from dask_tiled.errors import (
    DatasetError,
    MissingFileError,
    UnknownFormatError,
    UnknownOptionError,
    check_flag,
    nearest,
)
from dask_tiled.files.file import File, is_following, read_head
from dask_tiled.files.paths import OF_AXES, absolute, in_folder, is_url, list_folder, without_scheme
from dask_tiled.formats.registry import HEAD_BYTES, Format, formats, named, recognised_by
from dask_tiled.formats.tools.files import natural_key
from dask_tiled.formats.unrecognised import unrecognised, wrong_format
from dask_tiled.model.description import Description
from dask_tiled.remote.session import Session, opened_together, session
from dask_tiled.remote.stores import Options

Path = str | os.PathLike[str]

_NO_PATHS = (bytes, AbstractSet, Mapping, IOBase)
"""Iterables that are not lists of paths; a set, for example, has no order."""


SHAPES = dict.fromkeys(("shape", "scan_shape", "scan_size", "navigation_shape"), "nav_shape")
SHAPES |= dict.fromkeys(("frame_shape", "detector_shape", "image_shape"), "sig_shape")
"""Names of shapes in other packages."""


@contextmanager
def expanded(
    path: Path | Sequence[Path], storage_options: Options = None
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Expand a path, list or pattern to paths, and whether they are the complete set.

    In this context, URLs are read with the storage options, and each is looked up once.

    Yields
    ------
    tuple of str, bool
        The paths, URLs without queries, and whether they are the complete set.
    """
    listed = not isinstance(path, (str, os.PathLike))
    paths = _listed(path) if listed else (_path_text(path),)
    urls = [one for one in paths if is_url(one)]
    if urls and len(urls) < len(paths):
        local = next(one for one in paths if not is_url(one))
        raise DatasetError("a list must not mix local files and URLs", path=local)
    if not urls:
        if storage_options is not None:
            problem = "storage options are for URLs only"
            raise DatasetError(problem, path=paths[0], expected="a URL", found="a path")
        yield (paths, True) if listed else _matches(paths[0])
        return
    known = session()
    if not known.covers(urls):
        known = Session(urls, storage_options)
        urls = [*known.urls]
    with opened_together(known):
        yield (tuple(urls), True) if listed else _matching_urls(known, urls[0])


def _listed(path: Any) -> tuple[str, ...]:
    if not isinstance(path, Iterable) or isinstance(path, _NO_PATHS):
        raise DatasetError("invalid path", expected="a path, or a list of paths", found=repr(path))
    paths = tuple(map(_path_text, path))
    if not paths:
        raise DatasetError("no files", expected="at least one path", found="an empty list")
    return paths


def _matching_urls(known: Session, url: str) -> tuple[tuple[str, ...], bool]:
    folder, name = os.path.split(url)
    if "*" not in name:
        return (url,), False
    names = known.names(folder)
    if names is None:
        problem, hint = "the server does not list this folder", "Pass a list of URLs."
        raise DatasetError(problem, path=folder, hint=hint)
    pattern = glob.escape(name).replace("[*]", "*")  # brackets and question marks occur in names
    found = sorted(_matching(names, pattern), key=natural_key)
    if not found:
        raise FileNotFoundError(f"no file matches {url}")
    return tuple(in_folder(folder, name) for name in found), True


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that match a pattern, except files of saved axes."""
    return [name for name in fnmatch.filter(names, pattern) if not name.endswith(OF_AXES)]


def _matches(text: str) -> tuple[tuple[str, ...], bool]:
    if not _is_pattern(text) or os.path.lexists(text):  # brackets also occur in names
        return (text,), False
    matches = tuple(sorted(_found_by(text), key=natural_key))
    if not matches:
        raise FileNotFoundError(f"no file matches {text}")
    return matches, True


def _is_pattern(path: str) -> bool:
    r"""Return whether a path has wildcards after its drive, which may be ``\\?\C:``."""
    return glob.has_magic(os.path.splitdrive(path)[1])


def _found_by(pattern: str) -> Iterator[str]:
    """List the paths that match a pattern; unlike glob, raise if a folder cannot be listed."""
    folder, name = os.path.split(pattern)
    literal = os.path.isdir(folder) or not _is_pattern(folder)  # brackets also occur in names
    for place in [folder] if literal else _found_by(folder):
        if not glob.has_magic(name):
            found = [name] if os.path.lexists(in_folder(place, name)) else []
        else:
            there = list_folder(place) if os.path.isdir(place or ".") else None
            hidden = name.startswith(".")
            found = [one for one in _matching(there or (), name) if hidden or one[0] != "."]
        yield from (in_folder(place, one) for one in found)


def _path_text(path: Any) -> str:
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str) or "\0" in text or not text:
        raise DatasetError("invalid path", expected="a path as text", found=repr(path))
    return without_scheme(text)


PATIENCE, POLL = 30.0, 0.1
"""How long to wait for files that others name, and how long between attempts, in seconds."""


def describe_begun(
    name: str | None,
    paths: tuple[str, ...],
    common: Mapping[str, Any],
    options: Mapping[str, Any],
    general: Sequence[str],
    *,
    listed: bool,
) -> Description:
    """Describe files; when following, skip the last of several while it has no frame.

    When following, files that others name are waited for. Parameters are those of
    :func:`describe_as`.
    """
    ask = partial(describe_as, name, common=common, options=options, listed=listed, general=general)
    until = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                return ask(paths)
            except MissingFileError:
                if not is_following() or time.monotonic() > until:
                    raise
                time.sleep(POLL)
    except DatasetError as error:
        at = None if error.path is None else absolute(error.path)
        if not is_following() or len(paths) < 2 or at != absolute(paths[-1]):
            raise
    return ask(paths[:-1])


def check_options(
    format: Format,
    options: Iterable[str],
    general: Sequence[str],
    path: str,
) -> None:
    """Check the names of options of a format; ``general`` are those of all formats, for hints.

    Raises
    ------
    UnknownOptionError
        The format has no such option.
    """
    known = format.options()
    unknown = sorted(set(options) - set(known))
    if unknown:
        problem = f"format {format.name!r} has no option {unknown[0]!r}"
        meant = SHAPES.get(unknown[0])
        hint = f"Pass {meant}=." if meant else nearest(unknown[0], (*known, *general))
        own = ", ".join(sorted(set(known) - set(general)))
        expected = f"one of {own}" if own else "no options"
        raise UnknownOptionError(problem, path=path, expected=expected, hint=hint)


def describe_as(
    name: str | None,
    paths: tuple[str, ...],
    common: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    listed: bool,
    general: Sequence[str] = (),
) -> Description:
    """Describe files, in a given or detected format.

    The common options ``nav_shape``, ``sig_shape`` and ``dtype`` are passed to formats that accept
    them. Unless the paths are complete (``listed``), formats with an option ``series`` look for the
    series that a file belongs to. ``general`` are the parameters of the caller, for hints about
    mistyped options.
    """
    File.at(paths[0])  # checks first that it is a file: opening a pipe would wait forever
    format = _found(paths[0], common) if name is None else named(name, paths[0])
    known = format.options()
    check_options(format, options, (*common, *general), paths[0])
    for key in options:
        if isinstance(known[key], bool):
            check_flag(key, options[key], path=paths[0])
    given: dict[str, Any] = {key: value for key, value in common.items() if key in known}
    if "series" in known and listed:
        given["series"] = False
    try:
        with np.errstate(all="ignore"):  # headers may hold any number
            desc = format.call("describe", paths[0], paths, **{**given, **options})
    except DatasetError as error:
        better = wrong_format(error, format, paths[0], named=name is not None)
        if better is None:
            raise
        raise better from error
    if not isinstance(desc, Description):
        problem = f"describe of the format {format.name!r} must return a Description"
        raise DatasetError(problem, path=paths[0], found=type(desc).__name__)
    sig_shape = common["sig_shape"]
    if sig_shape is not None and desc.sig_shape != sig_shape:
        problem = "the frames have a different shape"
        raise DatasetError(problem, path=paths[0], expected=desc.sig_shape, found=sig_shape)
    metadata = _without_nan(desc.metadata)
    instrument = replace(desc.instrument, metadata=metadata, entries=format.instrument)
    return replace(desc, format=format.name, metadata=metadata, instrument=instrument)


def _without_nan(value: Any) -> Any:
    """Replace NaN in metadata by None: NaN breaks equality."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = map(_without_nan, value)
        return tuple(items) if isinstance(value, tuple) else [*items]
    return None if isinstance(value, (float, complex)) and cmath.isnan(value) else value


_OF_ALL_KINDS = {".toml"}
"""Suffixes of general file types, which do not imply a format."""


def detect(path: str) -> Format:
    """Return the format of a file, detected from its content, or else from its suffix.

    Formats with the file's suffix are tried first.

    Raises
    ------
    UnknownFormatError
        No format recognises the file, and its suffix is not that of a single format.
    """
    suffix = os.path.splitext(path)[1].lower()
    claimants = [format for format in formats().values() if suffix in format.extensions]
    others = [format for format in formats().values() if suffix not in format.extensions]
    reasons: dict[str, str] = {}
    head = read_head(path, HEAD_BYTES)
    format = recognised_by((*claimants, *others), path, reasons, head)
    if format is None and len(claimants) == 1 and suffix not in _OF_ALL_KINDS:
        return claimants[0]
    if format is None:
        raise unrecognised(path, reasons, head)
    return format


def _found(path: str, common: Mapping[str, Any]) -> Format:
    """Detect the format of a file; raw if none matches, given ``dtype`` and ``sig_shape``."""
    try:
        return detect(path)
    except UnknownFormatError:
        if common["dtype"] is None or common["sig_shape"] is None:
            raise
        return formats()["raw"]
