"""TIFF: plain and BigTIFF files, ImageJ stacks, pyramids, and lists of files.

Rows, planes and samples are as the file holds them: palettes and orientations are told of in the
metadata, and not applied. JPEG images that store luma and chroma come out as RGB.

Layout facts: TIFF, revision 6.0; Adobe's technical notes on TIFF; the BigTIFF design; see
series.py for ImageJ.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import check_whole, choose_dataset
from dask_tiled.formats.format import Format
from dask_tiled.formats.tiff.axes import named_axes, read_tags
from dask_tiled.formats.tiff.ifd import is_ome_tiff, is_tiff
from dask_tiled.formats.tiff.kind import Kind
from dask_tiled.formats.tiff.pages import Pages
from dask_tiled.formats.tiff.segments import base_shape_of, layout_of
from dask_tiled.formats.tiff.series import FILES, Series, find_series, is_one_frame
from dask_tiled.model.description import Axis, Description
from dask_tiled.model.files import File
from dask_tiled.model.indexing import Index

MOST_LISTED = 100
"""So many series are listed in the metadata."""


class Part(NamedTuple):
    """What a file gives: its series, which of them is chosen, and the rows of its frames."""

    all_series: list[Series]
    chain: Index
    chosen: int
    rows: Index

    @property
    def series(self) -> Series:
        """Give the one that is chosen."""
        return self.all_series[self.chosen]


def sniff(path: str, head: bytes) -> str | None:
    """Look for the first bytes of TIFF files, and leave those of OME-TIFF sets to their format."""
    if not is_tiff(head):
        return "does not begin as TIFF files do"
    return "has OME-XML" if is_ome_tiff(path, head) else None


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    dataset: int | str | None = None,
    level: int = 0,
) -> Description:
    """Describe a series of pages of a TIFF file, or of several files.

    Parameters
    ----------
    paths : sequence of str
        One file, or several. Of several, the first axis counts files if all have as many frames,
        and all frames, one file after the other, if they have not.
    nav_shape : tuple of int, optional
        The shape in which the frames will be shown, also if there are fewer than promised.
    dataset : int or str, optional
        Number or name of a series of pages; by default the first.
    level : int
        Level of its pyramid, 0 for full resolution.
    """
    check_whole("level", level, least=0, path=paths[0])
    pages = Pages()
    parts: list[Part] = []
    shared: list[Series] = []
    for path in paths:
        chain = pages.read(File.at(path))
        # Files of one frame are many at times: what describes one holds for all of them.
        alone = is_one_frame(pages, chain)
        series = (alone and shared) or find_series(pages, chain, settled=nav_shape is not None)
        shared = series if alone else shared
        chosen = choose_dataset(path, [one.name for one in series], dataset)
        parts.append(Part(series, chain, chosen, series[chosen].rows(pages, chain, level)))
    rows = np.concatenate([part.rows for part in parts])
    first = parts[0]
    nav, letters, source = _nav_of(parts)
    row, page = rows[0], first.chain[first.series.numbers[0]]
    kind, tags = pages.kind_of(row), read_tags(pages, page)
    axes = named_axes(letters, kind.axes, tags)
    if level:
        axes = tuple(_coarser(axis, pages.kind_of(page), kind) for axis in axes)
    metadata = {
        "nav_shape_from": source,
        "orientation": "rows, planes and samples as they are stored",
        "dataset": first.chosen,
        "datasets": tuple(_summary(pages, first, one) for one in first.all_series[:MOST_LISTED]),
        "level": level,
        "levels": pages[row].levels,
        "tags": tags,
    }
    layout = layout_of(pages, rows).show(nav)
    return Description.of("tiff", layout, {"tiff": metadata}, axes, base_shape=base_shape_of(kind))


def _nav_of(parts: Sequence[Part]) -> tuple[tuple[int, ...], str, str]:
    """Give the navigation shape of all files, a letter for each axis, and where it comes from."""
    first = parts[0].series
    if len(parts) == 1:
        return first.nav_shape, first.letters, first.source
    if any(part.series.nav_shape != first.nav_shape for part in parts):
        frames = sum(math.prod(part.series.nav_shape) for part in parts)
        return (frames,), "i", "the number of frames in all files"
    letters = FILES + first.letters if first.letters else "i"
    return (len(parts), *first.nav_shape), letters, "the number of files"


def _coarser(axis: Axis, whole: Kind, level: Kind) -> Axis:
    """Give an axis of a level of a pyramid, by that of the whole page."""
    if axis.name not in {"y", "x"}:
        return axis
    sizes = (kind.shape[kind.axes.index(axis.name)] for kind in (whole, level))
    factor = operator.truediv(*sizes)
    return replace(axis, scale=axis.scale * factor)


def _summary(pages: Pages, part: Part, series: Series) -> dict[str, Any]:
    row = part.chain[series.numbers[0]]
    kind = pages.kind_of(row)
    return {
        "name": series.name,
        "shape": series.nav_shape + kind.shape,
        "axes": series.letters + kind.axes,
        "dtype": str(kind.dtype),
        "levels": pages[row].levels,
    }


FORMAT = Format(
    name="tiff",
    extensions=(".tif", ".tiff", ".btf", ".tf8"),
    summary="TIFF and BigTIFF: stacks, pyramids, tiles, compressed pages, ImageJ hyperstacks",
    nav_shape_from="ImageJ's or tifffile's description, else the number of pages",
    sniff=sniff,
    describe=describe,
    peers=("tifffile", "bioio"),
)
