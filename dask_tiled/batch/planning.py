"""Which pictures a batch converts, and the target of each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import blake2b
from typing import Any, NamedTuple

from dask_tiled.batch.naming import TargetNames, is_below, target_conflicts
from dask_tiled.batch.records import read_record
from dask_tiled.cataloguing.discovering import Discovery, FoundDataset
from dask_tiled.cataloguing.rows import CatalogueRow
from dask_tiled.cataloguing.store import HeaderStore
from dask_tiled.cataloguing.tables import read_csv
from dask_tiled.cataloguing.walking import Stamp
from dask_tiled.converting.convert import KINDS, ZARR
from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.files.paths import absolute

Source = str | os.PathLike[str] | CatalogueRow
ConversionKey = tuple[str, str]
_UNFINISHED = re.compile(rf"({'|'.join(map(re.escape, (*KINDS, ZARR)))})\.part(?=[\\/]|$)")


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
    lacking: str = ""
    """How many frames are there, if it is incomplete."""

    @property
    def key(self) -> ConversionKey:
        """What is the same in the next plan, if the files have changed meanwhile."""
        return self.source, self.target or self.problem


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
    part : (int, int), optional
        Number of the part to plan, and of all parts.
    stall : float, optional
        Seconds by the clock for the headers of a file.
    noted : callable
        Called with the conversions of each dataset as soon as it is found.
    store : HeaderStore, optional
        Headers that were read before.

    Attributes
    ----------
    conversions : list of PlannedConversion
        Those of the part.

    Raises
    ------
    DatasetError
        A name is invalid.
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
        part: tuple[int, int] | None = None,
        stall: float | None = None,
        noted: Callable[[Sequence[PlannedConversion]], object] = id,
        store: HeaderStore | None = None,
    ) -> None:
        given, self._chosen = _chosen(sources)
        roots = filter(os.path.isdir, given)
        self._target, self._always = target, always
        self._names = TargetNames(target, name, suffix, roots, together=together)
        how: dict[str, Any] = {"pattern": pattern, "recursive": recursive, "store": store}
        search = Discovery(given, stall=stall, longer="a longer stall=", **how)
        planned: list[PlannedConversion] = []
        files, results = dict[str, str](), set[str]()
        with closing(iter(search)) as datasets:
            for found in datasets:
                if found.path in files:  # given twice
                    continue
                if self._is_result(found.path):
                    results.add(found.path)
                    continue
                files.update(dict.fromkeys(found.files, found.path))
                of_dataset = [*self._of(found, together=together)]
                if found.path in {one.target for one in of_dataset}:
                    results.add(found.path)
                else:
                    planned += of_dataset
                    noted(of_dataset if part is None else part_of(of_dataset, target, *part))
        known = files.keys() | results
        lost = [path for path in given if path not in known and os.path.isfile(path)]
        planned += [self._of_unrecognised(path) for path in lost]
        for path, problem in search.problems.items():
            planned.append(PlannedConversion(path, "", problem=problem))
        self._files = files
        self._whole = [self._with_valid_target(one) for one in planned]
        self._nothing: DatasetError | None = None
        if given and not planned:
            counts = len(results), search.others - len(lost)
            self._nothing = _nothing(given, *counts, matching=pattern is not None)
        self.conversions = self._whole if part is None else part_of(self._whole, target, *part)

    def check(self, *, may_be_empty: bool = False) -> None:
        """Raise a DatasetError if a target may not be written, or there is nothing to convert."""
        if self._nothing is not None and not may_be_empty:
            raise self._nothing
        for _, error in self._conflicts():
            raise error

    def without_conflicts(self) -> list[PlannedConversion]:
        """Return the conversions; those whose targets may not be written have a problem."""
        problems = {one.key: str(error) for one, error in self._conflicts()}
        return [
            one._replace(target="", problem=problems[one.key]) if one.key in problems else one
            for one in self.conversions
        ]

    def _conflicts(self) -> Iterator[tuple[PlannedConversion, DatasetError]]:
        with_target = [one for one in self._whole if one.target]
        targets = [(one.target, one.source, _label(one)) for one in with_target]
        for number, error in target_conflicts(targets, self._files, self._names):
            yield with_target[number], error

    def _is_result(self, path: str) -> bool:
        """Return whether a batch has written a dataset, or has not finished it."""
        if not is_below(path, self._target):
            return False
        below = os.path.relpath(path, self._target)
        return read_record(path) is not None or _UNFINISHED.search(below) is not None

    def _with_valid_target(self, one: PlannedConversion) -> PlannedConversion:
        problem = self._names.problem(one.target) if one.target else ""
        return one._replace(target="", problem=problem) if problem else one

    def _of(self, found: FoundDataset, *, together: bool) -> Iterator[PlannedConversion]:
        problem = "" if self._always else found.problem
        if together or found.problem:
            nbytes = sum(one.nbytes for one in found.pictures) or found.stamp.nbytes
            lacking = "; ".join(one.lacking for one in found.pictures if one.lacking)
            facts = found.files, found.stamp, nbytes, problem, lacking
            yield PlannedConversion(found.path, self._names.target(found.path), "", {}, *facts)
            return
        several, chosen = len(found.pictures) > 1, self._chosen.get(found.path)
        for number, one in enumerate(found.pictures):
            if chosen is not None and one.options not in chosen:
                continue
            place = self._names.target(found.path, one.name if several else None, number)
            name, nbytes = one.name if several else "", one.nbytes or found.stamp.nbytes
            of_one = one.options, found.files, found.stamp, nbytes, one.problem, one.lacking
            yield PlannedConversion(found.path, place, name, *of_one)
        there = [one.options for one in found.pictures]
        for options in chosen or ():
            if options not in there:
                told, problem = json.dumps(options), "the file lacks a picture of the catalogue"
                error = DatasetError(problem, path=found.path, expected=f"options {told}")
                yield PlannedConversion(found.path, "", problem=str(error))

    def _of_unrecognised(self, path: str) -> PlannedConversion:
        """Return the conversion of a given file; opening it tells why it is no dataset."""
        nbytes = os.path.getsize(path)
        return PlannedConversion(path, self._names.target(path), files=(path,), nbytes=nbytes)


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


def _nothing(given: Sequence[str], results: int, others: int, *, matching: bool) -> DatasetError:
    """Return the error that no dataset is to be converted."""
    found = f"{results} results and {others} other files" if results else f"{others} other files"
    return DatasetError(
        "no dataset to convert",
        path=given[0] if len(given) == 1 else None,
        expected="names that match the pattern" if matching else None,
        found=found,
        hint="Pass another folder for the results." if results else None,
    )


def _label(one: PlannedConversion) -> str:
    return f"{one.source} ({one.picture!r})" if one.picture else one.source
