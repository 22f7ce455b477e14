"""The images that groups of OME-Zarr list: series, plates, wells and labels.

Layout facts: the OME-NGFF specification, versions 0.1 to 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from dask_tiled.errors import DatasetError, choose_dataset
from dask_tiled.formats.zarr.documents import member_of, node_in
from dask_tiled.formats.zarr.folders import StoreFolder
from dask_tiled.model.doubts import Doubt, by_size_only, lacking, may_be_meant
from dask_tiled.model.listing import DATA
from dask_tiled.model.mark import MARK
from dask_tiled.model.ome_zarr import image_in, ome_in

MOST_LISTED = 10_000
"""Maximum number of images that are listed."""
MOST_MEASURED = 64
"""Read the shapes of at most this many images."""
MOST_ABSENT = 100
"""Skip at most this many wells or arrays that are listed and absent."""
EXPORTED = "dataset"
"""Kind of the images of an export of several arrays."""
LABELS = "labels"
"""Group in an image that lists its label images."""
SERIES = "OME"
"""Group that lists the images of a series."""


class GroupPictures(NamedTuple):
    """The images that a group lists."""

    known: dict[str, dict[str, Any]]
    """Name of each by its path in the group, and the shape if it was read."""
    kind: str

    def path_of(self, dataset: int | str, path: str) -> str:
        """Return the path of the image with a number or name; other texts are unchanged."""
        names = [one["name"] for one in self.known.values()]
        if isinstance(dataset, str) and (dataset in self.known or names.count(dataset) != 1):
            return dataset
        return [*self.known][choose_dataset(path, names, dataset)]

    def default(self, folder: StoreFolder, path: str) -> tuple[str, tuple[Doubt, ...]]:
        """Return the first image, and the doubt that another one is meant.

        Raise a DatasetError if none of the listed ones exists; ``path`` is the group's document.
        """
        names = [*self.known]
        first = next((x for x in names[:MOST_ABSENT] if exists(folder, x, path)), None)
        if first is None:
            problem, found = f"no {self.kind} of the group exists", ", ".join(names[:MOST_ABSENT])
            raise DatasetError(problem, path=path, found=found[:MOST_LISTED] or "none")
        sizes = {name: math.prod(one.get("shape", ())) for name, one in self.known.items()}
        alike = [x for x in names if x != first and may_be_meant(sizes[x], sizes[first])]
        return first, by_size_only(first, alike, f"the first {self.kind} of the group")


def pictures_in(folder: StoreFolder, document: Mapping[str, Any]) -> GroupPictures:
    """Return the images that a group lists; none if it is an image or another group."""
    told, exported = ome_in(document), _exported(document)
    if exported and "plate" not in told:
        return GroupPictures(exported, EXPORTED)
    if "bioformats2raw.layout" in told:
        paths = _series(folder)
        return GroupPictures(
            {path: _measured(folder, path, k) for k, path in enumerate(paths)}, "image"
        )
    if isinstance(told.get("plate"), Mapping):
        wells = told["plate"].get("wells")
        names = _paths(wells)
        return GroupPictures({name: {"name": name} for name in names}, "well")
    labels = _labels(told)
    return GroupPictures({x: _measured(folder, x, k) for k, x in enumerate(labels)}, "label image")


def with_labels(folder: StoreFolder, document: Mapping[str, Any]) -> GroupPictures:
    """Return an image and the label images of its objects; none of another group."""
    levels, labels = image_in(document).levels, list[str]()
    if levels:
        with suppress(DatasetError, OSError):
            node = node_in(folder.inside(LABELS))
            labels = [f"{LABELS}/{name}" for name in _labels(ome_in(node[1]))] if node else []
    if not labels:
        return GroupPictures({}, "image")
    known = {levels[0]: {**_measured(folder, levels[0], 0), "name": _name(document) or DATA}}
    for number, path in enumerate(labels, 1):
        known[path] = {**_measured(folder, path, number), "name": path}
    return GroupPictures(known, "image")


def _labels(told: Mapping[str, Any]) -> list[str]:
    """Return the names of the label images of a group."""
    listed = told.get("labels")
    some = listed[:MOST_LISTED] if isinstance(listed, list) else ()
    return [one for one in some if isinstance(one, str)]


def _name(document: Mapping[str, Any]) -> str:
    """Return the name of the image of a group; empty if it has none."""
    name = image_in(document).told.get("name")
    return name if isinstance(name, str) else ""


def _exported(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the names and shapes of exported datasets by path; empty for other groups."""
    found: dict[str, dict[str, Any]] = {}
    with suppress(KeyError, TypeError, AttributeError):
        listed = islice(document["attributes"][MARK]["datasets"].items(), MOST_LISTED)
        found = {path: {"name": name or path} for path, name in listed if isinstance(name, str)}
        nodes = document["consolidated_metadata"]["metadata"]
        for path, facts in found.items():
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                array = nodes[path if "shape" in nodes[path] else f"{path}/{DATA}"]
                facts["shape"] = tuple(map(int, array["shape"]))
    return found


def lacking_in(document: Mapping[str, Any]) -> tuple[Doubt, ...]:
    """Return the doubt that an export left a group incomplete; none for another group."""
    with suppress(KeyError, TypeError):
        names = [*islice(document["attributes"][MARK]["lacking"], MOST_LISTED)]
        return (lacking([*map(str, names)]),) if names else ()
    return ()


def fields_in(document: Mapping[str, Any]) -> list[str]:
    """Return the paths of the fields of a well; none of another group."""
    well = ome_in(document).get("well")
    return _paths(well.get("images")) if isinstance(well, Mapping) else []


def fields_of(folder: StoreFolder, wells: GroupPictures, path: str) -> GroupPictures:
    """Return the fields of all wells of a plate; ``path`` is the plate's document.

    A well whose fields are unknown, because it is absent or damaged, is listed itself.
    """
    known: dict[str, dict[str, Any]] = {}
    for well, facts in wells.known.items():
        fields: list[str] = []
        with suppress(DatasetError):
            node = node_in(member_of(folder, well, path))
            fields = [f"{well}/{name}" for name in fields_in(node[1])] if node else []
        known |= {name: {"name": name, "is_field": True} for name in fields} or {well: facts}
    return GroupPictures(known, "field")


def _paths(listed: Any) -> list[str]:
    """Return the paths of listed images or wells; an empty one is the path of none."""
    some = listed[:MOST_LISTED] if isinstance(listed, list) else ()
    told = (one.get("path") for one in some if isinstance(one, Mapping))
    return [path for path in told if isinstance(path, str) and path]


def _series(folder: StoreFolder) -> list[str]:
    """Return the paths of the images of a series: those listed, or else numbered groups."""
    with suppress(DatasetError, OSError):
        node = node_in(folder.inside(SERIES))
        listed = ome_in(node[1]).get("series") if node else None
        if isinstance(listed, list) and listed:
            return [one for one in listed[:MOST_LISTED] if isinstance(one, str)]
    found = ["0"]
    while len(found) < MOST_MEASURED and exists(folder, f"{len(found)}", folder.path):
        found.append(f"{len(found)}")
    return found


def exists(folder: StoreFolder, name: str, path: str) -> bool:
    """Return whether a group has a member; ``path`` is the group's document."""
    with suppress(DatasetError):
        return node_in(member_of(folder, name, path)) is not None
    return False


def _measured(folder: StoreFolder, path: str, number: int) -> dict[str, Any]:
    """Return the name of an image, and its shape, unless it takes requests or there are many."""
    facts: dict[str, Any] = {"name": path}
    if folder.is_remote or number >= MOST_MEASURED:
        return facts
    with suppress(DatasetError, OSError, TypeError, ValueError, KeyError, OverflowError):
        inside = member_of(folder, path, folder.path)
        node = node_in(inside)
        image = image_in(node[1] if node else {})
        facts["name"] = _name(node[1] if node else {}) or path
        first = node_in(member_of(inside, image.levels[0], folder.path)) if image.levels else node
        if first is not None:
            facts["shape"] = tuple(map(int, first[1]["shape"]))
    return facts
