"""The arrays of a zarr group: listed in its document, or found in its folders."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.codecs.array_codecs import NUMBERS
from dask_tiled.errors import DatasetError
from dask_tiled.formats.zarr.documents import DOCUMENT, node_in
from dask_tiled.formats.zarr.folders import Folder
from dask_tiled.formats.zarr.hyperspy import SIGNAL
from dask_tiled.model.doubts import ALIKE, Doubt, by_size_only
from dask_tiled.model.ome_zarr import image_in, levels_of

MOST_FOLDERS = 5_000
"""Search at most this many folders of a group for arrays."""
MOST_REQUESTS = 100
"""The same for groups behind URLs, which take several requests each."""
MOST_DEPTH = 8
MOST_NAMED = 20
"""Name at most this many arrays in an error."""
DATA = "data"
"""The array of an export."""


class Choice(NamedTuple):
    """The array of a group that is opened."""

    name: str
    doubts: tuple[Doubt, ...] = ()


def default_in(folder: Folder, document: Mapping[str, Any], path: str) -> Choice:
    """Return the default array of a group.

    Raise a DatasetError if there is none; ``path`` is the group's document.
    """
    if DATA in _listed(document) or (not folder.is_remote and folder.inside(DATA).entry(DOCUMENT)):
        return Choice(DATA)
    for level in levels_of(image_in(document)):
        return Choice(level)
    if "bioformats2raw.layout" in document.get("attributes", ()):
        return Choice("0")  # the first image of a series
    arrays = arrays_in(folder, document)
    signals = {name: one for name, one in arrays.items() if SIGNAL.fullmatch(name)}
    shapes = {name: _shape(one) for name, one in (signals or arrays).items() if _is_numeric(one)}
    if not shapes:
        listed = arrays or folder.folders() is not None
        problem = (
            "the group has no array of numbers" if listed else "the server does not list the group"
        )
        found = ", ".join([*arrays][:MOST_NAMED]) or "no arrays"
        hint = "Pass dataset=, the path of an array in the group."
        raise DatasetError(problem, path=path, found=found if listed else None, hint=hint)
    sizes = {name: (len(shape) > 1, math.prod(shape)) for name, shape in shapes.items()}
    first, *others = sorted(sizes, key=sizes.__getitem__, reverse=True)
    least = sizes[first][1] / ALIKE
    alike = [name for name in others if sizes[name][0] and sizes[name][1] >= least]
    return Choice(first, by_size_only(first, alike, "the largest in the group"))


def names_in(folder: Folder, document: Mapping[str, Any]) -> str | None:
    """Return the paths of the arrays of a group as text; None if there are none."""
    names = [*arrays_in(folder, document)]
    return ", ".join(names[:MOST_NAMED]) + ", ..." * (len(names) > MOST_NAMED) or None


def arrays_in(folder: Folder, document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the documents of the arrays of a group, by path in it."""
    return _listed(document) or dict(_found_in(folder))


def _listed(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the arrays that a document lists."""
    with suppress(KeyError, TypeError, AttributeError):
        listed = document["consolidated_metadata"]["metadata"].items()
        return {name: one for name, one in listed if one["node_type"] == "array"}
    return {}


def _found_in(folder: Folder) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Yield the arrays below a folder; folders that cannot be read are skipped."""
    waiting = deque([("", folder, 0)])
    left = MOST_REQUESTS if folder.is_remote else MOST_FOLDERS
    while waiting:
        path, outer, depth = waiting.popleft()
        names: Iterable[str] = ()
        with suppress(OSError):
            names = outer.folders() or ()
        for name in sorted(names):
            if not left:
                return
            left -= 1
            inner, document = outer.inside(name), {}
            with suppress(DatasetError, OSError):
                _, document = node_in(inner) or ("", {})
            if document.get("node_type") == "array":
                yield f"{path}{name}", document
            elif depth < MOST_DEPTH:
                waiting.append((f"{path}{name}/", inner, depth + 1))


def _shape(document: Mapping[str, Any]) -> tuple[float, ...]:
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        return tuple(float(n) for n in document["shape"])
    return ()


def _is_numeric(document: Mapping[str, Any]) -> bool:
    """Return whether an array holds numbers, as far as its document tells."""
    if not _shape(document):
        return False
    with suppress(TypeError, ValueError, SyntaxError):
        told = document.get("data_type", document.get("dtype"))
        return told is None or told in NUMBERS or np.dtype(told).name in NUMBERS
    return False
