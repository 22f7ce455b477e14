"""File formats: their class, registry and detection."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dask_tiled.errors import (
    CorruptFileError,
    DatasetError,
    Guard,
    UnknownFormatError,
    exception_text,
    nearest,
    warn,
)
from dask_tiled.files.file import is_refusal, read_head
from dask_tiled.files.paths import in_folder, is_file, is_url
from dask_tiled.model.corrections import Corrections
from dask_tiled.model.description import Description
from dask_tiled.model.headers import Headers, Records
from dask_tiled.model.instrument import VOCABULARY, Entry
from dask_tiled.model.tables import html_table, text_table
from dask_tiled.model.tile_request import AdjustTile


@dataclass(frozen=True, slots=True)
class Format:
    """A file format.

    Attributes
    ----------
    name : str
        Name for ``open_dataset(format=...)``.
    extensions : tuple of str
        Usual endings of its files, with the dot.
    summary : str
        Summary of the supported files, in one line.
    nav_shape_from : str
        Where the scan shape comes from, in a few words.
    sniff : callable
        ``sniff(path, head)`` sees the first 4096 bytes of a file and returns None if the file is of
        this format, or else a short reason why it is not.
    describe : callable
        ``describe(paths, **options)`` returns a :class:`Description`. Its keyword-only parameters
        are the options of the format; ``nav_shape``, ``sig_shape`` and ``dtype`` are passed to
        formats that have them.
    corrections : callable, optional
        ``corrections(desc)`` reads the corrections that came with the files, for
        ``open_dataset(corrections="dataset")``; it raises DatasetError if there are none.
    headers : callable, optional
        ``headers(desc)`` returns layout and fields of the frame headers, for
        :func:`~dask_tiled.frame_facts`; or, for formats without frame headers, a
        structured array of facts about each frame. It raises DatasetError if
        a file has no such facts.
    instrument : mapping
        Where the metadata hold facts about the instrument: names of the vocabulary, and for
        each a sequence of :class:`~dask_tiled.formats.tools.Entry`, of which the first with a
        value is used.
    adjust_tile : callable, optional
        ``adjust_tile(shape, request)`` returns the shape that a negotiated tile should have
        instead, if ``base_shape`` of a description cannot express it: frames, then signal axes. The
        :class:`~dask_tiled.formats.tools.TileRequest` limits it; the first line of the
        docstring is the reason that schemes show.
    peers : tuple of str
        Other libraries that read the format.
    implied : str or tuple of str
        Suffixes that may be omitted from a path; for folders, a slash and a file name.
    aliases : tuple of str
        Other names of the format, in lower case with ``_``.

    Examples
    --------
    >>> import dask_tiled
    >>> form = dask_tiled.formats()["npy"]
    >>> isinstance(form, dask_tiled.Format), form.extensions
    (True, ('.npy',))
    """

    name: str
    extensions: tuple[str, ...]
    summary: str
    nav_shape_from: str
    sniff: Callable[[str, bytes], str | None]
    describe: Callable[..., Description]
    corrections: Callable[[Description], Corrections] | None = None
    headers: Callable[[Description], Headers | Records] | None = None
    instrument: Mapping[str, Sequence[Entry]] = field(default_factory=dict, hash=False)
    adjust_tile: AdjustTile | None = None
    peers: tuple[str, ...] = ()
    implied: str | tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        extensions: Any = self.extensions
        if isinstance(extensions, str):
            problem = f"format {self.name!r}: extensions must be a tuple"
            raise DatasetError(problem, expected=(extensions,), found=repr(extensions))
        for extension in extensions:
            if not extension.startswith("."):
                problem = f"format {self.name!r}: extensions must begin with a dot"
                raise DatasetError(problem, expected=f".{extension}", found=extension)
        for name in self.instrument:
            if name not in VOCABULARY:
                problem = f"format {self.name!r}: unknown name in the instrument vocabulary"
                raise DatasetError(problem, expected=", ".join(VOCABULARY), found=name)
        try:
            self.options()
        except Exception as error:
            problem = f"format {self.name!r}: the parameters of describe cannot be listed"
            raise DatasetError(problem, found=exception_text(error)) from error

    def options(self) -> dict[str, Any]:
        """Return the options of the format with their defaults."""
        parameters = inspect.signature(self.describe).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def call(
        self,
        name: str,
        path: str,
        *args: Any,
        kind: type[DatasetError] = CorruptFileError,
        **options: Any,
    ) -> Any:
        """Call a function of the format for a file.

        Functions of plug-ins raise any exceptions; a :class:`~dask_tiled.errors.Guard` converts
        them to errors of the type ``kind``.
        """
        with Guard(path, f"{name} of the format {self.name!r} fails", kind=kind):
            return getattr(self, name)(*args, **options)


# fmt: off
_MODULES = (
    "npy", "mib", "frms6", "k2is", "hdf5", "dm", "ser", "blo", "seq", "mrc", "tvips", "nifti",
    "edf", "fits", "mgh", "gis", "empad", "nrrd", "metaimage", "ripple", "nd2", "lif", "czi",
    "ome_tiff", "tiff", "zarr", "raw_csr", "tpx3", "bcf", "pts", "jeol", "beton", "ndata", "npz",
    "raw",
)
# fmt: on
"""Modules and packages with formats, in the order in which they are tried."""
_registered: dict[str, Format] = {}


def register_format(format: Format) -> None:
    """Add a format, or replace one of the same name, in this process.

    A package can register a format in all processes by an entry point of the group
    ``dask_tiled.formats`` that refers to its :class:`Format`.

    Parameters
    ----------
    format : Format
        The format; it replaces one of the same name.

    Examples
    --------
    >>> import numpy as np
    >>> import dask_tiled
    >>> from dask_tiled.formats import tools
    >>> def sniff(path, head):
    ...     return None if head.startswith(b"MINE") else "does not begin with MINE"
    >>> def describe(paths):
    ...     file = tools.File.only(paths, "mine")
    ...     record = tools.Record((64, 64), tools.plain(np.dtype("<u2")))
    ...     layout = tools.lay_out([file], record, 4)
    ...     return tools.Description.of("mine", layout, {})
    >>> mine = dask_tiled.Format("mine", (".mine",), "64 x 64", "one axis", sniff, describe)
    >>> dask_tiled.register_format(mine)
    >>> "mine" in dask_tiled.formats()
    True
    """
    _registered[_checked(format).name] = format


def pickled_formats() -> bytes:
    """Return the registered formats for :func:`add_formats` of child processes; empty without any.

    Raise a DatasetError if they cannot be pickled.
    """
    if not _registered:
        return b""
    import cloudpickle  # functions of scripts and notebooks

    try:
        return cloudpickle.dumps([*_registered.values()])
    except Exception as error:
        problem = "registered formats cannot be sent to child processes"
        hint = "Define them in a module, by functions without open files."
        raise DatasetError(problem, found=exception_text(error), hint=hint) from error


def add_formats(pickled: bytes) -> None:
    """Register the formats of another process."""
    for format in pickle.loads(pickled) if pickled else ():  # noqa: S301 - from the parent process
        register_format(format)


class Formats(dict[str, Format]):
    """Formats by name; prints as a table."""

    def rows(self) -> list[tuple[str, ...]]:
        """List name, suffixes, summary and options of each format, after a header row."""
        rows: list[tuple[str, ...]] = [("format", "files", "summary", "options")]
        for name, one in self.items():
            rows.append((name, ", ".join(one.extensions), one.summary, ", ".join(one.options())))
        return rows

    def __repr__(self) -> str:
        return text_table([row[:3] for row in self.rows()])

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def formats() -> Formats:
    """Return the formats by name, in the order in which they are tried; prints as a table.

    Returns
    -------
    mapping of str to Format
        The formats of this package, of installed packages and of this process.

    Examples
    --------
    >>> import dask_tiled
    >>> dask_tiled.formats()["mib"].extensions
    ('.mib', '.hdr')
    """
    return Formats({**_installed(), **_registered})


@cache
def _installed() -> Mapping[str, Format]:
    from importlib.metadata import entry_points  # takes as long to import as this package

    own = {name: _own(name) for name in _MODULES}
    others = {}
    for entry in entry_points(group="dask_tiled.formats"):
        try:
            others[entry.name] = _checked(entry.load())
        except Exception as error:  # noqa: BLE001 - plug-ins may raise any error
            warn(f"format {entry.name!r} cannot be used: {error!r}")
    return {**others, **own}


def _checked(format: Any) -> Format:
    if isinstance(format, Format):
        return format
    found = type(format).__name__
    raise DatasetError("not a format", expected="a dask_tiled.Format", found=found)


def _own(name: str) -> Format:
    module = importlib.import_module(f"dask_tiled.formats.{name}")
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{module.__name__}.descriptor")
    return module.FORMAT


HEAD_BYTES = 4096
"""Bytes at the start of a file that ``sniff`` receives."""


def named(name: Any, path: str | None = None) -> Format:
    """Return a format by name, alias or suffix, in any case.

    Raise an UnknownFormatError if there is no such format.
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
        "no such format", expected=f"one of {', '.join(there)}", found=repr(name), hint=hint
    )


def recognised_by(
    candidates: Iterable[Format], path: str, reasons: dict[str, str], head: bytes | None = None
) -> Format | None:
    """Return the first format that recognises a file; collect the reasons of the others.

    ``head`` are the first `HEAD_BYTES` bytes; they are read unless they are given.
    """
    head = read_head(path, HEAD_BYTES) if head is None else head
    for format in candidates:
        try:
            reason = format.call("sniff", path, path, head)
        except (DatasetError, OSError) as error:
            if is_refusal(error):  # the result may depend on it
                raise
            reason = f"failed with {exception_text(error.__cause__ or error)}"
        if reason is None:
            return format
        reasons[format.name] = reason
    return None


def completed(path: str) -> str:
    """Add a suffix that the user omitted, if only the path with it exists.

    URLs are only checked if they look like folders.
    """
    implied = [
        (format, suffix)
        for format in formats().values()
        for suffix in ((format.implied,) if isinstance(format.implied, str) else format.implied)
        if suffix
    ]
    if is_url(path):
        folders = [
            path.rstrip("/") + suffix
            for format, suffix in implied
            if suffix[0] == "/" and path.endswith(("/", *format.extensions))
        ]
        return next(filter(is_file, folders), path)
    folder = os.path.isdir(path)
    if os.path.lexists(path) and not folder:
        return path
    whole = [
        in_folder(path, suffix[1:]) if suffix[0] == "/" else path + suffix
        for _, suffix in implied
        if suffix[0] == "/" or not folder
    ]
    return next(filter(os.path.isfile, whole), path)
