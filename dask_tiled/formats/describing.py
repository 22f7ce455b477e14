"""From the paths that a user gives to the files, their format, and the description of them."""

from __future__ import annotations

import cmath
import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import IOBase
from typing import Any

import numpy as np

from dask_tiled.errors import (
    CorruptFileError,
    DatasetError,
    TruncatedFileError,
    UnknownFormatError,
    nearest,
)
from dask_tiled.formats.registry import Format, formats
from dask_tiled.formats.tools.files import natural_key
from dask_tiled.model.description import Description
from dask_tiled.model.files import File, is_following, is_refusal, read_head
from dask_tiled.model.paths import OF_AXES, absolute, is_file, is_url, list_folder
from dask_tiled.remote.session import Session, opened_together, session
from dask_tiled.remote.stores import Options

Path = str | os.PathLike[str]

_NO_PATHS = (bytes, AbstractSet, Mapping, IOBase)
"""What can be iterated over, but is no list of paths: a set has no order, for one."""


@contextmanager
def expanded(
    path: Path | Sequence[Path], storage_options: Options = None
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Turn a path, a list or a pattern into paths; tell whether exactly these files are meant.

    Inside of it, URLs are looked at with the storage options, and each of them once.

    Yields
    ------
    tuple of str, bool
        The paths, URLs without their queries, and whether no others belong to them.
    """
    listed = not isinstance(path, (str, os.PathLike))
    paths = _listed(path) if listed else (_path_text(path),)
    urls = [one for one in paths if is_url(one)]
    if urls and len(urls) < len(paths):
        local = next(one for one in paths if not is_url(one))
        raise DatasetError("files in one list lie on this machine, and behind URLs", path=local)
    if not urls:
        if storage_options is not None:
            problem = "storage options tell how to read URLs"
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
        raise DatasetError("no path", expected="a path, or a list of paths", found=repr(path))
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
    return tuple(os.path.join(folder, name) for name in found), True


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that a pattern matches, but for axes that are saved beside a scan."""
    return [name for name in fnmatch.filter(names, pattern) if not name.endswith(OF_AXES)]


def _matches(text: str) -> tuple[tuple[str, ...], bool]:
    if not glob.has_magic(text) or os.path.lexists(text):  # brackets occur in names too
        return (text,), False
    matches = tuple(sorted(_found_by(text), key=natural_key))
    if not matches:
        raise FileNotFoundError(f"no file matches {text}")
    return matches, True


def _found_by(pattern: str) -> Iterator[str]:
    """List what a pattern matches; unlike in glob, a folder that cannot be listed is an error."""
    folder, name = os.path.split(pattern)
    literal = os.path.isdir(folder) or not glob.has_magic(folder)  # brackets occur in names too
    for place in [folder] if literal else _found_by(folder):
        if not glob.has_magic(name):
            found = [name] if os.path.lexists(os.path.join(place, name)) else []
        else:
            there = list_folder(place) if os.path.isdir(place or ".") else None
            hidden = name.startswith(".")
            found = [one for one in _matching(there or (), name) if hidden or one[0] != "."]
        yield from (os.path.join(place, one) for one in found)


def _path_text(path: Any) -> str:
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str) or "\0" in text or not text:
        raise DatasetError("no path", expected="a path as text", found=repr(path))
    return text.removeprefix("file://")


def from_the_root(path: Any) -> Any:
    """Write a path so that it stays the same when the working directory changes."""
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        plain = isinstance(text, str) and text and "\0" not in text and "://" not in text
        return absolute(text) if plain else path
    return [*map(from_the_root, path)] if isinstance(path, (list, tuple)) else path


def describe_begun(
    name: str | None,
    paths: tuple[str, ...],
    common: Mapping[str, Any],
    options: Mapping[str, Any],
    general: Sequence[str],
    *,
    listed: bool,
) -> Description:
    """Describe files; while they are followed, without the last of several if it has no frame.

    The parameters are those of :func:`describe_as`.
    """
    ask = partial(describe_as, name, common=common, options=options, listed=listed, general=general)
    try:
        return ask(paths)
    except DatasetError as error:
        at = None if error.path is None else absolute(error.path)
        if not is_following() or len(paths) < 2 or at != absolute(paths[-1]):
            raise
    return ask(paths[:-1])


def describe_as(
    name: str | None,
    paths: tuple[str, ...],
    common: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    listed: bool,
    general: Sequence[str] = (),
) -> Description:
    """Describe files, in a format that is named or found out.

    What is common to all formats, ``nav_shape``, ``sig_shape`` and ``dtype``, is handed over to
    those that have an option of that name. Unless exactly these files are meant, formats with an
    option ``series`` look for the series that a file belongs to. ``general`` are the parameters
    that are no options, which a mistyped one may have meant.
    """
    File.at(paths[0])  # before anything is opened: a pipe would wait for ever
    format = _found(paths[0], common) if name is None else named(name, paths[0])
    known = format.options()
    unknown = sorted(set(options) - set(known))
    if unknown:
        problem = f"format {format.name!r} has no option {unknown[0]!r}"
        hint = nearest(unknown[0], (*known, *general))
        own = ", ".join(sorted(set(known) - set(common)))
        expected = f"one of {own}" if own else "no options"
        raise DatasetError(problem, path=paths[0], expected=expected, hint=hint)
    given: dict[str, Any] = {key: value for key, value in common.items() if key in known}
    if "series" in known and listed:
        given["series"] = False
    try:
        with np.errstate(all="ignore"):  # headers may hold any number
            desc = format.describe(paths, **{**given, **options})
    except DatasetError as error:
        if name is None:
            other = disputed(format, paths[0], error)
            if other is None:
                raise
            raise other from error
        better = _recognised(paths[0])
        if better in (None, format) or error.hint is not None:
            raise
        values = {key: getattr(error, key) for key in ("path", "where", "expected", "found")}
        hint = f"The file looks like {better.name}: pass that as format=, or none."
        raise type(error)(error.problem, **values, hint=hint) from error
    sig_shape = common["sig_shape"]
    if sig_shape is not None and desc.sig_shape != sig_shape:
        problem = "the frames have another shape"
        raise DatasetError(problem, path=paths[0], expected=desc.sig_shape, found=sig_shape)
    metadata = _without_nan(desc.metadata)
    instrument = replace(desc.instrument, metadata=metadata, entries=format.instrument)
    return replace(desc, format=format.name, metadata=metadata, instrument=instrument)


def _without_nan(value: Any) -> Any:
    """Put None for NaN in metadata: what is described has to equal itself."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = map(_without_nan, value)
        return tuple(items) if isinstance(value, tuple) else [*items]
    return None if isinstance(value, (float, complex)) and cmath.isnan(value) else value


def _found(path: str, common: Mapping[str, Any]) -> Format:
    """Find out the format of a file; one that no format knows is raw, if all is said of it."""
    try:
        return detect(path)
    except UnknownFormatError:
        if common["dtype"] is None or common["sig_shape"] is None:
            raise
        return formats()["raw"]


def _recognised(path: str) -> Format | None:
    return recognised_by(formats().values(), path, {})


def completed(path: str) -> str:
    """Add the suffix that a user has left out, where the file is there with it only.

    Of URLs, only those are asked for that look like folders.
    """
    every = [
        (one, (one.implied,) if isinstance(one.implied, str) else one.implied)
        for one in formats().values()
    ]
    implied = [(format, suffix) for format, suffixes in every for suffix in suffixes if suffix]
    if is_url(path):
        folders = [
            path.rstrip("/") + suffix
            for format, suffix in implied
            if suffix[0] == "/" and path.endswith(("/", *format.extensions))
        ]
        return next(filter(is_file, folders), path)
    if os.path.lexists(path) and not os.path.isdir(path):
        return path
    whole = [path + s for _, s in implied if s[0] == "/" or not os.path.isdir(path)]
    return next(filter(os.path.isfile, whole), path)


HEAD_BYTES = 4096
"""Bytes at the start of a file that a format sees when it says whether the file is its own."""
# fmt: off
_SIGNATURES = (
    (0, b"\x89PNG\r\n", "a PNG image"), (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"), (0, b"%PDF-", "a PDF document"),
    (0, b"PK\x03\x04", "a ZIP archive, or an .npz file of NumPy"), (0, b"BZh", "a bzip2 file"),
    (0, b"\x1f\x8b", "a gzip file"), (0, b"\xfd7zXZ", "an xz file"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard file"), (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (257, b"ustar", "a tar archive"), (0, b"CDF", "a netCDF file of before version 4"),
    (0, b"MATLAB 5", "a MATLAB 5 file, of before version 7.3"), (128, b"DICM", "a DICOM file"),
    (0, b"ZISRAWFILE", "a Zeiss CZI file"), (0, b"\xda\xce\xbe\x0a", "a Nikon ND2 file"),
    (8, b"AVI ", "an AVI video"), (4, b"ftyp", "an MP4 video"), (0, b"PAR1", "a Parquet file"),
    (0, b"SQLite format 3", "an SQLite database"), (0, b"\x80\x04\x95", "a pickle of Python"),
    (0, b"version https://git-lfs", "a pointer of Git LFS: the file itself was not fetched"),
    (0, b"{\nHEADER_BYTES=", "a diffraction image in the SMV format of ADSC detectors"),
    (0, b"EHFA_HEADER_TAG", "an ERDAS Imagine file"),
)
# fmt: on
"""What else files begin with that people try to open: at which byte, what, and what it is."""
_RECORDING = re.compile(rb"(0 {7}|\xffBIOSEMI)[ -~]{160}\d\d\.\d\d\.\d\d")
"""Version, patient, recording and date."""
_ADVICE = {
    "a MATLAB 5": "Save it with -v7.3 in MATLAB, or read it with scipy.io.loadmat.",
    "an EEG": "It holds no images; MNE-Python reads such files.",
    "a gzip": "Decompress it.",
    "a bzip2": "Decompress it.",
    "an xz": "Decompress it.",
}
"""What to do, by the beginning of what it is."""
_HINT = (
    "Pass format= if you know it, or dtype= and sig_shape= if it holds plain frames;"
    " formats() tells what is read."
)
_OF_ALL_KINDS = {".toml"}
"""Suffixes that say nothing: the settings of any program are called so."""


def named(name: Any, path: str | None = None) -> Format:
    """Find the format that a user names: by its name, another name or a suffix, in any case.

    Raises
    ------
    UnknownFormatError
        There is none.
    """
    there, hint = formats(), None
    if isinstance(name, str):
        if name in there:
            return there[name]
        word = name.strip().lower().lstrip(".").replace("-", "_").replace(" ", "_")
        meant = [one for one in there.values() if word in (one.name, *one.aliases)]
        meant = meant or [one for one in there.values() if f".{word}" in one.extensions]
        if meant:
            return (path is not None and recognised_by(meant, path, {})) or meant[0]
        suffixes = (end[1:] for one in there.values() for end in one.extensions)
        aliases = (alias for one in there.values() for alias in one.aliases)
        hint = nearest(word, (*there, *aliases, *suffixes))
    raise UnknownFormatError(
        "no such format",
        expected=f"one of {', '.join(there)}",
        found=repr(name),
        hint=hint,
    )


def detect(path: str) -> Format:
    """Find out the format of a file: by its content first, by its suffix second.

    Formats whose files usually have that suffix are asked first.

    Raises
    ------
    UnknownFormatError
        None recognises it, and not one alone has its suffix.
    """
    suffix = os.path.splitext(path)[1].lower()
    claimants = [format for format in formats().values() if suffix in format.extensions]
    others = [format for format in formats().values() if suffix not in format.extensions]
    reasons: dict[str, str] = {}
    format = recognised_by((*claimants, *others), path, reasons)
    if format is None and len(claimants) == 1 and suffix not in _OF_ALL_KINDS:
        return claimants[0]
    if format is None:
        raise unrecognised(path, reasons)
    return format


def unrecognised(
    path: str, reasons: Mapping[str, str], *, hint: str | None = None, **details: Any
) -> UnknownFormatError:
    """Return the error for a file whose content no format recognises."""
    look = _signature(path) or _look(path)
    advice = next((text for kind, text in _ADVICE.items() if look.startswith(kind)), None)
    hint = advice or hint or _HINT
    problem = f"no format recognises the file, which looks like {look}"
    return UnknownFormatError(problem, path=path, hint=hint, reasons=reasons, **details)


def disputed(format: Format, path: str, error: DatasetError) -> UnknownFormatError | None:
    """Return the error for a file that is wrong for a format that only its suffix speaks for.

    Returns
    -------
    UnknownFormatError, optional
        None if a format recognises the content, or if ``error`` calls nothing corrupt.
    """
    by_suffix = os.path.splitext(path)[1].lower() in format.extensions
    short = isinstance(error, TruncatedFileError) and _signature(path)
    if not by_suffix or not (short or isinstance(error, CorruptFileError)):
        return None
    reasons: dict[str, str] = {}
    if recognised_by(formats().values(), path, reasons) is not None:
        return None
    told = {name: getattr(error, name) for name in ("where", "expected", "found")}
    other = error.path if error.path and absolute(error.path) != absolute(path) else None
    found = DatasetError(error.problem, path=other, **told)
    expected = f"{format.name}, which the suffix stands for"
    return unrecognised(path, reasons, expected=expected, found=found, hint=error.hint)


def recognised_by(
    candidates: Iterable[Format], path: str, reasons: dict[str, str]
) -> Format | None:
    """Return the first format that recognises the content of a file, and note why others do not."""
    head = read_head(path, HEAD_BYTES)
    for format in candidates:
        try:
            reason = format.sniff(path, head)
        except Exception as error:
            if is_refusal(error):  # the answer may depend on what that is
                raise
            reason = f"failed with {error!r}"
        if reason is None:
            return format
        reasons[format.name] = reason
    return None


def _signature(path: str) -> str:
    """Name what a file is by what it begins with; empty where that is unknown."""
    head = read_head(path, HEAD_BYTES)
    if _RECORDING.match(head):
        return "an EEG recording (EDF, the European Data Format, or BDF)"
    return next((kind for at, magic, kind in _SIGNATURES if head.startswith(magic, at)), "")


def _look(path: str) -> str:
    """Say what people would call a file."""
    if os.fspath(path).endswith(OF_AXES):
        return "axes that are saved beside a scan: open the scan"
    head = read_head(path, HEAD_BYTES)
    if not head.strip(b"\0"):
        return "nothing but zeros at its start: perhaps a copy was not finished"
    try:
        text = head[: HEAD_BYTES - 4].decode()  # not inside of a character
    except UnicodeDecodeError:
        return "binary data"
    if not all(c.isprintable() or c.isspace() for c in text):
        return "binary data"
    page = text.lstrip().lower().startswith(("<!doctype html", "<html"))
    return "a web page: perhaps a download was refused" if page else "text"
