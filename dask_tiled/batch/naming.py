"""The targets of a batch: their names, and which may not be written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from string import Formatter
from typing import Any

from dask_tiled.batch.records import FOLDER
from dask_tiled.converting.convert import KINDS, OF_SEVERAL, ZARR
from dask_tiled.errors import DatasetError
from dask_tiled.files.paths import OF_ZARR

_SAMPLE = {"stem": "scan", "suffix": ".mib", "folder": "night", "picture": "map", "number": 0}
FIELDS = tuple(_SAMPLE)


class TargetNames:
    """The paths of targets, by a template.

    Parameters
    ----------
    folder : str
        The folder of the targets.
    name : str
        Path of a target below the folder, without suffix.
    suffix : str
        Suffix of the targets.
    roots : iterable of str
        The folders that are sources.
    together : bool
        Whether the pictures of a dataset have one target.

    Raises
    ------
    DatasetError
        The name or the suffix is invalid.
    """

    def __init__(
        self, folder: str, name: str, suffix: str, roots: Iterable[str], *, together: bool
    ) -> None:
        _check_suffix(suffix, together=together)
        fields = _checked(name)
        self._folder, self._name, self._suffix = folder, name, suffix
        self._roots = sorted(roots, key=len, reverse=True)
        self._is_for_one = not {"picture", "number"} & fields

    def target(self, path: str, picture: str | None = None, number: int = 0) -> str:
        """Return the target of a source, or of one of its pictures if it has several."""
        name = self._name
        if picture is not None and self._is_for_one:
            name += "-{picture}"
        return self._target(name, path, picture, number)

    def _target(self, name: str, path: str, picture: str | None = None, number: int = 0) -> str:
        root = next((one for one in self._roots if is_below(path, one)), os.path.dirname(path))
        stem = _stem(path)
        values: dict[str, Any] = {
            "stem": stem,
            "suffix": os.path.basename(path)[len(stem) :],
            "folder": os.path.dirname(os.path.relpath(path, root)) if path != root else "",
            "picture": re.sub(r"[^\w.+-]+", "_", picture).strip(".") if picture else "",
            "number": number,
        }
        place = name.format_map(values).strip("/")
        return os.path.normpath(os.path.join(self._folder, f"{place}{self._suffix}"))

    def is_zarr(self, folder: str) -> bool:
        """Return whether the folder of the targets, or one below it, is a zarr group or array."""
        if not is_below(folder, self._folder):
            return False
        return any(os.path.exists(os.path.join(folder, name)) for name in OF_ZARR)

    def problem(self, target: str) -> str:
        """Return why a target may not be written; empty if it may."""
        place = os.path.relpath(target, self._folder)
        steps = place.split(os.sep)
        if steps[0] != os.pardir and FOLDER not in steps and steps[-1] != self._suffix:
            return ""
        expected = f"a name below the folder of the results, not in {FOLDER}"
        return str(DatasetError("invalid name of the result", expected=expected, found=repr(place)))

    def remedy(self, first: str, second: str) -> str:
        """Return how two sources with equal targets are kept apart."""
        if first == second:
            return f"Pass a name with more fields, such as '{self._name}-{{number}}'."
        more = {"{folder}": f"{{folder}}/{self._name}", "{suffix}": f"{self._name}{{suffix}}"}
        for field, name in more.items():
            if self._target(field, first) != self._target(field, second):
                return f"Pass a name with more fields, such as '{name}'."
        return "Convert them to different folders."


def target_conflicts(
    targets: Iterable[tuple[str, str, str]], files: dict[str, str], names: TargetNames
) -> Iterator[tuple[int, DatasetError]]:
    """Yield the targets that are equal, or within each other, a source or any zarr group.

    Parameters
    ----------
    targets : iterable of (str, str, str)
        Each target, the path of its source, and the name of the source in messages.
    files : dict
        The source of each file that is read.
    names : TargetNames

    Yields
    ------
    int
        Number of the target.
    DatasetError
        Why it may not be written.
    """
    owners = dict[str, tuple[int, str, str]]()
    for number, (target, source, label) in enumerate(targets):
        if target in files:
            problem, hint = "the target is a file of a source", "Use another folder."
            yield number, DatasetError(problem, path=target, found=files[target], hint=hint)
            continue
        first = owners.setdefault(os.path.normcase(target), (number, source, label))
        if first[0] != number:
            yield (
                number,
                DatasetError(
                    "two sources have the same target",
                    path=target,
                    found=f"{first[2]} and {label}",
                    hint=names.remedy(first[1], source),
                ),
            )
    checked = set[str]()
    for target, (number, *_) in owners.items():
        folder = os.path.dirname(target)
        while folder not in checked:
            checked.add(folder)
            if folder in files or folder in owners or names.is_zarr(folder):
                problem, hint = "the target is within another dataset", "Use another folder."
                yield number, DatasetError(problem, path=target, found=folder, hint=hint)
            folder = os.path.dirname(folder)


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is a folder or below it."""
    return path == folder or path.startswith(os.path.join(folder, ""))


def _check_suffix(suffix: str, *, together: bool) -> None:
    known = *KINDS, ZARR
    if suffix not in known:
        raise DatasetError("unknown suffix", expected=f"one of {', '.join(known)}", found=suffix)
    if together and suffix not in OF_SEVERAL:
        expected = " or ".join(OF_SEVERAL)
        raise DatasetError("the format holds one array", expected=expected, found=suffix)


def _checked(name: str) -> set[str]:
    """Check a template; return its fields."""
    expected = f"a relative path with {{stem}}; fields are {', '.join(FIELDS)}"
    error = DatasetError("invalid name", expected=expected, found=repr(name))
    try:
        parts = [(field, spec or "") for _, field, spec, _ in Formatter().parse(name) if field]
        shown = name.format_map(_SAMPLE)
    except (ValueError, LookupError, AttributeError, TypeError) as cause:
        raise error from cause
    fields = {field for field, _ in parts}
    steps = {*re.split(r"[\\/]", name), *re.split(r"[\\/]", shown)}
    is_nested = any("{" in spec for _, spec in parts)
    if is_nested or fields - {*FIELDS} or {os.pardir, FOLDER} & steps or os.path.isabs(name):
        raise error
    if not shown or "\0" in shown:
        raise error
    return fields


def _stem(path: str) -> str:
    name = os.path.basename(path)
    lower = name.lower()
    suffix = next((one for one in (*KINDS, ZARR) if lower.endswith(one)), None)
    stem = name[: -len(suffix)] if suffix else os.path.splitext(name)[0]
    return stem or name
