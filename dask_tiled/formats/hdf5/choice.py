"""Selection of the array to open: by the user, by a convention, or by size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn

from dask_tiled.errors import DatasetError, choose_dataset
from dask_tiled.formats.hdf5.convention import Meant
from dask_tiled.formats.hdf5.conventions import CONVENTIONS
from dask_tiled.formats.hdf5.datasets import Found, Picture, by_size, check, search
from dask_tiled.formats.hdf5.tree import Tree
from dask_tiled.model.doubts import Doubt, by_size_only, may_be_meant

MOST_NAMED = 20
"""Name at most this many arrays in an error."""


class Choice(NamedTuple):
    """The selected array, and all arrays."""

    picture: Picture
    told_by: str
    """Reason for the selection."""
    listed: Sequence[Picture]
    """The first one is the default."""
    doubts: tuple[Doubt, ...] = ()


class Ranking(NamedTuple):
    """All arrays, the default one first."""

    listed: Sequence[Picture]
    told_by: str
    """Reason for the first."""
    doubts: tuple[Doubt, ...]
    is_meant: bool
    """Whether the file designates the first."""
    fault: DatasetError | None
    """Why the array that the file designates cannot be opened."""

    def check(self, tree: Tree, found: Found) -> None:
        """Raise if the default array cannot be opened, or may be one that is lost or ragged."""
        if self.fault is not None:
            raise self.fault
        if not self.is_meant:
            found.raise_lost(tree.file.path, min(found.lost, default=""))
            _raise_lists(tree, found)


class Survey(NamedTuple):
    """The arrays of a file."""

    found: Found
    ranking: Ranking

    @classmethod
    def of(cls, tree: Tree) -> Survey:
        """Search a file, and rank its arrays."""
        found = search(tree, "", tree.root)
        return cls(found, _ranked(tree, found))


def choose(tree: Tree, survey: Survey, dataset: int | str | None, level: int = 0) -> Choice:
    """Return the array that the user asks for, or the default one, at a level of its pyramid.

    Raise a DatasetError if there is no such array, or it cannot be read.
    """
    found, ranking = survey
    listed, told_by, doubts = ranking[:3]
    name = dataset.strip("/") if isinstance(dataset, str) else ""
    if name:
        picture, told_by, doubts = _named(tree, found, listed, name)
    elif dataset is None or isinstance(dataset, str):
        found.raise_refused("/")
        ranking.check(tree, found)
        picture = listed[0] if listed else _none(tree, found, listed, dataset)
    else:
        paths = [picture.path for picture in listed]
        picture = listed[choose_dataset(tree.file.path, paths, dataset)]
        told_by, doubts = "its number", ()
    if level:
        picture = _at_level(tree, listed, picture, level)
    check(tree.file.path, picture)
    return Choice(picture.opened(tree), told_by, listed, doubts)


def _at_level(tree: Tree, listed: Sequence[Picture], picture: Picture, level: int) -> Picture:
    """Choose a level of a pyramid, whichever of its levels was named."""
    if level >= len(picture.levels):
        last = max(0, len(picture.levels) - 1)
        expected = f"0 to {last}" if last else "0: the array has no pyramid"
        path, where = tree.file.path, picture.path
        raise DatasetError("no such level", path=path, where=where, expected=expected, found=level)
    return next(one for one in listed if one.path == picture.levels[level])


def _named(
    tree: Tree, found: Found, listed: Sequence[Picture], name: str
) -> tuple[Picture, str, tuple[Doubt, ...]]:
    """Select an array by path, by title, or the default one of a group."""
    path = f"/{name}"
    titled = [picture for picture in listed if picture.title == name]
    for picture in listed:
        if picture.path == path:
            found.raise_refused(path)
            return picture, "its path", ()
    if len(titled) == 1:
        return titled[0], "its title", ()
    _refuse(tree, [path])
    top = tree.look(tree.root, path)
    if top is None:
        found.raise_refused(path)
        found.raise_lost(tree.file.path, path)
        _none(tree, found, listed, name)
    inside = search(tree, path, top)
    inside.raise_refused(path)
    ranking = _ranked(tree, inside)
    ranking.check(tree, inside)
    inner = ranking.listed
    picture = inner[0] if inner else _none(tree, inside, listed, name)
    return picture, ranking.told_by, ranking.doubts


def _raise_lists(tree: Tree, found: Found) -> None:
    """Raise a DatasetError if lists of variable length are the data rather than any array.

    They are unless an array has many more pixels than there are lists.
    """
    most = max(found.ragged, key=found.ragged.__getitem__, default="")
    largest = by_size(found.pictures.values())[:1]
    pixels = max((one.size[1] for one in largest), default=0)
    if most and (not pixels or may_be_meant(found.ragged[most], pixels)):
        found.raise_ragged(tree.file.path, most)


def _refuse(tree: Tree, paths: Iterable[str]) -> None:
    for path in paths:
        for convention in CONVENTIONS:
            convention.refuse(tree, path)


def _none(tree: Tree, found: Found, listed: Iterable[Picture], dataset: str | None) -> NoReturn:
    _refuse(tree, found.pictures)
    problem = "no such dataset of numbers" if dataset else "there is no dataset of numbers"
    names = [picture.title or picture.path for picture in listed]
    expected = ", ".join(names[:MOST_NAMED]) or None
    raise DatasetError(problem, path=tree.file.path, expected=expected, found=dataset)


def _ranked(tree: Tree, found: Found) -> Ranking:
    """Rank the arrays: first those that the file designates, then by size."""
    fault = None
    lists = (convention.meant(tree, found) for convention in CONVENTIONS)
    try:
        told = next((one for one in lists if one.pictures or one.alone), Meant())
    except DatasetError as error:  # no matter if the user names another array
        told, fault = Meant(), error
    told_by, meant, alone, settled, by_size_alone = told
    known = {picture.members for picture in meant}
    others = by_size(one for one in found.pictures.values() if one.members not in known)
    listed = [*meant] if alone else [*meant, *others]
    some, told_by = meant or listed, told_by or "the largest in the file"
    equal = [picture for picture in some if picture.size == some[0].size][: 1 if settled else None]
    told_by += f", the first of {len(equal)} of its size" if len(equal) > 1 else ""
    rivals = meant[:by_size_alone] if by_size_alone else equal if meant else listed
    doubts = _chosen_by_size(rivals, told_by)
    return Ranking(listed, told_by, doubts, is_meant=bool(meant), fault=fault)


def _chosen_by_size(listed: Sequence[Picture], told_by: str) -> tuple[Doubt, ...]:
    """Return the doubt that another array is meant, by its size."""
    levels = {path for picture in listed[:1] for path in picture.levels}
    own = listed[0].members if listed else ()
    others = (
        picture.title or picture.path
        for picture in listed[1:]
        if len(picture.shape) > 1
        and picture.members != own
        and may_be_meant(picture.size[1], listed[0].size[1])
        and picture.path not in levels
    )
    first = listed[0].title or listed[0].path if listed else ""
    rivals = [
        name for name in others if not name.startswith((f"{first} ", f"{first}/"))
    ]  # its parts
    return by_size_only(first, rivals, told_by)
