"""The numeric datasets of an HDF5 file, with the datasets of a series combined.

Names of the parts of a series: the documentation of the Eiger detectors of Dectris.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from dask_tiled.errors import (
    CorruptFileError,
    DatasetError,
    MissingFileError,
    TruncatedFileError,
)
from dask_tiled.files.file import is_filling, is_refusal
from dask_tiled.formats.hdf5.attributes import attribute, number
from dask_tiled.formats.hdf5.boxes import complex_type
from dask_tiled.formats.hdf5.colours import colours_of
from dask_tiled.formats.hdf5.library import chunks_of, names_in, shape_of
from dask_tiled.formats.hdf5.tree import BROKEN, CircularLinkError, Tree
from dask_tiled.formats.tools.files import may_be_longer
from dask_tiled.model.doubts import Doubt
from dask_tiled.model.layout import Layout

SERIES = re.compile(r"data_\d{6}")
"""Names of the parts of a series, which sort in frame order."""
FRAME = 2
"""Number of axes of a frame."""
MOST_OBJECTS = 20_000
"""Visit at most this many groups and datasets."""
MOST_NAMED = 5
"""Name at most this many missing parts."""
MOST_BYTES = 1 << 62
"""Larger arrays have pixels beyond 64-bit offsets."""


class DatasetPart(NamedTuple):
    """Properties of a dataset that is not kept open: a part of a long series."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...] | None


class Events(Protocol):
    """Datasets of events that make an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""

    def asked(self, path: str, frames: Any, bins: int) -> Events:
        """Return the part that options of the format ask for."""

    def layout(self, tree: Tree) -> Layout:
        """Lay out the array."""


class Picture(NamedTuple):
    """An array in a file: a dataset, or several that are concatenated along the first axis."""

    path: str
    """Path of the dataset, or of the group of a series."""
    shape: tuple[int, ...]
    """Shape after reordering the axes."""
    dtype: np.dtype
    members: tuple[Any, ...]
    """Datasets of h5py; for a series, some are a :class:`DatasetPart`."""
    missing: tuple[str, ...] = ()
    """Names of datasets that are missing between the first and the last one of the series."""
    gaps: tuple[int, ...] = ()
    """Number of lost frames before each dataset of the series; empty if there are none, or if the
    number is unknown."""
    differs: tuple[str, str, str] | None = None
    """Path of a part of a series that differs from the others, what they are, and what it is."""
    is_series: bool = False
    """Whether it is a series of datasets of a group, perhaps of one."""
    order: tuple[int, ...] = ()
    """Axes of the dataset in the order of the array, if it differs. Those before the axes of the
    array have length 1, and are left out."""
    title: str = ""
    """Title in the file."""
    grid: tuple[int, ...] = ()
    """Shape of the axes before those of the datasets, each of which fills one position, in C order.
    The datasets may be padded."""
    levels: tuple[str, ...] = ()
    """Paths of all levels of its pyramid, level 0 first."""
    doubts: tuple[Doubt, ...] = ()
    """Reasons why a series may be longer."""
    events: Events | None = None
    """Layout of datasets that hold events, not pixels."""

    @property
    def folder(self) -> str:
        """Path of the group around the datasets."""
        return self.path if self.is_series else posixpath.dirname(self.path)

    def group(self, tree: Tree) -> Any:
        """Return the group around the datasets."""
        return tree.get(tree.root, self.folder)

    def opened(self, tree: Tree) -> Picture:
        """Return the array with its first dataset open."""
        first, *others = self.members
        if not isinstance(first, DatasetPart):
            return self
        return self._replace(members=(tree.get(tree.root, first.path), *others))

    def datasets(self, tree: Tree) -> Iterator[Any]:
        """Yield all datasets; some are closed when the next one is opened."""
        for one in self.members:
            if not isinstance(one, DatasetPart):
                yield one
                continue
            with Tree(tree.file) as apart:
                yield apart.get(tree.root, one.path)

    def placed(self, tree: Tree) -> Iterator[tuple[Any, tuple[int, ...]]]:
        """Yield all datasets, and where each begins in the array."""
        inner, along = (0,) * (len(self.shape) - 1), 0
        corners = np.ndindex(*self.grid)
        gaps = self.gaps or (0,) * len(self.members)
        for one, gap in zip(self.datasets(tree), gaps, strict=True):
            along += gap
            start = (0,) * len(shape_of(one))
            yield one, ((*next(corners), *start) if self.grid else (along, *inner))
            along += shape_of(one)[0] if len(shape_of(one)) == len(self.shape) else 1

    def lost(self, tree: Tree) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield start and shape of the boxes of lost frames."""
        for gap, (_, start) in zip(self.gaps, self.placed(tree) if self.gaps else (), strict=True):
            if gap:
                yield (start[0] - gap, *start[1:]), (gap, *self.shape[1:])

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def size(self) -> tuple[bool, int]:
        """Sort key: two axes or more, then pixels."""
        count = math.prod(self.shape)
        return count > 0 and len(self.shape) > 1, count

    def facts(self) -> dict[str, Any]:
        """Return facts for the metadata."""
        chunks = chunks_of(self.members[0])
        facts = {"shape": self.shape, "dtype": str(self.dtype), "chunks": chunks}
        more = {"title": self.title, "levels": self.levels}
        return facts | {name: value for name, value in more.items() if value}


def by_size(pictures: Iterable[Picture]) -> list[Picture]:
    """Sort arrays: two axes or more first, then by size; the sort is stable."""
    return sorted(pictures, key=lambda one: one.size, reverse=True)


class Found(NamedTuple):
    """The arrays below a group, by the paths at which they are found first."""

    top: tuple[str, Any]
    """The group with its path."""
    pictures: dict[str, Picture]
    """Arrays of numbers, series first."""
    children: dict[str, list[Picture]]
    """The arrays by the path of their group."""
    groups: list[tuple[str, Any]]
    refused: dict[str, DatasetError]
    """Errors of links out of the folder."""
    lost: dict[str, str]
    """What links lead to that does not exist, by path."""
    ragged: dict[str, int]
    """Numbers of lists in datasets of lists of variable length, by path."""

    def inside(self, path: str) -> list[Picture]:
        """Return the arrays that are direct members of a group."""
        return self.children.get(path or "/", [])

    def raise_refused(self, path: str) -> None:
        """Raise the first error of a link below a path."""
        for place, error in self.refused.items():
            if f"{place}/".startswith(f"{path.rstrip('/')}/"):
                raise error

    def raise_lost(self, file: str, path: str) -> None:
        """Raise a MissingFileError if a path, or one above it, is a link that leads nowhere."""
        place = path
        while self.lost and place.strip("/"):
            if place in self.lost:
                raise self._lost(file, place, self.lost[place])
            place = posixpath.dirname(place)

    def designated(self, tree: Tree, group: Any, path: str, name: str) -> Any:
        """Return the object that a file designates by a name in a group; None if it is damaged.

        Raise a MissingFileError if there is none.
        """
        self.raise_lost(tree.file.path, path)
        try:
            return tree.get(group, name)
        except LookupError as error:
            # The library raises KeyError for damaged objects.
            if type(error) in {LookupError, CircularLinkError}:
                raise self._lost(tree.file.path, path, str(error)) from error
            return None

    def _lost(self, file: str, path: str, why: str) -> MissingFileError:
        what = "a link leads to nothing" if path in self.lost else "the designated array is absent"
        return MissingFileError(
            f"{what}, so the pixels may be in a file that is missing",
            path=file,
            where=path,
            found=why,
            hint="Pass dataset= to open another array." if self.pictures else None,
        )

    def raise_ragged(self, file: str, path: str) -> None:
        """Raise a DatasetError if the object at a path holds lists of variable length."""
        if path in self.ragged:
            raise DatasetError(
                "lists of variable length, such as counted electrons or ragged signals, are not"
                " read as arrays",
                path=file,
                where=path,
                expected="a dataset of numbers",
                found=f"{self.ragged[path]} lists",
                hint="Pass dataset= to open another array." if self.pictures else None,
            )


def search(tree: Tree, path: str, top: Any) -> Found:
    """Find groups and numeric arrays. Links are followed; nothing is visited twice."""
    import h5py

    pictures: list[Picture] = []
    found = Found((path, top), {}, {}, [], {}, {}, {})
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
            pictures += filter(None, [picture := picture_of(path, item)])
            if picture is None and is_ragged(item):
                found.ragged[path] = item.size
        elif isinstance(item, h5py.Group):
            found.groups.append((path, item))
            for name in names_in(item, MOST_OBJECTS - len(waiting)):
                inside = f"{path}/{name}"
                member = _member(tree, item, name, inside, found)
                if isinstance(member, Picture):
                    pictures.append(member)
                elif member is not None:
                    waiting.append((inside, member))
    for one in (*_series(tree, pictures), *pictures):
        found.pictures[one.path] = one
        found.children.setdefault(posixpath.dirname(one.path), []).append(one)
    return found


def _member(tree: Tree, group: Any, name: str, path: str, found: Found) -> Any | None:
    """Open a member of a group; for a part of a long series return the array, and close it."""
    try:
        if tree.is_crowded and SERIES.fullmatch(name):
            with Tree(tree.file) as apart:
                item = apart.get(group, name)
                picture = picture_of(path, item)
                if picture is not None:
                    part = DatasetPart(path, item.shape, item.dtype, item.chunks)
                    return picture._replace(members=(part,))
        return tree.get(group, name)
    except DatasetError as error:
        found.refused[path] = error
    except BROKEN as error:
        if is_refusal(error):
            raise
        if type(error) is LookupError:  # of a link; the library raises KeyError for damaged objects
            found.lost[path] = str(error)
    return None


def picture_of(path: str, item: Any) -> Picture | None:
    """Return a dataset as an array; None if it is not numeric."""
    import h5py

    if not isinstance(item, h5py.Dataset) or item.shape is None:
        return None
    dtype = number_type(item)
    shape = () if dtype is None else shape_of(item)
    if dtype is None or not shape:
        return None
    colours = colours_of(item, shape)
    order = () if colours is None else colours.order
    ordered = tuple((1, *shape)[axis] for axis in order[1:]) or shape
    return Picture(path, ordered, dtype, (item,), order=order)


def is_ragged(dataset: Any) -> bool:
    """Return whether elements are lists of variable length, or records with such lists."""
    import h5py

    try:
        dtype = dataset.dtype.base
    except BROKEN:  # a type that NumPy does not have
        return False
    fields = [dtype[name] for name in dtype.names or ()]
    lists = (one for one in (dtype, *fields) if h5py.check_string_dtype(one) is None)
    return dataset.shape is not None and any(h5py.check_vlen_dtype(one) for one in lists)


def number_type(dataset: Any) -> np.dtype | None:
    """Return the pixel dtype of a dataset; None if it is not numeric."""
    try:
        dtype = np.lib.format.drop_metadata(dataset.dtype.base)  # h5py adds metadata
    except BROKEN:  # a type that NumPy does not have
        return None
    fields = [dtype] if dtype.names is None else [dtype[name] for name in dtype.names]
    numbers = all(field.base.kind in "biufc" or field.names for field in fields)
    if not numbers or dtype.hasobject:
        return None
    return complex_type(dtype) or dtype


def _series(tree: Tree, found: Sequence[Picture]) -> Iterator[Picture]:
    """Combine the data_000001, data_000002, ... of an Eiger master into a series."""
    groups: dict[str, list[Picture]] = {}
    for picture in found:
        folder, name = posixpath.split(picture.path)
        if SERIES.fullmatch(name):
            groups.setdefault(folder, []).append(picture)
    for folder, members in groups.items():
        members.sort(key=lambda picture: picture.path)
        is_frames = any(len(picture.shape) >= FRAME for picture in members)
        # Names of lost files remain; the numbering of the first ones is needed.
        names = sorted(
            filter(SERIES.fullmatch, names_in(tree.get(tree.root, folder), MOST_OBJECTS))
        )
        if len(names) > 1 and is_frames:
            parts = [_as_stack(picture) for picture in members]
            dtype, differs = _common(parts)
            datasets = tuple(picture.members[0] for picture in members)
            numbers = [int(picture.path[-6:]) for picture in members]
            start = int(names[0][-6:])
            missing = sorted({*range(start, numbers[-1])} - {*numbers})
            gaps = _gaps(tree, parts, numbers, start) if missing else ()
            frames = sum(part.shape[0] for part in parts) + sum(gaps)
            shape = frames, *parts[0].shape[1:]
            lost = [name for name in names if int(name[-6:]) > numbers[-1]]
            more = f", and {len(lost) - 1} more" if lost[1:] else ""
            doubts = tuple(may_be_longer(f"{folder}/{x}{more} cannot be read") for x in lost[:1])
            told: dict[str, Any] = {"is_series": True, "doubts": doubts}
            told["missing"] = tuple(f"data_{number:06d}" for number in missing)
            yield Picture(folder, shape, dtype, datasets, gaps=gaps, differs=differs, **told)


def _as_stack(picture: Picture) -> Picture:
    """Return a single frame as a stack of one."""
    shape = picture.shape
    return picture._replace(shape=(1, *shape)) if len(shape) == FRAME else picture


def _common(parts: Sequence[Picture]) -> tuple[np.dtype, tuple[str, str, str] | None]:
    """Return the dtype of a series, and its first part that cannot be combined with the others."""
    first, dtype = parts[0], parts[0].dtype
    for part in parts[1:]:
        alike = part.dtype == dtype
        if not alike and {part.dtype.kind, dtype.kind} <= {"i", "u", "f"}:
            both = np.result_type(part.dtype, dtype)
            alike = both.kind != "f" or part.dtype.kind == dtype.kind  # all values are exact
            dtype = both if alike else dtype
        if part.shape[1:] != first.shape[1:] or not alike:
            expected, shown = map(_frames_text, (first, part))
            return dtype, (part.path, expected, shown)
    return dtype, None


def _frames_text(part: Picture) -> str:
    return f"frames of shape {part.shape[1:]} in {part.dtype}"


def _gaps(
    tree: Tree, members: Sequence[Picture], numbers: Sequence[int], start: int
) -> tuple[int, ...]:
    """Return the number of lost frames before each part of a series; empty if unknown.

    The parts number their frames, or all but the last part have the same length.
    """
    lengths = {picture.shape[0] for picture in members[:-1]}
    gaps, before, high = list[int](), start - 1, 0
    for picture, own in zip(members, numbers, strict=True):
        parts, before = own - before - 1, own
        first, last = _image_numbers(tree, picture)
        told = first - high - 1 if first and (high or not gaps) else 0
        if parts and told < parts and len(lengths) != 1:
            return ()
        gaps.append(0 if not parts else told if told >= parts else parts * min(lengths))
        high = last
    return tuple(gaps)


def _image_numbers(tree: Tree, picture: Picture) -> tuple[int, int]:
    """Return the numbers of the first and the last frame of a part, from 1 on; 0 if unknown."""
    for dataset in picture.datasets(tree):
        told = (number(attribute(dataset, f"image_nr_{end}"), 0) for end in ("low", "high"))
        low, high = map(int, told)
        if 0 < low <= high and high - low + 1 == picture.shape[0]:
            return low, high
    return 0, 0


def check(path: str, picture: Picture) -> None:
    """Raise if an array cannot be read.

    Raise a DatasetError, CorruptFileError or TruncatedFileError if the array is empty, too large,
    or incomplete.
    """
    if picture.differs is not None:
        where, expected, found = picture.differs
        what, hint = "a part of the series differs", "Pass dataset= to open one part."
        raise DatasetError(what, path=path, where=where, expected=expected, found=found, hint=hint)
    if not picture.nbytes:
        raise DatasetError("the array is empty", path=path, found=f"shape {picture.shape}")
    if picture.nbytes > MOST_BYTES:
        what = "the array is too large"
        raise CorruptFileError(what, path=path, where=picture.path, found=picture.shape)
    if picture.missing and not (is_filling() and picture.gaps):
        what, lost = "a part of the series is missing", sum(picture.gaps)
        told = f"Pass missing='fill' to show its {lost} frames as missing." if lost else None
        expected, where = ", ".join(picture.missing[:MOST_NAMED]), picture.path
        raise TruncatedFileError(what, path=path, where=where, expected=expected, hint=told)
