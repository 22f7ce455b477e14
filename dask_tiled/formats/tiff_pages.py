"""Tables of TIFF pages: where the segments of every page lie, and in which of few kinds.

Layout facts: TIFF, revision 6.0; Adobe's technical notes on TIFF (SubIFDs, JPEG); the BigTIFF
design.

How to use it, for one file or a set of many::

    pages = Pages()
    rows = [pages.read(File.at(path), [0])[0] for path in paths]   # the first page of each file
    layout = layout_of(pages, rows)                                # in tiff_segments.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.files import File
from dask_tiled.selection import Index


class Kind(NamedTuple):
    """What pages of one layout have in common. Only the place of their segments differs.

    Attributes
    ----------
    shape : tuple of int
        Shape of a page as it is shown: (y, x), (y, x, s), (s, y, x), or one of these with z before
        y.
    axes : str
        Its axes, ``"yx"``, ``"yxs"``, ``"syx"``, ...
    dtype : numpy.dtype
        Type of the pixels that come out, in native byte order.
    """

    shape: tuple[int, ...]
    axes: str
    dtype: np.dtype

    @property
    def image(self) -> tuple[tuple[int, ...], str, np.dtype]:
        """Give shape, axes and dtype: pages that are equal in these can be frames of one array."""
        return self.shape, self.axes, self.dtype


class Pages:
    """A growing table of pages. A row is a page; files of equal layout share their kinds.

    Attributes
    ----------
    files : list of File
        The files read so far.
    kinds : list of Kind
        The kinds found so far.
    """

    def __init__(self) -> None:
        self.files: list[File] = []
        self.kinds: list[Kind] = []

    def __len__(self) -> int:
        """Count the pages."""
        raise NotImplementedError

    def read(self, file: File, numbers: Sequence[int] | None = None, *, level: int = 0) -> Index:
        """Add pages of a file.

        Parameters
        ----------
        file : File
        numbers : sequence of int, optional
            Numbers of the pages in the main chain, from 0 on, in any order; by default all. No page
            behind the last of them is looked at.
        level : int
            0 for the pages themselves; 1 and up for the first, second, ... of their SubIFDs.

        Returns
        -------
        int64 array
            The rows of these pages in the table.

        Raises
        ------
        CorruptFileError, TruncatedFileError
            The file is no TIFF, or a page is damaged.
        DatasetError
            There is no such page or level, or tifffile is not installed.
        """
        raise NotImplementedError

    def kind_of(self, row: int) -> Kind:
        """Give the kind of a page."""
        raise NotImplementedError

    def count_levels(self, row: int) -> int:
        """Count the levels of a page: 1 and how many SubIFDs it has."""
        raise NotImplementedError


def count_pages(file: File) -> int:
    """Count the pages of the main chain of a file, without looking at what is in them.

    Raises
    ------
    CorruptFileError, TruncatedFileError
        The file is no TIFF, or the chain is broken.
    """
    raise NotImplementedError


def read_description(file: File) -> str:
    """Read the ImageDescription of the first page of a file; empty where there is none.

    Raises
    ------
    CorruptFileError, TruncatedFileError
        The file is no TIFF, or its first page is damaged.
    """
    raise NotImplementedError
