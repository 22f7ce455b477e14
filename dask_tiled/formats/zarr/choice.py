"""The array of a zarr store that is meant, or the arrays of the fields of a well."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.formats.tools.zips import FolderEntry
from dask_tiled.formats.zarr.documents import member_of, node_in
from dask_tiled.formats.zarr.folders import StoreFolder
from dask_tiled.formats.zarr.members import (
    MemberChoice,
    arrays_in,
    default_in,
    images_in,
    is_numeric,
    names_in,
)
from dask_tiled.formats.zarr.pictures import (
    EXPORTED,
    GroupPictures,
    fields_in,
    fields_of,
    lacking_in,
    pictures_in,
    with_labels,
)
from dask_tiled.model.doubts import Doubt
from dask_tiled.model.layout import MAX_NDIM
from dask_tiled.model.listing import most_listed
from dask_tiled.model.mark import MARK
from dask_tiled.model.ome_zarr import StoredImage, image_in

MOST_GROUPS = 8
"""Search at most this many nested groups for an array."""


class StoreDocument(NamedTuple):
    """A document in a folder."""

    folder: StoreFolder
    entry: FolderEntry
    document: dict[str, Any]


class ArrayMember(NamedTuple):
    """An array, and the image that it is a level of."""

    folder: StoreFolder
    entry: FolderEntry
    document: dict[str, Any]
    image: StoredImage
    place: str
    """Its path in the outermost group; empty if it is opened itself."""

    @property
    def level(self) -> str:
        """Its path in the group of the image."""
        own = (
            one for one in self.image.levels if self.place == one or self.place.endswith(f"/{one}")
        )
        return max(own, key=len, default="")

    @property
    def levels(self) -> tuple[str, ...]:
        """Paths of its level and the lower ones of its image in the outermost group."""
        level, levels = self.level, self.image.levels
        outer = self.place.removesuffix(level)
        return tuple(outer + one for one in levels[levels.index(level) :]) if level else ()


class StoreChoice(NamedTuple):
    """What is opened of a store."""

    members: list[ArrayMember]
    """An array, or those of the fields of a well."""
    name: str
    """Path of the array or image in the outermost group."""
    listed: dict[str, dict[str, Any]]
    """The images or results that the outermost group lists, by path."""
    doubts: tuple[Doubt, ...]


def choose(outermost: StoreDocument, dataset: int | str | None, level: int) -> StoreChoice:
    """Choose an array, or a level of an image.

    Raise a DatasetError if there is no such array or level, and a CorruptFileError if a field of a
    well is no image.
    """
    folder, entry, document = outermost
    pictures = pictures_in(folder, document)
    pictures = pictures if pictures.known else with_labels(folder, document)
    if pictures.kind == "well" and most_listed() is None:
        pictures = fields_of(folder, pictures, entry.path)  # those of a well may differ
    known = _results(document) or pictures.known
    if dataset is None or isinstance(dataset, str):
        name = None if dataset is None else pictures.path_of(dataset, entry.path)
        _check_row(name or "", pictures, entry.path)
    else:
        name = _numbered(dataset, outermost, GroupPictures(known, pictures.kind))
    members, chosen, doubts = _found(outermost, name, pictures, level)
    listed = known or dict(islice(images_in(folder, document).items(), most_listed()))
    if pictures.kind == EXPORTED and chosen in listed:
        listed = dict(islice(listed.items(), most_listed())) | {chosen: listed[chosen]}
    if chosen not in listed:  # a level of an image
        chosen = next((path for path in listed if chosen.startswith(f"{path}/")), chosen)
    return StoreChoice(members, chosen, listed, (*doubts, *lacking_in(document)))


def _check_row(name: str, pictures: GroupPictures, path: str) -> None:
    """Raise a DatasetError that names the wells of a row of a plate, if ``name`` is a row."""
    row = f"{name.strip('/')}/"
    wells = [well for well in pictures.known if well.startswith(row)]
    if wells and pictures.kind == "well":
        problem, expected = "the path is a row of a plate, not a well", ", ".join(wells)
        raise DatasetError(problem, path=path, expected=expected, found=name)


def _numbered(number: int, node: StoreDocument, pictures: GroupPictures) -> str:
    """Return the path of the array with a number: among the images, or else the arrays."""
    folder, entry, document = node
    known = pictures.known
    names = fields_in(document) or [*image_in(document).levels[:1]]
    if not known:
        known = {name: {"name": name} for name in names or arrays_in(folder, document)}
    return GroupPictures(known, pictures.kind).path_of(number, entry.path)


def _found(
    outermost: StoreDocument, name: str | None, pictures: GroupPictures, level: int
) -> tuple[list[ArrayMember], str, tuple[Doubt, ...]]:
    """Return the array that is meant, or those of the fields of a well.

    Returns
    -------
    list of Member
    str
        What was chosen in the outermost group.
    tuple of Doubt
    """
    node, place, image, chosen = outermost, "", StoredImage(), ""
    doubts: tuple[Doubt, ...] = ()
    for _ in range(MOST_GROUPS):
        folder, entry, document = node
        if document["node_type"] == "array":
            break
        fields = fields_in(document) if name is None else []
        if len(fields) > 1:
            return [_field(node, place, one, level) for one in fields], chosen, doubts
        if name is None and fields:
            name = fields[0]
        image = _image(document)
        if name is None and level and image.levels:
            name, level = _level(image, level, entry.path), 0
        given = MemberChoice(name) if name is not None else None
        choice = given or default_in(folder, document, pictures, entry.path)
        doubts = *doubts, *choice.doubts
        node = _inside(node, choice.name)
        if not chosen:
            chosen = choice.name
        place, name = posixpath.join(place, choice.name), None
        pictures = pictures_in(node.folder, node.document)
    else:
        raise DatasetError("groups are nested too deeply", path=entry.path, expected=MOST_GROUPS)
    if level:
        _level(StoredImage((place,)), level, entry.path)
    outer, path = posixpath.split(place)
    if outer and path not in image.levels and node.folder.above:
        above = node_in(node.folder.above)
        image = image_in(above[1] if above else {})
    return [ArrayMember(*node, image, place)], chosen, doubts


def _level(image: StoredImage, level: int, path: str) -> str:
    """Return the path of a level; raise a DatasetError if there is none."""
    if level >= len(image.levels):
        expected = f"0 to {len(image.levels) - 1}"
        raise DatasetError("no such level", path=path, expected=expected, found=level)
    return image.levels[level]


def _image(document: Mapping[str, Any]) -> StoredImage:
    """Return the image of a group; of an export that is no OME-Zarr, the levels of its pyramid."""
    image = image_in(document)
    if not image.levels:
        with suppress(KeyError, TypeError):
            return StoredImage(tuple(map(str, document["attributes"][MARK]["pyramid"]["levels"])))
    return image


def _inside(node: StoreDocument, name: str) -> StoreDocument:
    """Return a member of a group; raise a DatasetError that names others if there is none.

    Raise a CorruptFileError if the group lists a member that is absent.
    """
    inside = member_of(node.folder, name, node.entry.path)
    found = node_in(inside)
    if found is None:
        if name in arrays_in(node.folder, node.document):
            problem = "the document of an array that the group lists is missing"
            raise CorruptFileError(problem, path=node.entry.path, found=name)
        path, problem = node.entry.path, "the group has no such array"
        known = names_in(node.folder, node.document, path)
        raise DatasetError(problem, path=path, expected=known, found=name)
    return StoreDocument(inside, *found)


def _field(well: StoreDocument, place: str, name: str, level: int) -> ArrayMember:
    """Return a level of a field of a well."""
    group = _inside(well, name)
    image = image_in(group.document)
    if not image.levels:
        problem = "a field of the well is no image"
        raise CorruptFileError(problem, path=group.entry.path, found=name)
    path = _level(image, level, group.entry.path)
    return ArrayMember(*_inside(group, path), image, posixpath.join(place, name, path))


def _results(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """List the array of an export and its results, if they are numeric arrays."""
    found = {}
    with suppress(KeyError, TypeError, AttributeError, ValueError, OverflowError):
        members = document["consolidated_metadata"]["metadata"]
        for name in ("data", *document["attributes"][MARK]["results"]):
            shape = tuple(map(int, members[name]["shape"]))
            if 0 < len(shape) < MAX_NDIM and all(shape) and is_numeric(members[name]):
                found[name] = {"name": name, "shape": shape}
    return found if len(found) > 1 else {}
