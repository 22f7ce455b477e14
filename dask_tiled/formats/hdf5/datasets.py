"""The datasets of numbers in an HDF5 file, those of a series put together.

Names of the parts of a series: the documentation of the Eiger detectors of Dectris.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.formats.hdf5.boxes import complex_type
from dask_tiled.formats.hdf5.library import chunks_of, names_in, shape_of
from dask_tiled.formats.hdf5.tree import BROKEN, Tree
from dask_tiled.model.files import is_refusal

SERIES = re.compile(r"data_\d{6}")
"""Names of the parts of a series, in the order of their frames."""
MOST_OBJECTS = 20_000
"""So many groups and datasets are looked at."""
MOST_BYTES = 1 << 62
"""Larger arrays have pixels that no offset reaches."""


class Part(NamedTuple):
    """What is known of a dataset that is not kept open: a part of a long series."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...] | None


class Picture(NamedTuple):
    """An array in a file: one dataset, or several that continue each other along the first axis."""

    path: str
    """Path in the file, of the dataset or of the group of all of them."""
    shape: tuple[int, ...]
    """As it is shown."""
    dtype: np.dtype
    members: tuple[Any, ...]
    """The datasets, of h5py; of a series, some are a :class:`Part`."""
    missing: str = ""
    """Name of a dataset that should be between them, and is not."""
    is_series: bool = False
    """Whether it is put together from datasets of a group, of which there may be one."""
    order: tuple[int, ...] = ()
    """The axes of the dataset in the order in which they are shown, where it is another one. The
    first of them is not shown where its length is 1."""
    title: str = ""
    """Its name in the file, apart from its path."""
    doubts: tuple[str, ...] = ()
    """Why a series may be longer."""

    @property
    def folder(self) -> str:
        """Path of the group that the datasets lie in."""
        return self.path if self.is_series else posixpath.dirname(self.path)

    def group(self, tree: Tree) -> Any:
        """Return that group."""
        return tree.get(tree.root, self.folder)

    def opened(self, tree: Tree) -> Picture:
        """Return the array with its first dataset open."""
        first, *others = self.members
        if not isinstance(first, Part):
            return self
        return self._replace(members=(tree.get(tree.root, first.path), *others))

    def datasets(self, tree: Tree) -> Iterator[Any]:
        """Yield all datasets. One that is not kept open is closed when the next one is opened."""
        for one in self.members:
            if not isinstance(one, Part):
                yield one
                continue
            with Tree(tree.file) as apart:
                yield apart.get(tree.root, one.path)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def size(self) -> tuple[bool, int]:
        """Sort key: two axes or more, then pixels."""
        count = math.prod(self.shape)
        return count > 0 and len(self.shape) > 1, count

    def facts(self) -> dict[str, Any]:
        """Facts about the array, for the metadata."""
        chunks = chunks_of(self.members[0])
        facts = {"shape": self.shape, "dtype": str(self.dtype), "chunks": chunks}
        return {**facts, "title": self.title} if self.title else facts


def by_size(pictures: Iterable[Picture]) -> list[Picture]:
    """Sort arrays: those with two axes or more first, large ones first; equal ones stay."""
    return sorted(pictures, key=lambda one: one.size, reverse=True)


class Found(NamedTuple):
    """The arrays below a group, by the paths at which they are met first."""

    top: tuple[str, Any]
    """The group, with its path."""
    pictures: dict[str, Picture]
    """The arrays of numbers, series first."""
    children: dict[str, list[Picture]]
    """The same, by the groups that they lie in."""
    groups: list[tuple[str, Any]]
    refused: dict[str, DatasetError]
    """Links out of the folder."""

    def inside(self, path: str) -> list[Picture]:
        """List the arrays that lie in a group itself."""
        return self.children.get(path or "/", [])

    def raise_refused(self, path: str) -> None:
        """Raise what was refused below a path."""
        for place, error in self.refused.items():
            if f"{place}/".startswith(f"{path.rstrip('/')}/"):
                raise error


def search(tree: Tree, path: str, top: Any) -> Found:
    """Find groups and arrays of numbers. Links are followed; nothing is visited twice."""
    import h5py

    pictures: list[Picture] = []
    found = Found((path, top), {}, {}, [], {})
    waiting: deque[tuple[str, Any]] = deque([found.top])
    seen: set[tuple[Any, Any]] = set()
    while waiting and len(seen) < MOST_OBJECTS:
        path, item = waiting.popleft()
        info = h5py.h5o.get_info(item.id)
        place = info.fileno, info.addr if hasattr(info, "addr") else bytes(info.token)
        if place in seen:
            continue
        seen.add(place)
        if isinstance(item, h5py.Dataset):
            pictures += filter(None, [picture_of(path, item)])
        elif isinstance(item, h5py.Group):
            found.groups.append((path, item))
            for name in names_in(item, MOST_OBJECTS - len(waiting)):
                inside = f"{path}/{name}"
                member = _member(tree, item, name, inside, found.refused)
                if isinstance(member, Picture):
                    pictures.append(member)
                elif member is not None:
                    waiting.append((inside, member))
    for one in (*_series(tree, pictures), *pictures):
        found.pictures[one.path] = one
        found.children.setdefault(posixpath.dirname(one.path), []).append(one)
    return found


def _member(
    tree: Tree, group: Any, name: str, path: str, refused: dict[str, DatasetError]
) -> Any | None:
    """Open what lies in a group; of a part of a long series return the array, and close it."""
    try:
        if tree.is_crowded and SERIES.fullmatch(name):
            with Tree(tree.file) as apart:
                item = apart.get(group, name)
                found = picture_of(path, item)
                if found is not None:
                    part = Part(path, item.shape, item.dtype, item.chunks)
                    return found._replace(members=(part,))
        return tree.get(group, name)
    except DatasetError as error:
        refused[path] = error
    except BROKEN as error:  # a link to something that is not there
        if is_refusal(error):
            raise
    return None


def picture_of(path: str, item: Any) -> Picture | None:
    """Take a dataset for an array; None if it is none of numbers."""
    import h5py

    if not isinstance(item, h5py.Dataset) or item.shape is None:
        return None
    dtype = _number_type(item)
    shape = () if dtype is None else shape_of(item)
    return Picture(path, shape, dtype, (item,)) if dtype is not None and shape else None


def _number_type(dataset: Any) -> np.dtype | None:
    """Return the type of the pixels of a dataset; None if they are no numbers."""
    try:
        dtype = np.lib.format.drop_metadata(dataset.dtype.base)  # what h5py notes in it
    except BROKEN:  # a type that numpy has not
        return None
    fields = [dtype] if dtype.names is None else [dtype[name] for name in dtype.names]
    numbers = all(field.base.kind in "biufc" or field.names for field in fields)
    if not numbers or dtype.hasobject:
        return None
    return complex_type(dtype) or dtype


def _series(tree: Tree, found: Sequence[Picture]) -> Iterator[Picture]:
    """Put the data_000001, data_000002, ... of an Eiger master together."""
    groups: dict[str, list[Picture]] = {}
    for picture in found:
        folder, name = posixpath.split(picture.path)
        if SERIES.fullmatch(name) and len(picture.shape) == 3:
            groups.setdefault(folder, []).append(picture)
    for folder, members in groups.items():
        members.sort(key=lambda picture: picture.path)
        first = members[0]
        alike = {(picture.shape[1:], picture.dtype) for picture in members}
        # Names stay where a file is gone; the numbers of the first ones are still wanted.
        names = sorted(
            filter(SERIES.fullmatch, names_in(tree.get(tree.root, folder), MOST_OBJECTS))
        )
        if len(names) > 1 and len(alike) == 1:
            shape = sum(picture.shape[0] for picture in members), *first.shape[1:]
            datasets = tuple(picture.members[0] for picture in members)
            numbers = [int(picture.path[-6:]) for picture in members]
            gaps = sorted({*range(int(names[0][-6:]), numbers[-1])} - {*numbers})
            missing = f"data_{gaps[0]:06d}" if gaps else ""
            lost = [name for name in names if int(name[-6:]) > numbers[-1]]
            more = f", and {len(lost) - 1} more" if lost[1:] else ""
            doubts = (f"{folder}/{lost[0]}{more} cannot be read",) if lost else ()
            told: dict[str, Any] = {"is_series": True, "doubts": doubts}
            yield Picture(folder, shape, first.dtype, datasets, missing, **told)


def check(path: str, picture: Picture) -> None:
    """Refuse an array that cannot be read.

    Raises
    ------
    DatasetError, CorruptFileError, TruncatedFileError
        It is empty, too large, or a part of it is missing.
    """
    if not picture.nbytes:
        raise DatasetError("the array is empty", path=path, found=f"shape {picture.shape}")
    if picture.nbytes > MOST_BYTES:
        what = "the array is too large"
        raise CorruptFileError(what, path=path, where=picture.path, found=picture.shape)
    if picture.missing:
        what = "a part of the series is missing"
        raise TruncatedFileError(what, path=path, where=picture.path, expected=picture.missing)
