"""The planes of an OME image, and the pages that hold them: which of them are there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.formats.ome_tiff.files import Folder, find_members
from dask_tiled.formats.ome_tiff.planes import MAX_PLANES, Planes, place_planes, plane_shape
from dask_tiled.formats.ome_tiff.xml import WHOLE_FILE, Document, Image, Runs
from dask_tiled.formats.tiff.kind import Kind
from dask_tiled.formats.tiff.pages import Pages
from dask_tiled.model.files import File
from dask_tiled.model.indexing import Index

FAR = (1 << 32) - 1
"""No file has so many pages."""


class Stack(NamedTuple):
    """An image as its files hold it.

    `kind` is that of its first page, and `shape` counts the planes along T, C and Z. `rows` has the
    row among the pages for each place in C order of it, or -1; `missing` the sources that are not
    there.
    """

    document: Document
    image: Image
    kind: Kind
    shape: tuple[int, int, int]
    planes: Planes
    pages: Pages
    rows: Index
    missing: tuple[int, ...]

    @classmethod
    def read(cls, document: Document, image: Image, folder: Folder, level: int) -> Stack:
        """Read where the pages of an image are."""
        path = document.path
        found = find_members(document, np.unique(image.runs.source).tolist(), folder)
        missing = tuple(source for source, member in found.items() if member is None)
        members = _Members(found, level)
        kind = members.first_kind(image.runs)
        if kind is None:
            raise _nothing_there(document, image, missing)
        _check_sizes(kind, image, path, level)
        samples = kind.shape[kind.axes.index("s")] if "s" in kind.axes else 1
        shape = plane_shape(image, samples, path)
        planes = place_planes(image, shape, members.count_pages(image.runs), path)
        rows = np.full(math.prod(shape), -1, np.int64)
        rows[planes.place] = members.rows_of(planes)
        if (rows < 0).all():
            raise _nothing_there(document, image, missing)
        return cls(document, image, kind, shape, planes, members.pages, rows, missing)

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """Tell for each place whether its plane is there."""
        return self.rows >= 0

    def frame_numbers(self, count: int) -> Index:
        """Give the numbers of frames for places: -1 for missing ones, and behind the last."""
        if count > max(MAX_PLANES, len(self.rows)):
            raise DatasetError(
                "nav_shape is too large for an image with missing planes",
                path=self.document.path,
                expected=f"at most {MAX_PLANES} places",
                found=count,
            )
        numbers = np.full(count, -1, np.int64)
        known = np.where(self.there, self.there.cumsum() - 1, -1)[:count]
        numbers[: len(known)] = known
        return numbers

    def missing_planes(self, most: int) -> tuple[tuple[int, int, int, str], ...]:
        """Name planes that are not there: t, c and z of each, and where it should be."""
        last = np.full(len(self.rows), -1, np.int64)
        last[self.planes.place] = np.arange(len(self.planes.place))
        listed = np.flatnonzero(~self.there)[:most]
        coordinates = np.column_stack(np.unravel_index(listed, self.shape)).tolist()
        return tuple(
            (t, c, z, self._where(k))
            for (t, c, z), k in zip(coordinates, last[listed].tolist(), strict=True)
        )

    def _where(self, plane: int) -> str:
        if plane < 0:
            return "in no TiffData"
        page, source = int(self.planes.page[plane]), int(self.planes.source[plane])
        return f"page {page} of {self.document.name_of(source)}"


class _Members:
    """The files of an image, by number of the source; several sources may be one file."""

    def __init__(self, paths: Mapping[int, str | None], level: int) -> None:
        self.pages = Pages()
        self._level = level
        known = dict.fromkeys(path for path in paths.values() if path is not None)
        self._files = [File.at(path) for path in known]
        numbers: dict[str | None, int] = {path: number for number, path in enumerate(known)}
        self._numbers = {source: numbers.get(path, -1) for source, path in paths.items()}
        self._whole: dict[int, Index] = {}

    def first_kind(self, runs: Runs) -> Kind | None:
        """Give the kind of the first page there is, or None if there is none."""
        for source, number in self._numbers.items():
            if number >= 0:
                page = int(runs.page[runs.source == source].min())
                (row,) = self._read(number, [page])
                if row >= 0:
                    return self.pages.kind_of(row)
        return None

    def count_pages(self, runs: Runs) -> dict[int, int]:
        """Count the pages of the sources of which a run takes all, by reading them."""
        counts = {}
        for source in np.unique(runs.source[runs.planes == WHOLE_FILE]).tolist():
            number = self._numbers[source]
            if number >= 0 and number not in self._whole:
                self._whole[number] = self.pages.read(self._files[number], level=self._level)
            counts[source] = len(self._whole.get(number, ()))
        return counts

    def rows_of(self, planes: Planes) -> Index:
        """Find the pages of planes: their rows in the table, -1 for those that are not there."""
        numbers = np.full(max(self._numbers) + 1, -1, np.int64)
        numbers[[*self._numbers]] = [*self._numbers.values()]
        keys = numbers[planes.source] << 32 | np.minimum(planes.page, FAR)
        wanted, places = np.unique(keys, return_inverse=True)
        rows = np.full(len(wanted), -1, np.int64)
        # What comes before the first file is in none.
        bounds = np.searchsorted(wanted >> 32, range(len(self._files) + 1))
        for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
            if start < stop:
                rows[start:stop] = self._read(number, (wanted[start:stop] & FAR).tolist())
        return rows[places]

    def _read(self, number: int, pages: list[int]) -> Index:
        """Give the rows of pages of a file, -1 for those that are not there."""
        if number in self._whole:
            whole = self._whole[number]
            return np.append(whole, -1)[np.minimum(pages, len(whole))]
        return self.pages.read(self._files[number], pages, level=self._level, incomplete=True)


def _check_sizes(kind: Kind, image: Image, path: str, level: int) -> None:
    sizes = tuple(kind.shape[kind.axes.index(letter)] for letter in "yx")
    told = image.sizes["Y"], image.sizes["X"]
    if sizes != told and (level == 0 or any(n > most for n, most in zip(sizes, told, strict=True))):
        raise CorruptFileError(
            "the pages have another size",
            path=path,
            where="SizeY and SizeX in the OME-XML",
            expected=told,
            found=sizes,
            hint='With format="tiff" the pages are read as they are.',
        )


def _nothing_there(
    document: Document, image: Image, missing: tuple[int, ...]
) -> TruncatedFileError:
    names = ", ".join(document.name_of(source) for source in missing[:5])
    return TruncatedFileError(
        f"no plane of the image {image.name!r} is there",
        path=document.path,
        expected=f"the files {names}" if missing else "TiffData for pages that are there",
    )
