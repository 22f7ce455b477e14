"""The planes of an OME image: the page of each, and which exist."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.formats import tools
from dask_tiled.formats.ome_tiff.files import SetFolder, find_members, pages_hint
from dask_tiled.formats.ome_tiff.xml import WHOLE_FILE, Document, OmeImage, PlaneRuns
from dask_tiled.formats.tiff.kind import PageLayout
from dask_tiled.formats.tiff.pages import Pages
from dask_tiled.model.indexing import Index

MAX_PLANES = 2_000_000  # more would need too much memory
FAR = (1 << 32) - 1  # no file has this many pages


class ListedPlanes(NamedTuple):
    """Planes listed in the XML. If two have the same position, the last one wins."""

    place: Index  # in C order of (T, C, Z)
    source: Index
    page: Index


class PlaneStack(NamedTuple):
    """An OME image and the pages that hold its planes."""

    document: Document
    image: OmeImage
    kind: PageLayout  # of the first page
    shape: tuple[int, int, int]  # planes along T, C and Z
    planes: ListedPlanes
    pages: Pages
    rows: Index  # row of each plane's page, in C order, or -1
    missing: tuple[int, ...]  # missing sources
    left_out: int  # pages that the XML lists beyond the sizes of the image

    @classmethod
    def read(cls, document: Document, image: OmeImage, folder: SetFolder, level: int) -> PlaneStack:
        """Locate the pages of an image."""
        paths = find_members(document, np.unique(image.runs.source).tolist(), folder)
        missing = tuple(source for source, path in paths.items() if path is None)
        members = _Members(paths, level)
        kind = members.first_kind(image.runs)
        if kind is not None:
            shape = _plane_shape(image, kind, document.path, level)
            counts = members.count_planes(image.runs)
            planes, left_out = _place_planes(image, counts, shape, document.path)
            rows = np.full(math.prod(shape), -1, np.int64)
            rows[planes.place] = members.rows_of(planes)
            if (rows >= 0).any():
                pages = members.pages
                return cls(document, image, kind, shape, planes, pages, rows, missing, left_out)
        names = ", ".join(document.name_of(source) for source in missing[:5])
        raise tools.TruncatedFileError(
            f"all planes of the image {image.name!r} are missing",
            path=document.path,
            expected=f"the files {names}" if missing else "TiffData for existing pages",
            hint=None if missing else pages_hint(document.path),
        )

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """Mask of the planes that exist."""
        return self.rows >= 0

    def frame_numbers(self, count: int) -> Index:
        """Return frame numbers by position: -1 for missing planes, and beyond the last one."""
        if count > max(MAX_PLANES, len(self.rows)):
            problem = "nav_shape is too large for an image with missing planes"
            most, path = f"at most {MAX_PLANES} positions", self.document.path
            raise tools.DatasetError(problem, path=path, expected=most, found=count)
        numbers = np.where(self.there, self.there.cumsum() - 1, -1)
        return np.pad(numbers, (0, max(0, count - len(numbers))), constant_values=-1)[:count]

    def missing_planes(self, most: int) -> tuple[tuple[Any, ...], ...]:
        """List missing planes: t, c and z of each, and where they should be."""
        lost = np.flatnonzero(~self.there)[:most]
        where = dict.fromkeys(lost.tolist(), "in no TiffData")
        told = np.column_stack(self.planes)[np.isin(self.planes.place, lost)]
        for place, source, page in told.tolist():
            where[place] = f"page {page} of {self.document.name_of(source)}"
        places = np.column_stack(np.unravel_index(lost, self.shape)).tolist()
        return tuple((*place, at) for place, at in zip(places, where.values(), strict=True))


class _Members:
    """The files of an image by source number; several sources may be one file."""

    def __init__(self, paths: Mapping[int, str | None], level: int) -> None:
        self.pages = Pages()
        self._level = level
        known = [*dict.fromkeys(path for path in paths.values() if path is not None)]
        self._files = [tools.File.at(path) for path in known]
        numbers: dict[str | None, int] = {path: number for number, path in enumerate(known)}
        self._numbers = np.full(max(paths, default=0) + 1, -1, np.int64)  # of files, by source
        self._numbers[[*paths]] = [numbers.get(path, -1) for path in paths.values()]
        self._whole: dict[int, Index] = {}

    def first_kind(self, runs: PlaneRuns) -> PageLayout | None:
        """Return the kind of the first page that exists, or None."""
        for source in np.flatnonzero(self._numbers >= 0).tolist():
            page = int(runs.page[runs.source == source].min())
            (row,) = self._read(int(self._numbers[source]), [page])
            if row >= 0:
                return self.pages.kind_of(row)
        return None

    def count_planes(self, runs: PlaneRuns) -> Index:
        """Return the planes of runs; runs of whole files are counted by reading them."""
        planes, whole = runs.planes.copy(), runs.planes == WHOLE_FILE
        sources, places = np.unique(runs.source[whole], return_inverse=True)
        counts = [len(self._read_whole(number)) for number in self._numbers[sources].tolist()]
        planes[whole] = np.array(counts, np.int64)[places]
        return planes

    def rows_of(self, planes: ListedPlanes) -> Index:
        """Return the rows of the planes' pages; -1 for missing pages."""
        keys = _keys(self._numbers[planes.source], planes.page)
        wanted, places = np.unique(keys, return_inverse=True)
        rows = np.full(len(wanted), -1, np.int64)
        # keys before the first file belong to missing files
        bounds = np.searchsorted(wanted >> 32, range(len(self._files) + 1))
        for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
            if start < stop:
                rows[start:stop] = self._read(number, (wanted[start:stop] & FAR).tolist())
        return rows[places]

    def _read(self, number: int, pages: list[int]) -> Index:
        """Return the rows of pages of a file; -1 for missing pages."""
        if number in self._whole:
            whole = self._whole[number]
            return np.append(whole, -1)[np.minimum(pages, len(whole))]
        return self.pages.read(self._files[number], pages, level=self._level)

    def _read_whole(self, number: int) -> Index:
        """Return the rows of all pages of a file; empty if it is missing."""
        if number >= 0 and number not in self._whole:
            self._whole[number] = self.pages.read(self._files[number], level=self._level)
        return self._whole.get(number, np.empty(0, np.int64))


def _plane_shape(image: OmeImage, kind: PageLayout, path: str, level: int) -> tuple[int, int, int]:
    """Return the planes along T, C and Z, after comparing the pages with the XML."""
    told = image.sizes["Y"], image.sizes["X"]
    sizes = tuple(kind.shape[kind.axes.index(letter)] for letter in "yx")
    if sizes != told and (level == 0 or any(n > most for n, most in zip(sizes, told, strict=True))):
        raise _contradiction(
            path, "the pages have a different size", "SizeY and SizeX", told, sizes
        )
    samples = kind.shape[kind.axes.index("s")] if "s" in kind.axes else 1
    channels, rest = divmod(image.sizes["C"], samples)
    if rest:
        problem = "the pages have a different number of samples"
        multiple = f"a multiple of {samples}"
        raise _contradiction(path, problem, "SizeC", multiple, image.sizes["C"])
    shape = image.sizes["T"], channels, image.sizes["Z"]
    if math.prod(shape) > MAX_PLANES:
        problem, most = "the image has too many planes", f"at most {MAX_PLANES} planes"
        raise _contradiction(path, problem, "SizeT, SizeC and SizeZ", most, shape)
    return shape


def _keys(files: Index, pages: Index) -> Index:
    """Return a number for each page of each file."""
    return files << 32 | np.minimum(pages, FAR)


def _place_planes(
    image: OmeImage, listed: Index, shape: tuple[int, int, int], path: str
) -> tuple[ListedPlanes, int]:
    """Return the position of every plane in the runs, and the number of pages beyond the sizes.

    The runs have ``listed`` planes each. Pages that are listed within the sizes, too, as those with
    several samples may be, do not count as beyond.
    """
    runs = image.runs
    sizes = dict(zip("TCZ", shape, strict=True))
    slow_first = [sizes[axis] for axis in reversed(image.order)]
    first = runs.first[:, ["ZCT".index(axis) for axis in reversed(image.order)]]
    inside = (first < slow_first).all(axis=1)
    start = np.zeros(len(first), np.int64)
    start[inside] = np.ravel_multi_index(first[inside].T, slow_first)
    count = np.where(inside, np.minimum(listed, math.prod(shape) - start), 0)
    total = int(count.sum())
    if total > 2 * MAX_PLANES:
        problem, expected = "planes are listed too often", f"{math.prod(shape)} planes"
        raise _contradiction(path, problem, "TiffData", expected, total)
    within = np.arange(total) - np.repeat(count.cumsum() - count, count)
    at = np.unravel_index(np.repeat(start, count) + within, slow_first)
    along = dict(zip(reversed(image.order), at, strict=True))
    place = np.ravel_multi_index([along[axis] for axis in "TCZ"], shape)
    pages = np.repeat(runs.page, count) + within
    planes = ListedPlanes(place, np.repeat(runs.source, count), pages)
    shown = np.isin(_keys(runs.source, runs.page + count), _keys(planes.source, pages))
    left_out = np.where(shown, 0, np.minimum(listed - count, FAR))
    return planes, int(left_out.sum())


def _contradiction(
    path: str, problem: str, field: str, expected: Any, found: Any
) -> tools.CorruptFileError:
    return tools.CorruptFileError(
        problem,
        path=path,
        where=f"{field} in the OME-XML",
        expected=expected,
        found=found,
        hint=pages_hint(path),
    )
