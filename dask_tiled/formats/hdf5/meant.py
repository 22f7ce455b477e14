"""Which array of an HDF5 file is meant: by a user, by the convention of the file, or by its size.

Layout facts: the NeXus manual (``default``, ``signal``), the EMD file format of the NCEM and of
emdfile 1.0 (``emd_group_type``), and the specification of HyperSpy's files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from dask_tiled.errors import DatasetError, choose_dataset
from dask_tiled.formats.hdf5 import velox
from dask_tiled.formats.hdf5.attributes import attribute, label, text, text_of
from dask_tiled.formats.hdf5.datasets import SERIES, Found, Picture, check, picture_of, search
from dask_tiled.formats.hdf5.tree import MOST_LINKS, Tree

HYPERSPY = re.compile(r"/Experiments/[^/]+/data")
EMD_ARRAYS = {"1", "array"}
"""What ``emd_group_type`` says of a group with an array, in files of the NCEM and of emdfile."""
MOST_NAMED = 20
"""So many arrays are named in an error."""


class Choice(NamedTuple):
    """An array that was chosen, and all that there are."""

    picture: Picture
    told_by: str
    """What says that it is this one."""
    listed: Sequence[Picture]
    """The first of them opens unless another one is asked for."""


def choose(tree: Tree, dataset: int | str | None) -> Choice:
    """Choose the array that is asked for, or the one that the file means.

    Raises
    ------
    DatasetError
        There is none, or it cannot be read.
    """
    found = search(tree, "", tree.root)
    listed, told_by = _ranked(tree, found)
    name = dataset.strip("/") if isinstance(dataset, str) else ""
    if name:
        picture, told_by = _named(tree, found, listed, name)
    elif dataset is None or isinstance(dataset, str):
        found.raise_refused("/")
        picture = listed[0] if listed else _none(tree, found, listed, dataset)
    else:
        paths = [picture.path for picture in listed]
        picture = listed[choose_dataset(tree.file.path, paths, dataset)]
        told_by = "its number"
    check(tree.file.path, picture)
    return Choice(picture, told_by, listed)


def _named(tree: Tree, found: Found, listed: Sequence[Picture], name: str) -> tuple[Picture, str]:
    """Choose by a path, by a title, or what is meant in a group."""
    path = f"/{name}"
    titled = [picture for picture in listed if picture.title == name]
    for picture in listed:
        if picture.path == path:
            found.raise_refused(path)
            return picture, "its path"
    if len(titled) == 1:
        return titled[0], "its title"
    velox.refuse_events(tree, path)
    top = tree.look(tree.root, path)
    if top is None:
        found.raise_refused(path)
        _none(tree, found, listed, name)
    inside = search(tree, path, top)
    inside.raise_refused(path)
    inner, told_by = _ranked(tree, inside)
    return (inner[0] if inner else _none(tree, inside, listed, name)), told_by


def _none(tree: Tree, found: Found, listed: Iterable[Picture], dataset: str | None) -> NoReturn:
    for path in found.pictures:
        velox.refuse_events(tree, path)
    problem = "no such dataset of numbers" if dataset else "there is no dataset of numbers"
    names = [picture.title or picture.path for picture in listed]
    expected = ", ".join(names[:MOST_NAMED]) or None
    raise DatasetError(problem, path=tree.file.path, expected=expected, found=dataset)


def _ranked(tree: Tree, found: Found) -> tuple[Sequence[Picture], str]:
    """List the arrays: those that the file means, then large ones first; and say what tells so."""
    if velox.is_velox(found):
        meant, told_by = velox.pictures(tree, found), "Data of Velox"
        return meant, told_by + _first_of(meant)
    conventions = {
        "Experiments of HyperSpy": _hyperspy,
        "default of NeXus": _pointed,
        "signal of NXdata": _signals,
        "emd_group_type": _emd,
        "names of an Eiger master": _eiger,
    }
    lists = ((list(read(tree, found)), told_by) for told_by, read in conventions.items())
    meant, told_by = next(filter(lambda one: one[0], lists), ([], ""))
    known = {picture.members for picture in meant}
    others = _by_size(one for one in found.pictures.values() if one.members not in known)
    if not meant:
        return others, "the largest in the file" + _first_of(others)
    return [*meant, *others], told_by + _first_of(meant)


def _by_size(pictures: Iterable[Picture]) -> list[Picture]:
    """Sort arrays: those with two axes or more first, large ones first; equal ones stay."""
    return sorted(pictures, key=lambda one: one.size, reverse=True)


def _first_of(pictures: Sequence[Picture]) -> str:
    equal = sum(one.size == pictures[0].size for one in pictures)
    return f", the first of {equal} of its size" if equal > 1 else ""


def _hyperspy(tree: Tree, found: Found) -> list[Picture]:
    return _by_size(one for one in found.pictures.values() if HYPERSPY.fullmatch(one.path))


def _pointed(tree: Tree, found: Found) -> list[Picture]:
    """Find the signal that ``default`` leads to from the top on, or from the entries below."""
    path, group = _default(tree, *found.top)
    signal = _signal(tree, found, path, group)
    if signal is not None:
        return [signal]
    entries = [one for one in _of_class(found, "NXentry") if _is_below(one[0], path)]
    ends = [_default(tree, *one) for one in entries]
    moved = [end for end, one in zip(ends, entries, strict=True) if end[0] != one[0]]
    return list(filter(None, (_signal(tree, found, *end) for end in moved)))


def _signals(tree: Tree, found: Found) -> list[Picture]:
    """List the signals of all data: first those below the end of ``default``."""
    path, _ = _default(tree, *found.top)
    data = _of_class(found, "NXdata")
    signals = _by_size(filter(None, (_signal(tree, found, *one) for one in data)))
    return sorted(signals, key=lambda one: not _is_below(one.path, path))


def _of_class(found: Found, name: str) -> list[tuple[str, Any]]:
    return [one for one in found.groups if text(attribute(one[1], "NX_class")) == name]


def _is_below(path: str, group: str) -> bool:
    return f"{path}/".startswith(f"{group}/")


def _default(tree: Tree, path: str, group: Any) -> tuple[str, Any]:
    """Follow ``default`` from a group on, as far as it leads."""
    from h5py import Group

    for _ in range(MOST_LINKS):
        name = label(attribute(group, "default"))
        following = tree.look(group, name) if name else None
        if not isinstance(following, Group):
            break
        path, group = posixpath.normpath(posixpath.join(path or "/", name)), following
    return path, group


def _signal(tree: Tree, found: Found, path: str, group: Any) -> Picture | None:
    """Find the array that a group calls its signal; in older files it says so itself."""
    name = label(attribute(group, "signal"))
    if not name:
        inner = found.inside(path)
        marked = (one for one in inner if text_of(attribute(one.members[0], "signal")) == "1")
        return next(marked, None)
    if SERIES.fullmatch(name) and path in found.pictures:  # of which it is the first part
        return found.pictures[path]
    place = f"{path.rstrip('/')}/{name}"
    return found.pictures.get(place) or picture_of(place, tree.look(group, name))


def _emd(tree: Tree, found: Found) -> list[Picture]:
    """List the arrays of groups of that type: ``data``, or else the largest that is no axis."""
    arrays = []
    for path, group in found.groups:
        if text_of(attribute(group, "emd_group_type")) in EMD_ARRAYS:
            inner = [one for one in found.inside(path) if not _is_axis(one.path)]
            named = [one for one in inner if posixpath.basename(one.path) == "data"]
            arrays += (named or _by_size(inner))[:1]
    return _by_size(arrays)


def _is_axis(path: str) -> bool:
    return re.fullmatch(r"dim\d+", posixpath.basename(path)) is not None


def _eiger(tree: Tree, found: Found) -> list[Picture]:
    parts = [one for one in found.pictures.values() if len(one.shape) == 3]
    return _by_size(
        one for one in parts if one.is_series or SERIES.fullmatch(posixpath.basename(one.path))
    )
