"""Pages of the files of an OME-TIFF set, each file opened once: which of them are there."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from dask_tiled.errors import DatasetError, TruncatedFileError
from dask_tiled.formats.ome_tiff.planes import Planes
from dask_tiled.formats.ome_tiff.xml import WHOLE_FILE, Runs
from dask_tiled.formats.tiff.kind import Kind
from dask_tiled.formats.tiff.pages import Pages, count_pages
from dask_tiled.model.files import File
from dask_tiled.model.selection import Index


class Members:
    """Files of a set.

    Parameters
    ----------
    paths : mapping
        Path of each source of planes, or None for those that are missing.
    level : int
        Which level of a pyramid is read.
    """

    def __init__(self, paths: Mapping[int, str | None], level: int) -> None:
        self.pages = Pages()
        self._level = level
        known: dict[str, int] = {}
        self._numbers = {
            source: -1 if path is None else known.setdefault(path, len(known))
            for source, path in paths.items()
        }
        self._files = [File.at(path) for path in known]
        self._whole: dict[int, Index] = {}

    def first_kind(self, runs: Runs) -> Kind | None:
        """Give the kind of the first page there is, or None if there is none."""
        for source, number in self._numbers.items():
            if number >= 0:
                page = runs.page[runs.source == source].min()
                (row,) = self._read(number, np.array([page]))
                if row >= 0:
                    return self.pages.kind_of(int(row))
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
        """Find the pages of planes: their rows in the table, -1 for those that are not there.

        Raises
        ------
        CorruptFileError, TruncatedFileError
            A file is damaged.
        DatasetError
            A page has no such level.
        """
        numbers = np.full(max(self._numbers) + 1, -1, np.int64)
        numbers[list(self._numbers)] = list(self._numbers.values())
        members = numbers[planes.source]
        order = np.lexsort([planes.page, members])
        rows = np.full(len(order), -1, np.int64)
        bounds = np.searchsorted(members, range(len(self._files) + 1), sorter=order)
        for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
            if start < stop:
                own = order[start:stop]
                pages, places = np.unique(planes.page[own], return_inverse=True)
                rows[own] = self._read(number, pages)[places]
        return rows

    def _read(self, number: int, pages: Index) -> Index:
        """Give the rows of pages of a file, -1 for those that are not there."""
        file, rows = self._files[number], np.full(len(pages), -1, np.int64)
        if number in self._whole:
            whole = self._whole[number]
            there = pages < len(whole)
            rows[there] = whole[pages[there]]
            return rows
        try:
            return self.pages.read(file, pages.tolist(), level=self._level)
        except TruncatedFileError:
            raise
        except DatasetError:
            there = pages < count_pages(file)
            if there.all():
                raise
            if there.any():
                rows[there] = self.pages.read(file, pages[there].tolist(), level=self._level)
            return rows
