"""OME-TIFF: images of up to five dimensions in one file, or spread over many.

Layout facts: the OME-TIFF specification; OME-XML in the first page of every file, or in a separate
file, maps planes to pages; checked with real sets.

Axes are (t, c, z, y, x), independent of the order of pages. T, C and Z of length 1 are dropped, as
in tifffile, unless ``squeeze=False``. A stack begins at the position of its first plane along z, if
all planes lie in steps of PhysicalSizeZ from there at all times and in all channels. A modulo
annotation splits its axis in two. The samples of a pixel are an axis "s" of the frames, as in TIFF,
and not part of C. Sizes, scales and names come from the XML, dtypes from the pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_tiled.errors import check_whole
from dask_tiled.files.paths import Border, within
from dask_tiled.formats import tools
from dask_tiled.formats.ome_tiff.files import (
    SetFolder,
    find_members,
    is_document,
    numbers_of,
    open_document,
    pages_hint,
    read_document,
)
from dask_tiled.formats.ome_tiff.stack import PlaneStack
from dask_tiled.formats.ome_tiff.xml import Document, Modulo, OmeImage
from dask_tiled.formats.tiff.ifd import is_ome_tiff
from dask_tiled.formats.tiff.kind import PageLayout
from dask_tiled.formats.tiff.segments import base_shape_of, layout_of
from dask_tiled.formats.tools.choosing import Chosen, choose_picture
from dask_tiled.formats.tools.files import absolute
from dask_tiled.model.axes import nav_axes
from dask_tiled.model.doubts import left_out
from dask_tiled.model.indexing import Array
from dask_tiled.model.instrument import converted, entries

NEAR = 0.1
"""Largest distance of planes from their places, in steps: stages measure with errors."""
MAX_LISTED = 1000  # maximum number of missing planes and files listed in the metadata


def sniff(path: str, head: bytes) -> str | None:
    """Check for OME-XML: in the description of the first TIFF page, or at the start."""
    return None if is_document(head) or is_ome_tiff(path, head) else "no OME-XML"


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    dataset: int | str | None = None,
    level: int = 0,
    squeeze: bool = True,
) -> tools.Description:
    """Describe an image of a set of files, given any of them.

    Parameters
    ----------
    paths : sequence of str
        A file of the set, or several.
    nav_shape : tuple of int, optional
        Another shape for the planes, in the order of (T, C, Z). Missing planes keep their places.
    dataset : int or str, optional
        Number or name of an image; by default the one that holds the first plane of the file.
    level : int
        Level of its pyramid, 0 for full resolution.
    squeeze : bool
        Whether T, C and Z of length 1 are dropped.
    """
    check_whole("level", level, least=0, path=paths[0])
    folder = SetFolder(paths[0])
    document = open_document(paths[0], folder)
    _check_listed(paths, document, folder)
    if not document.images:
        hint = pages_hint(document.path)
        raise tools.CorruptFileError("the OME-XML has no image", path=document.path, hint=hint)
    number, doubts = _choose(paths[0], document, folder, dataset)
    image = document.images[number]
    stack = PlaneStack.read(document, image, folder, level)
    modulo = next((document.modulo[i] for i in image.annotations if i in document.modulo), {})
    axes, shape = _nav_axes(image, stack.shape, modulo, squeeze=squeeze)
    doubts += left_out(shape, stack.left_out)
    if nav_shape is not None and nav_shape != shape:
        axes, shape = nav_axes(len(nav_shape)), nav_shape
    numbers = None if stack.there.all() else stack.frame_numbers(math.prod(shape))
    layout = layout_of(stack.pages, stack.rows[stack.there]).show(shape, numbers=numbers)
    facts = {"ome_tiff": {**_facts(stack, number, modulo), "level": level}}
    axes += _sig_axes(image, stack.kind)
    base_shape = base_shape_of(stack.kind)
    desc = tools.Description.of("ome_tiff", layout, facts, axes, base_shape=base_shape)
    return desc.with_doubts(*doubts)


def _choose(path: str, document: Document, folder: SetFolder, dataset: int | str | None) -> Chosen:
    """Choose an image, by default the one that holds the first plane of the file.

    The default is in doubt if others have planes in the same file.
    """
    names = [one.name for one in document.images]
    sizes, first = [0] * len(names), 0
    if dataset is None and len(names) > 1:
        own = numbers_of(path, document, folder)
        first = _number_of(document, own)
        inside = (bool(np.isin(one.runs.source, own).any()) for one in document.images)
        pixels = (math.prod(one.sizes.values()) for one in document.images)
        sizes = [n * there for n, there in zip(pixels, inside, strict=True)]
    return choose_picture(document.path, names, dataset, sizes, first)


def _number_of(document: Document, own: Sequence[int]) -> int:
    """Return the image that holds the first plane of a file; 0 if none does."""
    first_pages = []
    for number, image in enumerate(document.images):
        inside = np.isin(image.runs.source, own) & (image.runs.planes != 0)
        if inside.any():
            first_pages.append((int(image.runs.page[inside].min()), number))
    return min(first_pages, default=(0, 0))[1]


def _check_listed(paths: Sequence[str], document: Document, folder: SetFolder) -> None:
    """Check that files opened together belong to one set."""
    if len(paths) == 1:
        return
    members = find_members(document, range(len(document.sources)), folder)
    known = {absolute(document.path), *members.values()}
    stray = next((path for path in paths if absolute(path) not in known), None)
    if stray is not None:
        hint = "Stack files of one shape by open_volumes()."
        raise tools.DatasetError(
            "the files are not of one set", path=stray, expected=f"a file of {paths[0]}", hint=hint
        )


def _facts(stack: PlaneStack, number: int, modulo: dict[str, Modulo]) -> dict[str, Any]:
    document, image = stack.document, stack.image
    facts = {
        "dataset": number,
        "datasets": tuple(one.name for one in document.images),
        "nav_shape_from": "SizeT, SizeC and SizeZ in the OME-XML",
        "levels": stack.pages[stack.rows[stack.there][0]].levels,
        "xml_path": document.path,
        "creator": document.creator,
        "channels": image.channels,
        "image": image.facts,
        "devices": image.devices,
        "modulo": {axis: inner._asdict() for axis, inner in modulo.items()},
    }
    if not stack.there.all():
        listed = stack.missing[:MAX_LISTED]
        facts["missing_files"] = tuple(document.name_of(source) for source in listed)
        facts["missing_planes"] = stack.missing_planes(MAX_LISTED)
    return facts


def _nav_axes(
    image: OmeImage, shape: tuple[int, int, int], modulo: dict[str, Modulo], *, squeeze: bool
) -> tuple[tuple[tools.Axis, ...], tuple[int, ...]]:
    """Return the axes of planes, each followed by its modulo axis, and their lengths."""
    axes: list[tuple[tools.Axis, int]] = []
    for letter, size in zip("TCZ", shape, strict=True):
        inner = modulo.get(letter)
        step = inner.size if inner and inner.size > 1 and not size % inner.size else 1
        start = _height(image, shape) if (letter, step) == ("Z", 1) else 0.0
        axes.append((_axis(image, letter, step, start), size // step))
        if inner and step > 1:
            axes.append((_inner_axis(letter, inner, {axis.name for axis, _ in axes}), step))
    kept = [(axis, size) for axis, size in axes if size > 1 or not squeeze]
    return tuple(axis for axis, _ in kept), tuple(size for _, size in kept)


def _sig_axes(image: OmeImage, kind: PageLayout) -> tuple[tools.Axis, ...]:
    """Return the axes of a page; pyramid levels have fewer pixels than the XML states."""
    return tuple(
        _axis(image, letter.upper(), image.sizes[letter.upper()] / size)
        if letter in "yx"
        else tools.Axis("depth" if letter == "z" else letter)
        for letter, size in zip(kind.axes, kind.shape, strict=True)
    )


def _axis(image: OmeImage, letter: str, factor: float = 1.0, start: float = 0.0) -> tools.Axis:
    """Return an axis whose positions are ``factor`` times as far apart as in the XML."""
    scale, units = image.scales.get(letter, (math.nan, ""))
    whole = letter == "C" and factor == 1 and len(image.channels) == image.sizes["C"]
    labels = image.channels if whole and all(image.channels) else ()
    axis = tools.Axis.calibrated(letter.lower(), units, scale * factor, start)
    return replace(axis, labels=labels, colours=image.colours if whole else ())


def _height(image: OmeImage, shape: tuple[int, int, int]) -> float:
    """Return the position of the first plane along z, in the unit of the step.

    0 if a plane has none, or is more than `NEAR` steps off its place in the stack.
    """
    step, units = image.scales["Z"]
    metres, count = converted(1.0, units, "m"), shape[2]
    if metres is None or count < 2 or len(image.heights) < math.prod(shape):
        return 0.0
    places, heights = image.heights[:, :3], image.heights[:, 3] / metres
    inside = ((places >= 0) & (places < shape)).all(axis=1)
    stack = np.full(shape, math.nan)
    stack[tuple(places[inside].T.astype(int))] = heights[inside]
    first = stack[0, 0, 0]
    fits = (abs(stack - first - step * np.arange(count)) <= NEAR * step).all()
    return float(f"{first:.12g}") if fits else 0.0


def _inner_axis(letter: str, inner: Modulo, taken: set[str]) -> tools.Axis:
    clash = inner.name in taken | {"t", "c", "z", "y", "x", "s", ""}
    name = f"{letter.lower()}_{inner.name or 'inner'}" if clash else inner.name
    return tools.Axis.calibrated(name, inner.units, inner.step, inner.start)


ROWS = (
    ("microscope", "devices/instrument/Microscope/@Model"),
    ("magnification", "devices/objective/@CalibratedMagnification"),
    ("magnification", "devices/objective/@NominalMagnification"),
    ("detector", "devices/detector/@Model"),
    ("date", "image/AcquisitionDate"),
)


def read_headers(desc: tools.Description) -> Array:
    """Return the facts about the existing planes in the XML."""
    told = desc.metadata["ome_tiff"]
    path, number = told["xml_path"], told["dataset"]
    with within(Border([path], outside=True)):  # opening has checked the files
        document = read_document(path, number)
        planes = document.planes
        if planes is None or not planes.facts.dtype.names or number >= len(document.images):
            raise tools.DatasetError("the OME-XML has no facts about planes", path=path)
        image = document.images[number]
        there = np.ones(desc.layout.n_frames, bool)
        if "missing_planes" in told:
            there = PlaneStack.read(document, image, SetFolder(path), told["level"]).there
    sizes = image.sizes["T"], len(there) // (image.sizes["T"] * image.sizes["Z"]), image.sizes["Z"]
    inside = (planes.places < sizes).all(axis=1)
    table = np.full(math.prod(sizes), math.nan, planes.facts.dtype)
    table[np.ravel_multi_index(tuple(planes.places[inside].T), sizes)] = planes.facts[inside]
    return table[there]


FORMAT = tools.Format(
    name="ome_tiff",
    extensions=(".ome.tif", ".ome.tiff", ".ome.tf2", ".ome.tf8", ".ome.btf", ".companion.ome"),
    summary="OME-TIFF sets, from any of their files: several images, pyramids, missing planes",
    nav_shape_from="the OME-XML",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    instrument=entries({"ome_tiff": ROWS}),
    peers=("tifffile", "bioio"),
    aliases=("ome",),
)
