"""The datasets of numbers in an HDF5 file, those of a series put together; and which one is meant.

Names of the parts of a series: the documentation of the Eiger detectors of Dectris.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.formats.hdf5.tree import BROKEN, Tree

SERIES = re.compile(r"data_\d{6}")
"""Names of the parts of a series, in the order of their frames."""
MOST_OBJECTS = 20_000
"""So many groups and datasets are looked at."""
MOST_BYTES = 1 << 62
"""Larger arrays have pixels that no offset reaches."""


class Picture(NamedTuple):
    """An array in a file: one dataset, or several that continue each other along the first axis."""

    path: str
    """Path in the file, of the dataset or of the group of all of them."""
    shape: tuple[int, ...]
    dtype: np.dtype
    members: tuple[Any, ...]
    """The datasets, of h5py."""
    missing: str = ""
    """Name of a dataset that should be between them, and is not."""

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def facts(self) -> dict[str, Any]:
        """Tell about the array, for the metadata."""
        chunks = self.members[0].chunks or ()
        return {"shape": self.shape, "dtype": str(self.dtype), "chunks": chunks}


def choose(tree: Tree, dataset: str | None) -> tuple[Picture, dict[str, Picture]]:
    """Choose the dataset that is asked for, or the largest in a group; list all, too."""
    if dataset is not None and not isinstance(dataset, str):
        raise DatasetError("dataset must be a path in the file", path=tree.file.path, found=dataset)
    path = "/" + (dataset or "").strip("/")
    known, refused = _search(tree, "", tree.root)
    some = {path: known[path]} if path in known else known
    if path not in {"/", *known}:  # a group, or a dataset that was met by another path
        top = tree.look(tree.root, path)
        some, refused = ({}, {}) if top is None else _search(tree, path, top)
    for place, error in refused.items():
        if f"{place}/".startswith(f"{path.rstrip('/')}/"):
            raise error
    if not some:
        problem = "no such dataset of numbers" if dataset else "there is no dataset of numbers"
        expected = ", ".join([*known][:20]) or None
        raise DatasetError(problem, path=tree.file.path, expected=expected, found=dataset)
    picture = max(some.values(), key=lambda picture: picture.nbytes)
    _check(tree.file.path, picture)
    return picture, known


def _search(tree: Tree, path: str, top: Any) -> tuple[dict[str, Picture], dict[str, DatasetError]]:
    """Find the arrays of numbers in a group, series first, and the links out of the folder.

    Other links are followed; nothing is visited twice.
    """
    import h5py

    found: list[Picture] = []
    refused: dict[str, DatasetError] = {}
    waiting: deque[tuple[str, Any]] = deque([(path, top)])
    seen: set[tuple[Any, Any]] = set()
    while waiting and len(seen) < MOST_OBJECTS:
        path, item = waiting.popleft()
        info = h5py.h5o.get_info(item.id)
        place = info.fileno, info.addr if hasattr(info, "addr") else bytes(info.token)
        if place in seen:
            continue
        seen.add(place)
        if isinstance(item, h5py.Dataset):
            dtype = _number_type(item)
            if item.shape and dtype is not None:
                found.append(Picture(path, item.shape, dtype, (item,)))
        elif isinstance(item, h5py.Group):
            for name in islice(item, MOST_OBJECTS - len(waiting)):
                try:
                    waiting.append((f"{path}/{name}", tree.get(item, name)))
                except DatasetError as error:
                    refused[f"{path}/{name}"] = error
                except BROKEN:  # a link to something that is not there
                    continue
    return {picture.path: picture for picture in (*_series(tree, found), *found)}, refused


def _number_type(dataset: Any) -> np.dtype | None:
    """Give the type of the pixels of a dataset; None if they are no numbers."""
    try:
        dtype = _bare(dataset.dtype)
    except BROKEN:  # a type that numpy has not
        return None
    fields = [dtype] if dtype.names is None else [dtype[name] for name in dtype.names]
    numbers = all(field.base.kind in "biufc" or field.names for field in fields)
    return dtype if numbers and not dtype.hasobject and not dtype.shape else None


def _bare(dtype: np.dtype) -> np.dtype:
    """Leave out what h5py notes in a type."""
    if dtype.names is None:
        return np.dtype(dtype.str) if dtype.subdtype is None else dtype
    fields: Any = dtype.fields
    kinds, offsets = [_bare(dtype[n]) for n in dtype.names], [fields[n][1] for n in dtype.names]
    names, size = list(dtype.names), dtype.itemsize
    return np.dtype({"names": names, "formats": kinds, "offsets": offsets, "itemsize": size})


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
        names = sorted(filter(SERIES.fullmatch, tree.get(tree.root, folder)))
        if len(names) > 1 and len(alike) == 1:
            shape = sum(picture.shape[0] for picture in members), *first.shape[1:]
            datasets = tuple(picture.members[0] for picture in members)
            numbers = [int(picture.path[-6:]) for picture in members]
            gaps = sorted({*range(int(names[0][-6:]), numbers[-1])} - {*numbers})
            missing = f"data_{gaps[0]:06d}" if gaps else ""
            yield Picture(folder, shape, first.dtype, datasets, missing)


def _check(path: str, picture: Picture) -> None:
    if not picture.nbytes:
        raise DatasetError("the array is empty", path=path, found=f"shape {picture.shape}")
    if picture.nbytes > MOST_BYTES:
        what = "the array is too large"
        raise CorruptFileError(what, path=path, where=picture.path, found=picture.shape)
    if picture.missing:
        what = "a part of the series is missing"
        raise TruncatedFileError(what, path=path, where=picture.path, expected=picture.missing)
