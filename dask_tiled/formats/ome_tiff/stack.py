"""The planes of an OME image, and the pages that hold them."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.formats.ome_tiff.files import Folder, find_members
from dask_tiled.formats.ome_tiff.members import Members
from dask_tiled.formats.ome_tiff.planes import MAX_PLANES, Planes, place_planes, plane_shape
from dask_tiled.formats.ome_tiff.xml import Document, Image
from dask_tiled.formats.tiff.kind import Kind
from dask_tiled.formats.tiff.pages import Pages
from dask_tiled.model.selection import Index


class Stack(NamedTuple):
    """An image as its files hold it.

    Attributes
    ----------
    document : Document
    image : Image
    kind : Kind
        The kind of its first page.
    shape : tuple of int
        Planes along T, C and Z.
    planes : Planes
    pages : Pages
    rows : int64 array
        The row among the pages for each place in C order of ``shape``, or -1.
    missing : tuple of int
        Numbers of the sources that are not there.
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
        """Read where the pages of an image are.

        Raises
        ------
        CorruptFileError, TruncatedFileError
            A file is damaged, no plane is there, or the XML says what cannot be.
        DatasetError
            A file is outside of the folder, or there is no such level.
        """
        path = document.path
        found = find_members(document, list(dict.fromkeys(image.runs.source.tolist())), folder)
        missing = tuple(source for source, member in found.items() if member is None)
        members = Members(found, level)
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
        """Give the numbers of frames for places: -1 for missing planes, and behind the last place.

        Raises
        ------
        DatasetError
            There are too many places to fill.
        """
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
        _, source, page = (int(column[plane]) for column in self.planes)
        return f"page {page} of {name_of(self.document, source)}"


def name_of(document: Document, source: int) -> str:
    """Name a file as the XML does."""
    uuid, name = document.sources[source]
    return name or uuid or os.path.basename(document.path)


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
    names = ", ".join(name_of(document, source) for source in missing[:5])
    return TruncatedFileError(
        f"no plane of the image {image.name!r} is there",
        path=document.path,
        expected=f"the files {names}" if missing else "TiffData for pages that are there",
    )
