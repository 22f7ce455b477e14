"""TIFF: plain and BigTIFF files, ImageJ stacks, pyramids, and lists of files.

Rows, planes and samples are as stored: palettes and orientations are in the metadata, and not
applied. JPEG images with luma and chroma decode to RGB.

Layout facts: TIFF, revision 6.0; Adobe's technical notes on TIFF (SubIFDs, JPEG, floating-point
predictor), as tifffile follows them; the BigTIFF design; the source of ImageJ (TiffDecoder,
TiffEncoder, Calibration); tifffile's documentation of the files that it writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_tiled.errors import check_whole
from dask_tiled.files.file import is_filling
from dask_tiled.formats import tools
from dask_tiled.formats.tiff import eer
from dask_tiled.formats.tiff.calibration import PageFacts, is_jeol, read_calibration, read_report
from dask_tiled.formats.tiff.dates import dates_of
from dask_tiled.formats.tiff.ifd import is_ome_tiff, is_tiff
from dask_tiled.formats.tiff.instrument import INSTRUMENT
from dask_tiled.formats.tiff.kind import PageLayout
from dask_tiled.formats.tiff.pages import Pages
from dask_tiled.formats.tiff.segments import base_shape_of, layout_of
from dask_tiled.formats.tiff.series import PageSeries, find_series, is_one_frame
from dask_tiled.formats.tiff.tags import read_tags
from dask_tiled.formats.tools.choosing import choose_picture
from dask_tiled.formats.tools.files import lost_before, named_in_a_row
from dask_tiled.model.doubts import Doubt
from dask_tiled.model.indexing import Array, Index
from dask_tiled.model.listing import most_listed

NAMES = {"i": "frame", "q": "frame", "#": "file"}


def sniff(path: str, head: bytes) -> str | None:
    """Check for the first bytes of TIFF; exclude OME-TIFF sets, which have their own format."""
    if not is_tiff(head):
        return "does not begin like a TIFF file"
    return "has OME-XML" if is_ome_tiff(path, head) else None


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    dataset: int | str | None = None,
    level: int = 0,
) -> tools.Description:
    """Describe a series of pages of a TIFF file, or of several files.

    Parameters
    ----------
    paths : sequence of str
        One file, or several. The first axis then counts files, if they have equal numbers of
        frames, or else all frames.
    nav_shape : tuple of int, optional
        Navigation shape; frames may then be missing at the end.
    dataset : int or str, optional
        Number or name of a series of pages; by default the first.
    level : int
        Level of its pyramid, 0 for full resolution.
    """
    check_whole("level", level, least=0, path=paths[0])
    pages = Pages()
    settled = nav_shape is not None or is_filling()
    found, rows, doubts = _choose_pages(pages, paths, dataset, level, settled=settled)
    shown = [series[number] for _, series, number in found]
    named = named_in_a_row([pages.file_of(chain[0]) for chain, _, _ in found])
    counts = [math.prod(one.nav_shape) for one in shown]
    is_whole = nav_shape is not None and math.prod(nav_shape) == sum(counts)
    lost = [0] * len(found)
    if named.doubts and is_filling() and not is_whole:
        lost = lost_before(named.members, counts)
    nav, letters, source = _nav_of(shown, lost)
    chain, series, number = found[0]
    row, page = rows[0], chain[series[number].numbers[0]]
    whole, kind, ifd = pages.kind_of(page), pages.kind_of(row), pages.ifd(page)
    sizes, tags = dict(zip(whole.axes, whole.shape, strict=True)), read_tags(ifd)
    report = read_report(ifd) if is_jeol(tags) else {}
    told = PageFacts(ifd, tags, {name: sizes[name] for name in "yx"}, report)
    calibration, told_by = read_calibration(told)
    axes = _axes(letters, calibration.axes, whole, kind)
    facts = {
        "nav_shape_from": source,
        "scales_from": told_by,
        "orientation": "rows, planes and samples as stored",
        "dataset": number,
        "datasets": tuple(_summary(pages, chain, one) for one in series[: most_listed()]),
        "level": level,
        "levels": pages[row].levels,
        "tags": tags,
    }
    if calibration.positions:
        facts["positions"] = calibration.positions
    if report:
        facts["jeol"] = report
    layout = layout_of(pages, rows, [*_between(counts, lost)]).show(nav)
    base_shape = base_shape_of(kind)
    desc = tools.Description.of("tiff", layout, {"tiff": facts}, axes, base_shape=base_shape)
    desc = desc.with_doubts(*doubts, *named.doubts)
    promised = series[number].promised if len(found) == 1 and is_filling() else 0
    return desc.with_frames((promised,)) if promised else desc


def _choose_pages(
    pages: Pages, paths: Sequence[str], dataset: int | str | None, level: int, *, settled: bool
) -> tuple[list[tuple[Index, list[PageSeries], int]], Index, tuple[Doubt, ...]]:
    """Read the pages of files: the series of each file, the rows of all frames, and doubts."""
    found: list[tuple[Index, list[PageSeries], int]] = []
    shared: list[PageSeries] = []
    doubts: tuple[Doubt, ...] = ()
    for path in paths:
        chain = pages.read(tools.File.at(path))
        # Often each file has a single frame; they share one description.
        alone = is_one_frame(pages, chain)
        series = (alone and shared) or find_series(pages, chain)
        shared = series if alone else shared
        sizes = _sizes_of(pages, chain, series)
        number, own = choose_picture(path, [one.name for one in series], dataset, sizes)
        doubts = doubts or (*own, *series[number].doubts)
        found.append((chain, series, number))
    rows = [series[n].rows(pages, chain, level, settled=settled) for chain, series, n in found]
    return found, np.concatenate(rows), doubts


def _between(counts: Sequence[int], lost: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last numbers, plus one, of lost frames before files of some frames."""
    at = 0
    for count, gap in zip(counts, lost, strict=True):
        if gap:
            yield at, at + gap
        at += gap + count


def _sizes_of(pages: Pages, chain: Index, series: Sequence[PageSeries]) -> list[int]:
    """Return the pixels of each series; 0 for thumbnails and sums, which nobody means by a file."""
    sizes: list[int] = []
    for one in series:
        row = chain[one.numbers[0]]
        is_meant = not sizes or not (pages.is_reduced(row) or one.name == eer.INTEGRATED)
        pixels = math.prod(one.nav_shape) * math.prod(pages.kind_of(row).shape)
        sizes.append(pixels if is_meant else 0)
    return sizes


def _nav_of(chosen: Sequence[PageSeries], lost: Sequence[int]) -> tuple[tuple[int, ...], str, str]:
    """Return the navigation shape of all files, a letter for each axis, and the source.

    ``lost`` is the number of lost frames before each file.
    """
    first, *others = chosen
    if not others:
        return first.nav_shape, first.letters, first.source
    if any(one.nav_shape != first.nav_shape for one in others):
        frames = sum(math.prod(one.nav_shape) for one in chosen) + sum(lost)
        return (frames,), "i", "the number of frames in all files"
    letters = f"#{first.letters}" if first.letters else "i"
    files = len(chosen) + sum(lost) // math.prod(first.nav_shape)
    source = "the numbers of the files" if any(lost) else "the number of files"
    return (files, *first.nav_shape), letters, source


def _summary(pages: Pages, chain: Index, series: PageSeries) -> dict[str, Any]:
    row = chain[series.numbers[0]]
    kind = pages.kind_of(row)
    return {
        "name": series.name,
        "shape": series.nav_shape + kind.shape,
        "axes": series.letters + kind.axes,
        "dtype": str(kind.dtype),
        "levels": pages[row].levels,
    }


def _axes(
    letters: str, scales: Mapping[str, tools.Axis], whole: PageLayout, level: PageLayout
) -> tuple[tools.Axis, ...]:
    """Name axes, with the scales of the whole page, adjusted to the level."""
    names: list[str] = []
    for letter in letters:
        name = NAMES.get(letter, letter)
        taken = name in names or name in level.axes
        names.append(f"{name}_{len(names)}" if taken else name)
    full, sizes = (dict(zip(kind.axes, kind.shape, strict=True)) for kind in (whole, level))
    axes = (scales.get(name, tools.Axis(name)) for name in (*names, *level.axes))
    factors = {name: full[name] / sizes[name] for name in "yx"}
    return tuple(replace(axis, scale=axis.scale * factors.get(axis.name, 1.0)) for axis in axes)


def read_headers(desc: tools.Description) -> Array:
    """Return the dates of the pages."""
    told, paths = desc.metadata["tiff"], [file.path for file in desc.files]
    pages = Pages(dated=True)
    _, rows, _ = _choose_pages(pages, paths, told["dataset"], told["level"], settled=True)
    opened = desc.layout
    layout = layout_of(pages, rows, opened.selection.lost)
    if (layout.files, *layout.pieces.content) != (opened.files, *opened.pieces.content):
        raise tools.DatasetError("the pages have changed since the file was opened", path=paths[0])
    if not pages.dates:
        raise tools.DatasetError("the pages have no DateTime", path=paths[0])
    dates = np.full(layout.n_frames, np.datetime64("NaT", "us"))
    is_found = np.ones(layout.n_frames, bool)
    for first, stop in layout.selection.lost:
        is_found[first:stop] = False
    dates[is_found] = dates_of(pages, rows)
    return dates.view([("time", "M8[us]")])


FORMAT = tools.Format(
    name="tiff",
    extensions=(".tif", ".tiff", ".btf", ".tf8", ".stk", ".eer"),
    summary="TIFF and BigTIFF: stacks, pyramids, tiles, compressed, ImageJ, MetaMorph stacks, EER",
    nav_shape_from="ImageJ, tifffile or MetaMorph, else the number of pages",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    instrument=INSTRUMENT,
    peers=("tifffile", "bioio"),
    aliases=("imagej",),
)
