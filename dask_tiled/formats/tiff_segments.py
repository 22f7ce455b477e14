"""Pages of TIFF files become a layout: strips and tiles become pieces."""

from __future__ import annotations

from collections.abc import Sequence

from dask_tiled.formats.tiff_pages import Pages
from dask_tiled.layout import Layout
from dask_tiled.selection import Index


def layout_of(pages: Pages, rows: Sequence[int] | Index) -> Layout:
    """Lay out pages as frames of one array.

    Parameters
    ----------
    pages : Pages
    rows : sequence of int
        Rows of the table, in the order of the frames. They may be of several kinds if these have
        the same ``Kind.image``.

    Returns
    -------
    Layout
        Its grid is ``(len(rows),)``, its ``sig_shape`` that of the kind; its files are those of
        these pages only.

    Raises
    ------
    TruncatedFileError
        A segment reaches beyond its file.
    DatasetError
        The pages differ in shape or dtype, or no decoder is known.
    """
    raise NotImplementedError


def base_shape_of(pages: Pages, row: int) -> tuple[int, ...]:
    """Give the shape of the blocks a page is read in: 1 frame, then a tile or strip."""
    raise NotImplementedError
