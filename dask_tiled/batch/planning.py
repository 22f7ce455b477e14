"""Which pictures a batch converts, and the target of each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from string import Formatter
from typing import Any, NamedTuple

from dask_tiled.batch.records import read_record
from dask_tiled.cataloguing.discovering import Discovery, FoundDataset
from dask_tiled.cataloguing.headers import PictureHeader
from dask_tiled.cataloguing.rows import CatalogueRow
from dask_tiled.cataloguing.tables import read_csv
from dask_tiled.cataloguing.walking import Stamp
from dask_tiled.converting.convert import KINDS, OF_SEVERAL, ZARR
from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.files.paths import absolute

Source = str | os.PathLike[str] | CatalogueRow
FIELDS = "stem", "folder", "picture", "number"
_UNFINISHED = re.compile(r"\.part(?=[\\/]|$)")


class PlannedConversion(NamedTuple):
    """A picture, or all pictures of a dataset, and its target."""

    source: str
    """The path to open."""
    target: str
    picture: str = ""
    """Name of the picture, if the dataset has several."""
    options: Mapping[str, Any] = {}
    """Options of ``open_dataset`` that select the picture."""
    files: tuple[str, ...] = ()
    """All files of the dataset."""
    stamp: Stamp = Stamp(0, 0)
    """Bytes of the files, and their latest change, when they were listed."""
    nbytes: int = 0
    """Bytes of pixels, or of the files if the pixels are unknown."""
    problem: str = ""
    """Why it cannot be opened; empty if it can."""


class ConversionPlan:
    """The conversions of a batch, in the order of the sources.

    Parameters
    ----------
    sources : sequence of path-like or CatalogueRow
        Files, folders, catalogues in CSV, and rows of a catalogue.
    target : str
        The folder of the targets.
    suffix : str
        Suffix of the targets.
    name : str
        Names of the targets, without suffix.
    pattern, recursive
        As for a catalogue.
    together : bool
        Whether the pictures of a dataset have one target.
    always : bool
        Whether to open files that no format recognises by their headers.

    Attributes
    ----------
    conversions : list of PlannedConversion
    others : int
        Number of files that are no datasets.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        target: str,
        *,
        suffix: str,
        name: str,
        pattern: str | Sequence[str] | None,
        recursive: bool,
        together: bool,
        always: bool,
    ) -> None:
        fields = _checked(name, suffix, together=together)
        given, self._chosen = _chosen(sources)
        self._roots = sorted(filter(os.path.isdir, given), key=len, reverse=True)
        self._target, self._suffix, self._name = target, suffix, name
        self._is_named = bool({"picture", "number"} & fields)
        self._always = always
        search = Discovery(given, pattern=pattern, recursive=recursive)
        self.conversions: list[PlannedConversion] = []
        seen = set[str]()
        for found in search:
            seen.update(found.files)
            if not self._is_target(found.path):
                self.conversions += self._of(found, together=together)
        lost = [path for path in given if path not in seen and os.path.isfile(path)]
        self.conversions += [self._of_unrecognised(path) for path in lost]
        for path, problem in search.problems.items():
            self.conversions.append(PlannedConversion(path, "", problem=problem))
        self.others = search.others - len(lost)
        _check_targets(self.conversions)

    def _is_target(self, path: str) -> bool:
        """Return whether this batch has written a dataset, or has not finished it."""
        if not _is_below(path, self._target):
            return False
        return read_record(path) is not None or _UNFINISHED.search(path) is not None

    def _of(self, found: FoundDataset, *, together: bool) -> Iterator[PlannedConversion]:
        problem = "" if self._always else found.problem
        if together or found.problem:
            nbytes = sum(one.nbytes for one in found.pictures) or found.stamp.nbytes
            facts = found.files, found.stamp, nbytes, problem
            yield PlannedConversion(found.path, self._place(found.path), "", {}, *facts)
            return
        several, chosen = len(found.pictures) > 1, self._chosen.get(found.path)
        for number, one in enumerate(found.pictures):
            if chosen is not None and one.options not in chosen:
                continue
            place = self._place(found.path, one if several else None, number)
            name, nbytes = one.name if several else "", one.nbytes or found.stamp.nbytes
            of_one = one.options, found.files, found.stamp, nbytes, one.problem
            yield PlannedConversion(found.path, place, name, *of_one)

    def _of_unrecognised(self, path: str) -> PlannedConversion:
        """Return the conversion of a given file; opening it tells why it is no dataset."""
        nbytes = os.path.getsize(path)
        return PlannedConversion(path, self._place(path), files=(path,), nbytes=nbytes)

    def _place(self, path: str, picture: PictureHeader | None = None, number: int = 0) -> str:
        root = next((one for one in self._roots if _is_below(path, one)), os.path.dirname(path))
        shown = re.sub(r"[^\w.+-]+", "_", picture.name).strip(".") if picture else ""
        name = self._name
        if picture is not None and not self._is_named:
            name += "-{picture}"
        inner = os.path.dirname(os.path.relpath(path, root)) if path != root else ""
        values = {"stem": _stem(path), "folder": inner, "picture": shown, "number": number}
        place = name.format_map(values).strip("/")
        return os.path.normpath(os.path.join(self._target, f"{place}{self._suffix}"))


def part_of(
    conversions: Iterable[PlannedConversion], folder: str, number: int, count: int
) -> list[PlannedConversion]:
    """Return one of ``count`` parts, by a hash of the path of each target below a folder.

    A conversion is in the same part on all machines, whatever other files are there. Without a
    target, it is in every part: not all machines may see its problem.
    """
    check_whole("the number of parts", count, least=1)
    check_whole("part", number, least=1, most=count)
    return [
        one
        for one in conversions
        if not one.target or _hash(os.path.relpath(one.target, folder)) % count == number - 1
    ]


def _hash(path: str) -> int:
    text = os.fsencode(path.replace(os.sep, "/"))
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def _chosen(
    sources: Iterable[Source],
) -> tuple[list[str], dict[str, list[Mapping[str, Any]]]]:
    """Return the paths of sources, and the options of the pictures that catalogues list."""
    paths, chosen = dict[str, None](), dict[str, list[Mapping[str, Any]]]()
    for source in sources:
        listed: Iterable[tuple[str, Mapping[str, Any]]] | None = None
        if isinstance(source, CatalogueRow):
            listed = [(source.path, source.options)]
        elif os.fspath(source).lower().endswith(".csv") and os.path.isfile(source):
            listed = read_csv(os.fspath(source))
        if listed is None and not isinstance(source, CatalogueRow):
            paths[absolute(source)] = None
        for path, options in listed or ():
            paths[absolute(path)] = None
            chosen.setdefault(absolute(path), []).append(options)
    return [*paths], chosen


def _checked(name: str, suffix: str, *, together: bool) -> set[str]:
    """Check the name and the suffix of targets; return the fields of the name."""
    known = *KINDS, ZARR
    if suffix not in known:
        raise DatasetError("unknown suffix", expected=f"one of {', '.join(known)}", found=suffix)
    if together and suffix not in OF_SEVERAL:
        expected = " or ".join(OF_SEVERAL)
        raise DatasetError("the format holds one array", expected=expected, found=suffix)
    expected = f"a relative path with {{stem}}; fields are {', '.join(FIELDS)}"
    try:
        fields = {field for _, field, *_ in Formatter().parse(name) if field is not None}
    except ValueError as error:
        raise DatasetError("invalid name", expected=expected, found=repr(name)) from error
    steps = re.split(r"[\\/]", name)
    if not name or fields - {*FIELDS} or ".." in steps or os.path.isabs(name):
        raise DatasetError("invalid name", expected=expected, found=repr(name))
    return fields


def _check_targets(conversions: Iterable[PlannedConversion]) -> None:
    """Refuse equal targets, and targets that are files of a source."""
    owners = dict[str, PlannedConversion]()
    all_files = {path: one.source for one in conversions for path in one.files}
    for one in conversions:
        if not one.target:
            continue
        place = os.path.normcase(one.target)
        if one.target in all_files:
            problem, found = "the target is a file of a source", all_files[one.target]
            raise DatasetError(problem, path=one.target, found=found, hint="Use another folder.")
        first = owners.setdefault(place, one)
        if first is not one:
            raise DatasetError(
                "two sources have the same target",
                path=one.target,
                found=" and ".join(_label(x) for x in (first, one)),
                hint="Pass a name with more fields, such as '{folder}/{stem}'.",
            )


def _label(one: PlannedConversion) -> str:
    return f"{one.source} ({one.picture!r})" if one.picture else one.source


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _stem(path: str) -> str:
    name = os.path.basename(path)
    lower = name.lower()
    suffix = next((one for one in (*KINDS, ZARR) if lower.endswith(one)), None)
    stem = name[: -len(suffix)] if suffix else os.path.splitext(name)[0]
    return stem or name
