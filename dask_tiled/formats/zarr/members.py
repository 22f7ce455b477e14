"""The arrays of a zarr group: listed in its document, or found in its folders."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.codecs.array_codecs import NUMBERS
from dask_tiled.errors import DatasetError
from dask_tiled.formats.zarr.documents import DOCUMENT, node_in
from dask_tiled.formats.zarr.folders import StoreFolder
from dask_tiled.formats.zarr.hyperspy import SIGNAL
from dask_tiled.formats.zarr.pictures import MOST_ABSENT, GroupPictures, exists
from dask_tiled.model.doubts import Doubt, by_size_only, may_be_meant
from dask_tiled.model.listing import most_listed
from dask_tiled.model.mark import MARK
from dask_tiled.model.ome_zarr import image_in

MOST_FOLDERS = 5_000
"""Search at most this many folders of a group for arrays."""
MOST_REQUESTS = 100
"""The same for groups behind URLs, which take several requests each."""
MOST_DEPTH = 8
MOST_NAMED = 20
"""Name at most this many arrays in an error."""
DATA = "data"
"""The array of an export."""


class MemberChoice(NamedTuple):
    """The array of a group that is opened."""

    name: str
    doubts: tuple[Doubt, ...] = ()


def default_in(
    folder: StoreFolder, document: Mapping[str, Any], pictures: GroupPictures, path: str
) -> MemberChoice:
    """Return the default array of a group, or the group of its default image.

    Raise a DatasetError if there is none; ``path`` is the group's document.
    """
    if DATA in _listed(document) or (not folder.is_remote and folder.inside(DATA).entry(DOCUMENT)):
        return MemberChoice(DATA, _beside_data(folder, document))
    for level in image_in(document).levels:
        return MemberChoice(level)
    if pictures.known:
        return MemberChoice(*pictures.default(folder, path))
    arrays = arrays_in(folder, document)
    signals = {name: one for name, one in arrays.items() if SIGNAL.fullmatch(name)}
    shapes = {name: _shape(one) for name, one in (signals or arrays).items() if is_numeric(one)}
    if not shapes:
        listed = arrays or not folder.is_remote or folder.folders() is not None
        problem = (
            "the group has no array of numbers" if listed else "the server does not list the group"
        )
        found = ", ".join([*arrays][:MOST_NAMED]) or "no arrays"
        hint = "Pass dataset=, the path of an array in the group."
        raise DatasetError(problem, path=path, found=found if listed else None, hint=hint)
    first = max(shapes, key=lambda name: (len(shapes[name]) > 1, math.prod(shapes[name])))
    return MemberChoice(first, _rivals(first, shapes, "the largest in the group"))


def _rivals(first: str, shapes: Mapping[str, tuple[float, ...]], told_by: str) -> tuple[Doubt, ...]:
    """Return the doubt that another array is meant, one of the largest."""
    shown = math.prod(shapes[first])
    others = {n: math.prod(one) for n, one in shapes.items() if n != first and len(one) > 1}
    alike = [name for name, size in others.items() if may_be_meant(size, shown)]
    alike.sort(key=others.__getitem__, reverse=True)
    return by_size_only(first, alike, told_by)


def _beside_data(folder: StoreFolder, document: Mapping[str, Any]) -> tuple[Doubt, ...]:
    """Return the doubt that another array than ``data`` is meant, unless it is of an export."""
    if _is_export(document):
        return ()
    arrays = arrays_in(folder, document)
    if _is_export(arrays.get(DATA, {})):
        return ()
    shapes = {name: _shape(one) for name, one in arrays.items() if is_numeric(one)}
    return _rivals(DATA, shapes, "by its name") if DATA in shapes else ()


def _is_export(document: Mapping[str, Any]) -> bool:
    """Return whether a document is of an export of this package."""
    attributes = document.get("attributes")
    return isinstance(attributes, Mapping) and MARK in attributes


def names_in(folder: StoreFolder, document: Mapping[str, Any], path: str) -> str | None:
    """Return the paths of the existing arrays of a group as text; None if there are none.

    Those of one axis, such as coordinates, are only named if there are no others; ``path`` is the
    group's document.
    """
    arrays = arrays_in(folder, document)
    listed = [name for name, one in arrays.items() if len(_shape(one)) > 1] or [*arrays]
    existing = (name for name in listed[:MOST_ABSENT] if exists(folder, name, path))
    names = [*islice(existing, MOST_NAMED + 1)]
    return ", ".join(names[:MOST_NAMED]) + ", ..." * (len(names) > MOST_NAMED) or None


def arrays_in(folder: StoreFolder, document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the documents of the arrays of a group, by path in it."""
    return _listed(document) or {name: one for name, one in _found_in(folder) if _is_array(one)}


def images_in(folder: StoreFolder, document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the arrays and images of a group by path, with names: those of two axes or more.

    The levels of an image are not listed, nor are arrays beside an exported one. Folders are
    searched only if all datasets of the file are listed.
    """
    if _is_array(document) or image_in(document).levels or _is_export(document):
        return {}
    nodes = _nodes(document)
    if not nodes and most_listed() is None and not folder.is_remote:
        nodes = dict(_found_in(folder))
    groups = {
        path
        for path, one in nodes.items()
        if not _is_array(one) and (image_in(one).levels or _is_export(one))
    }
    outer = {path: {path[:k] for k, c in enumerate(path) if c == "/"} for path in nodes}
    found: dict[str, dict[str, Any]] = {
        path: {"name": path} for path in nodes if path in groups and not outer[path] & groups
    }
    for path, one in nodes.items():
        if _is_array(one) and is_numeric(one) and not outer[path] & groups and len(_shape(one)) > 1:
            found[path] = {"name": path, "shape": tuple(map(int, _shape(one)))}
    return found if len(found) > 1 else {}


def _is_array(document: Mapping[str, Any]) -> bool:
    return document.get("node_type") == "array"


def _nodes(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the documents that a document lists."""
    with suppress(KeyError, TypeError, AttributeError):
        listed = document["consolidated_metadata"]["metadata"].items()
        return {name: one for name, one in listed if isinstance(one, Mapping)}
    return {}


def _listed(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the arrays that a document lists."""
    return {name: one for name, one in _nodes(document).items() if _is_array(one)}


def _found_in(folder: StoreFolder) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Yield the nodes below a folder; folders that cannot be read are skipped."""
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
            yield f"{path}{name}", document
            if not _is_array(document) and depth < MOST_DEPTH:
                waiting.append((f"{path}{name}/", inner, depth + 1))


def _shape(document: Mapping[str, Any]) -> tuple[float, ...]:
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        return tuple(float(n) for n in document["shape"])
    return ()


def is_numeric(document: Mapping[str, Any]) -> bool:
    """Return whether an array holds numbers, as far as its document tells."""
    if not _shape(document):
        return False
    with suppress(TypeError, ValueError, SyntaxError):
        told = document.get("data_type", document.get("dtype"))
        return told is None or told in NUMBERS or np.dtype(told).name in NUMBERS
    return False
