"""Zarr, formats 2 and 3: an array, or an array in a group, in a folder or a zip file.

Layout facts: the Zarr specifications, versions 2 and 3, and those of its codecs; names of
dimensions and coordinates as xarray writes them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.files.file import File, is_refusal
from dask_tiled.formats.registry import Format
from dask_tiled.formats.tools.hyperspy import AxisFacts, signal_dims
from dask_tiled.formats.tools.zips import MAGIC, FolderEntry
from dask_tiled.formats.zarr.choice import ArrayMember, StoreDocument, choose
from dask_tiled.formats.zarr.chunks import FolderChunks
from dask_tiled.formats.zarr.coordinates import positions_beside
from dask_tiled.formats.zarr.documents import DOCUMENTS, opened, read
from dask_tiled.formats.zarr.folders import (
    Directory,
    StoreFolder,
    folder_of,
    holds_documents,
)
from dask_tiled.formats.zarr.hyperspy import axes_beside
from dask_tiled.model.axes import Axis, nav_axes, sig_axes
from dask_tiled.model.colours import is_sound_list
from dask_tiled.model.decoders import BlockDecoder, Decoder
from dask_tiled.model.description import Description
from dask_tiled.model.doubts import Doubt, from_json, uneven_axis
from dask_tiled.model.layout import MAX_NDIM, Layout
from dask_tiled.model.mark import MARK, told_instrument, with_missing
from dask_tiled.model.pieces import PieceTable, joined
from dask_tiled.model.together import kept

FIELDS = "field"
"""Name of the axis of the fields of a well."""
IMPLICIT = {"node_type": "group", "attributes": {}}
"""Document of a zip file whose outermost folder has none."""


def sniff(path: str, head: bytes) -> str | None:
    """Check for the keys of a zarr document, its name, or documents in a zip file."""
    if head.startswith(MAGIC):
        try:
            return None if holds_documents(path, head, DOCUMENTS) else "a zip file without zarr"
        except DatasetError as error:
            if is_refusal(error):
                raise
            return error.problem
    if not head.lstrip().startswith(b"{"):
        return "not JSON"
    known = b'"zarr_format"' in head and b'"node_type"' in head
    return None if known or os.path.basename(path) in DOCUMENTS else "no keys of a zarr document"


def describe(
    paths: tuple[str, ...],
    *,
    nav_shape: tuple[int, ...] | None = None,
    dataset: int | str | None = None,
    level: int = 0,
    sig_dims: int | None = None,
) -> Description:
    """Describe an array in a folder.

    Parameters
    ----------
    paths : sequence of str
        One document: ``zarr.json``, or in format 2 ``.zarray`` or ``.zgroup``. The path of the
        folder is sufficient. Or a zip file with zarr: ``.zarr.zip``, ``.ozx`` or ``.zspy``.
    nav_shape : tuple of int, optional
        Another shape for the frames; missing frames stay missing.
    dataset : int or str, optional
        Path of an array or image in its group, or number or name of an image that the group lists;
        by default ``data``, or else the first image or the first level of a pyramid, or the largest
        array with two axes or more. The fields of a well are an axis.
    level : int
        Level of the pyramid of an image, or of all fields of a well, 0 for full resolution.
    sig_dims : int, optional
        How many of the last axes are signal axes; by default from the export, or 2.
    """
    file = File.only(paths, "zarr")
    folder, first = folder_of(file, DOCUMENTS)
    entry = first or FolderEntry.of(file)
    if isinstance(folder, Directory):
        document = kept(_document, file)
    else:
        document = read(folder, entry) if first else dict(IMPLICIT)
    if document["node_type"] == "array" and dataset is not None:
        raise DatasetError("the path is an array, not a group", path=entry.path, found=dataset)
    check_whole("level", level, least=0, path=entry.path)
    chosen = choose(StoreDocument(folder, entry, document), dataset, level)
    desc = _describe(chosen.members, nav_shape, sig_dims, level).with_doubts(*chosen.doubts)
    if chosen.name not in chosen.listed:
        return desc
    facts = {**desc.metadata["zarr"], "dataset": chosen.name, "datasets": chosen.listed}
    return replace(desc, metadata={**desc.metadata, "zarr": facts})


def _document(file: File) -> dict[str, Any]:
    """Read the document of the outermost folder on disk, or behind a URL."""
    return read(Directory(os.path.dirname(file.path)), FolderEntry.of(file))


def _describe(
    members: Sequence[ArrayMember],
    nav_shape: tuple[int, ...] | None,
    sig_dims: int | None,
    level: int,
) -> Description:
    folder, entry, document, image, _ = members[0]
    array = opened(entry, document)
    if array.ndim >= MAX_NDIM:
        most = MAX_NDIM - 1
        raise DatasetError("too many axes", path=entry.path, expected=most, found=array.ndim)
    if not array.ndim or not all(array.shape):
        hint = None if array.ndim else "Read single numbers with zarr or xarray."
        raise DatasetError("an array without pixels", path=entry.path, found=array.shape, hint=hint)
    attributes = dict(array.attrs)
    mark = attributes.pop(MARK, None)
    mark = mark if isinstance(mark, dict) else {}
    of_hyperspy = () if mark else axes_beside(folder, array.shape)
    if sig_dims is None:
        told = mark.get("sig_dims") or (signal_dims(of_hyperspy) if of_hyperspy else None)
        sig_dims = told if isinstance(told, int) and told > 0 else 2
    split = max(0, array.ndim - check_whole("sig_dims", sig_dims, least=1, path=entry.path))
    several = len(members) > 1
    lead, complete = int(several or not split), "written_by" in mark
    every = [
        FolderChunks(
            _alike(array, one), one.document, one.folder, one.entry, lead, complete=complete
        )
        for one in members
    ]
    unread: list[str] = []
    of_image = image.axes(members[0].level, array.ndim)
    axes, doubts = _axes(array, document, folder, mark, of_image, split, unread)
    if of_hyperspy:
        axes, doubts = _named(of_hyperspy, axes)
    nav, sig = array.shape[:split], array.shape[split:]
    if several:
        nav = len(members), *nav
        axes = _fields_axis(members, axes)
    layout = _layout(every, nav or (1,), sig)
    facts = {
        "chunks": array.chunks,
        "shards": array.shards,
        "codecs": [codec["name"] for codec in every[0].codecs],
        "attributes": attributes,
        "missing": mark.get("missing"),
        "unwritten_chunks": sum(one.unwritten for one in every) or None,
        "unread_coordinates": unread or None,
        "positions": _positions(members, array.ndim) if several else None,
        "levels": _levels(members),
        "level": level or None,
        "omero": image.omero or None,
        "has_labels": image.has_labels or None,
    }
    if isinstance(attributes.get("units"), str):
        facts["units"] = attributes["units"]
    told = mark.get("metadata")
    metadata = _plain({**(told if isinstance(told, dict) else {}), "zarr": facts})
    desc = Description.of("zarr", layout.show(nav), metadata, axes, base_shape=every[0].base_shape)
    told = from_json(mark.get("doubts"))
    desc = replace(desc, instrument=told_instrument(mark), doubts=(*desc.doubts, *doubts, *told))
    return with_missing(desc, mark, nav_shape)


def _named(
    facts: Sequence[AxisFacts], axes: Sequence[Axis]
) -> tuple[tuple[Axis, ...], tuple[Doubt, ...]]:
    """Return the axes that HyperSpy describes."""
    pairs = [*zip(facts, axes, strict=True)]
    found = [replace(one.axis, name=one.axis.name or old.name) for one, old in pairs]
    lost = zip(facts, found, strict=True)
    return tuple(found), tuple(uneven_axis(axis.name, one.lost) for one, axis in lost if one.lost)


def _alike(array: Any, member: ArrayMember) -> Any:
    """Open the array of a field; raise a DatasetError if it differs from the first one."""
    other = opened(member.entry, member.document)
    expected, found = ((one.shape, str(one.dtype)) for one in (array, other))
    if found != expected:
        problem = "the fields of the well differ"
        hint = "Pass dataset=, the path of one of them."
        raise DatasetError(
            problem, path=member.entry.path, expected=str(expected), found=str(found), hint=hint
        )
    return other


def _layout(every: Sequence[FolderChunks], grid: tuple[int, ...], sig: tuple[int, ...]) -> Layout:
    """Return the layout of arrays, one for each position of the first axis if there are several."""
    files, decoders, tables = list[File](), list[Decoder | BlockDecoder](), list[PieceTable]()
    for number, chunks in enumerate(every):
        tables.append(chunks.table(number, len(files), len(decoders)))
        files += chunks.files
        decoders += chunks.decoders
    return Layout(files, grid, sig, joined(tables) if len(tables) > 1 else tables[0], decoders)


def _fields_axis(members: Sequence[ArrayMember], axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return the axes of the fields of a well: their offsets are dropped where they differ."""
    labels = tuple(one.place.removesuffix(one.level).strip("/") for one in members)
    positions = _positions(members, len(axes))
    same = [len({*column}) == 1 for column in zip(*positions, strict=True)]
    kept = (
        axis if one else replace(axis, offset=0.0) for axis, one in zip(axes, same, strict=True)
    )
    return Axis(FIELDS, labels=labels), *kept


def _levels(members: Sequence[ArrayMember]) -> int | tuple[str, ...] | None:
    """Return the levels of an image by path, or how many all fields of a well have."""
    if len(members) > 1:
        return min(len(one.image.levels) for one in members)
    return members[0].levels or None


def _positions(members: Sequence[ArrayMember], ndim: int) -> tuple[tuple[float, ...], ...]:
    """Return the position of the first pixel of each field along all axes of its image."""
    told = (one.image.axes(one.level, ndim) for one in members)
    return tuple(tuple(axis["offset"] for axis in one or ()) or (0.0,) * ndim for one in told)


def _plain(value: Any) -> Any:
    """Convert JSON to metadata: tuples for lists, and no keys for null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value if item is not None)
    return value


def _axes(
    array: Any,
    document: Mapping[str, Any],
    folder: StoreFolder,
    mark: Mapping[str, Any],
    of_image: Any,
    split: int,
    unread: list[str],
) -> tuple[tuple[Axis, ...], tuple[Doubt, ...]]:
    """Name the axes, with scales from the export, from OME-Zarr, or from coordinate arrays.

    Coordinates that are too long to read while opening are added to ``unread``.
    """
    usual = nav_axes(split) + sig_axes(array.ndim - split)
    told = mark.get("axes") if mark else of_image
    told = told if isinstance(told, list) and len(told) == array.ndim else [None] * array.ndim
    of_others = [None if mark or not one else str(one["name"]) for one in told]
    names = document.get("dimension_names") or of_others
    found, doubts = list[Axis](), list[Doubt]()
    for name, given, axis, size in zip(names, told, usual, array.shape, strict=True):
        one: Axis | None = None
        with suppress(TypeError, ValueError, LookupError, OverflowError):
            one = _told(axis.name, given, size)
        positions = None
        known = one is not None and (one.is_calibrated or one.labels)
        if name and not mark and not known:
            positions = positions_beside(folder, name, size)
        if positions is not None:
            one = positions.axis(name)
            if positions.points is None:
                unread.append(name)
            if one is None:
                doubts.append(uneven_axis(name, positions.lost))
        found.append(replace(one or axis, name=name or axis.name))
    return tuple(found), tuple(doubts)


def _told(name: str, given: Any, size: int) -> Axis:
    """Return an axis of an export; raise an error if it is invalid."""
    numbers = (float(given[key]) for key in ("scale", "offset"))
    axis = Axis.calibrated(name, str(given["units"]), *numbers, signed=True)
    labels = tuple(map(str, given.get("labels", ())))
    colours = tuple(map(str, given.get("colours", ())))
    points = tuple(map(float, given.get("coordinates", ())))
    if len(points) == size and all(map(math.isfinite, points)):
        units = str(given["coordinate_units"])
        axis = replace(axis, coordinates=points, coordinate_units=units)
    known = len(colours) == size and is_sound_list(colours)
    labels = labels if len(labels) == size else ()
    return replace(axis, labels=labels, colours=colours if known else ())


FORMAT = Format(
    name="zarr",
    extensions=(".zarr", ".zarr.zip", ".ozx", ".zspy"),
    summary="arrays of zarr 2 and 3, OME-Zarr, exports of to_zarr, in folders and zip files",
    nav_shape_from="the shape of the array, all but its last axes",
    sniff=sniff,
    describe=describe,
    peers=("xarray", "zarr"),
    implied=tuple(f"/{name}" for name in DOCUMENTS),
    aliases=("ome_zarr",),
)
