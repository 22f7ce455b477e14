"""OME-TIFF: images of up to five dimensions in one file, or spread over many.

Layout facts: the OME-TIFF specification, by which OME-XML in the first page of every file, or in a
file of its own, says which page holds which plane; real sets.

Axes are (t, c, z, y, x), in this order, whatever that of the pages is. Those of T, C and Z that
have one plane are left out, as tifffile does, unless ``squeeze=False``. A modulo annotation splits
its axis in two. The samples of a pixel are an axis "s" of the frames, where TIFF has it, and no
part of C. Sizes, scales and names are those of the XML, types those of the pages.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.description import Description
from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError, check_whole
from dask_tiled.formats import Format
from dask_tiled.formats.ome_axes import nav_axes_of, sig_axes_of
from dask_tiled.formats.ome_files import Folder, find_members, open_document
from dask_tiled.formats.ome_members import Members
from dask_tiled.formats.ome_planes import Planes, place_planes, plane_shape
from dask_tiled.formats.ome_text import is_document, is_ome_tiff
from dask_tiled.formats.ome_xml import Document, Image, Modulo
from dask_tiled.formats.tiff_kind import Kind
from dask_tiled.formats.tiff_segments import base_shape_of, layout_of
from dask_tiled.selection import Index

MAX_LISTED = 1000
"""So many missing planes and files are listed in the metadata."""


def sniff(path: str, head: bytes) -> str | None:
    """Look for OME-XML: where TIFF files describe their first page, or at the start."""
    return None if is_document(head) or is_ome_tiff(path, head) else "no OME-XML"


def describe(
    paths: Sequence[str],
    *,
    series: int | str = 0,
    level: int = 0,
    squeeze: bool = True,
    outside_folder: bool = False,
) -> Description:
    """Describe an image of a set of files, from any of them.

    Parameters
    ----------
    paths : sequence of str
        A file of the set, or several.
    series : int or str
        Number or name of an image.
    level : int
        Level of its pyramid, 0 for full resolution.
    squeeze : bool
        Whether T, C and Z are left out where they have one plane.
    outside_folder : bool
        Whether the XML may name files outside of the folder.
    """
    folder = Folder(paths[0], outside=outside_folder)
    document = open_document(paths[0], folder)
    _check_listed(paths, document, folder)
    number = _number_of(document, series)
    image = document.images[number]
    runs = image.runs
    found = find_members(document, list(dict.fromkeys(runs.source.tolist())), folder)
    members = Members(found, check_whole("level", level, least=0, path=paths[0]))
    kind = members.first_kind(runs)
    if kind is None:
        raise _nothing_there(document, image, found)
    _check_page(kind, image, document.path, level)
    samples = kind.shape[kind.axes.index("s")] if "s" in kind.axes else 1
    shape = plane_shape(image, samples, document.path)
    planes = place_planes(image, shape, members.count_pages(runs), document.path)
    frames = members.frames_of(planes)
    numbers = np.full(math.prod(shape), -1, np.int64)
    numbers[planes.place] = frames.of_plane
    lost = numbers < 0
    if not len(frames.rows):
        raise _nothing_there(document, image, found)

    modulo = next((document.modulo[i] for i in image.annotations if i in document.modulo), {})
    axes = nav_axes_of(image, shape, modulo, squeeze=squeeze)
    in_order = len(frames.rows) == len(numbers) and (np.diff(numbers) == 1).all()
    layout = layout_of(members.pages, frames.rows).show(
        tuple(size for _, size in axes), numbers=None if in_order else numbers
    )
    row = int(frames.rows[0])
    facts = {
        **_facts(document, number, modulo),
        "level": level,
        "levels": members.pages.count_levels(row),
    }
    if lost.any():
        missing = [source for source, path in found.items() if path is None]
        facts["missing"] = _missing(document, shape, planes, np.flatnonzero(lost), missing)
    return Description.of(
        "ome_tiff",
        layout,
        {"ome_tiff": facts},
        (*(axis for axis, _ in axes), *sig_axes_of(image, kind.shape, kind.axes)),
        base_shape=base_shape_of(members.pages, row),
    )


def _number_of(document: Document, series: int | str) -> int:
    names = [image.name for image in document.images]
    if isinstance(series, str) and names.count(series) == 1:
        return names.index(series)
    if not isinstance(series, str) and 0 <= int(series) < len(names):
        return int(series)
    raise DatasetError(
        "no such series",
        path=document.path,
        expected=f"a number below {len(names)}, or one of the names {', '.join(names[:20])}",
        found=repr(series),
    )


def _check_listed(paths: Sequence[str], document: Document, folder: Folder) -> None:
    """Make sure that files that a user gave together belong together."""
    if len(paths) > 1:
        members = find_members(document, range(len(document.sources)), folder)
        known = {os.path.abspath(document.path), *members.values()}
        stray = [path for path in paths if os.path.abspath(path) not in known]
        if stray:
            raise DatasetError("not of one set", path=stray[0], expected=f"a file of {paths[0]}")


def _check_page(kind: Kind, image: Image, path: str, level: int) -> None:
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
    document: Document, image: Image, found: dict[int, str | None]
) -> TruncatedFileError:
    missing = [_name(document, source) for source, path in found.items() if path is None]
    return TruncatedFileError(
        f"no plane of the image {image.name!r} is there",
        path=document.path,
        expected=f"the files {', '.join(missing[:5])}" if missing else "TiffData of pages",
    )


def _facts(document: Document, number: int, modulo: dict[str, Modulo]) -> dict[str, Any]:
    image = document.images[number]
    return {
        "series": number,
        "series_names": tuple(image.name for image in document.images),
        "nav_shape_from": "SizeT, SizeC and SizeZ in the OME-XML",
        "xml_path": document.path,
        "creator": document.creator,
        "channels": image.channels,
        "image": image.facts,
        "modulo": {axis: inner._asdict() for axis, inner in modulo.items()},
    }


def _missing(
    document: Document,
    shape: tuple[int, int, int],
    planes: Planes,
    places: Index,
    sources: Sequence[int],
) -> dict[str, Any]:
    """List missing planes as (t, c, z, where they should be), and missing files."""
    last = np.full(math.prod(shape), -1, np.int64)
    last[planes.place] = np.arange(len(planes.place))

    def where(place: int) -> str:
        k = last[place]
        if k < 0:
            return "in no TiffData"
        return f"page {planes.page[k]} of {_name(document, planes.source[k])}"

    listed = places[:MAX_LISTED].tolist()
    coordinates = np.column_stack(np.unravel_index(listed, shape)).tolist()
    return {
        "count": len(places),
        "files": tuple(_name(document, source) for source in sources[:MAX_LISTED]),
        "planes": tuple((*tcz, where(p)) for tcz, p in zip(coordinates, listed, strict=True)),
    }


def _name(document: Document, source: int) -> str:
    uuid, name = document.sources[source]
    return name or uuid or os.path.basename(document.path)


FORMAT = Format(
    name="ome_tiff",
    extensions=(".ome.tif", ".ome.tiff", ".ome.tf2", ".ome.tf8", ".ome.btf", ".companion.ome"),
    summary="OME-TIFF sets, from any of their files: series, pyramids, missing planes",
    nav_shape_from="the OME-XML",
    sniff=sniff,
    describe=describe,
    peers=("tifffile", "bioio"),
)
