"""Zarr, formats 2 and 3: an array, or an array in a group, in a folder or a zip file.

Layout facts: the Zarr specifications, versions 2 and 3, and those of its codecs; names of
dimensions and coordinates as xarray writes them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dask_tiled.codecs.array_codecs import NUMBERS
from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.formats.registry import Format
from dask_tiled.formats.tools.hyperspy import signal_dims
from dask_tiled.formats.zarr.chunks import Chunks
from dask_tiled.formats.zarr.coordinates import positions_beside
from dask_tiled.formats.zarr.documents import DOCUMENTS, member_of, node_in, opened, read
from dask_tiled.formats.zarr.folders import Entry, Folder, folder_of, holds_documents
from dask_tiled.formats.zarr.hyperspy import axes_beside
from dask_tiled.formats.zarr.members import Choice, default_in, names_in
from dask_tiled.formats.zarr.zips import MAGIC
from dask_tiled.model.axes import Axis, nav_axes, sig_axes
from dask_tiled.model.colours import is_sound_list
from dask_tiled.model.description import Description
from dask_tiled.model.doubts import Doubt, from_json, uneven_axis
from dask_tiled.model.files import File, is_refusal
from dask_tiled.model.layout import MAX_NDIM, Layout
from dask_tiled.model.mark import MARK, told_instrument, with_missing
from dask_tiled.model.ome_zarr import axes_of, image_in, levels_of

MOST_GROUPS = 8
"""Search at most this many nested groups for an array."""
IMPLICIT = {"zarr_format": 3, "node_type": "group", "attributes": {}}
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
    dataset: str | None = None,
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
    dataset : str, optional
        Path of the array in its group; by default ``data``, or else the first that a pyramid lists,
        or the largest with two axes or more.
    sig_dims : int, optional
        How many of the last axes are signal axes; by default from the export, or 2.
    """
    file = File.only(paths, "zarr")
    folder, first = folder_of(file, DOCUMENTS)
    entry = first or Entry.of(file)
    document = read(folder, entry) if first else dict(IMPLICIT)
    name, image = "", image_in({})
    doubts: tuple[Doubt, ...] = ()
    listed = _results(document)
    if document["node_type"] == "array" and dataset is not None:
        raise DatasetError("the path is an array, not a group", path=entry.path, found=dataset)
    for _ in range(MOST_GROUPS):
        if document["node_type"] == "array":
            break
        chosen = default_in(folder, document, entry.path) if dataset is None else Choice(dataset)
        name, image, doubts = chosen.name, image_in(document), (*doubts, *chosen.doubts)
        inside = member_of(folder, name, entry.path)
        node = node_in(inside)
        if node is None:
            known, problem = names_in(folder, document), "the group has no such array"
            raise DatasetError(problem, path=entry.path, expected=known, found=name)
        folder, (entry, document), dataset = inside, node, None
    else:
        raise DatasetError("groups are nested too deeply", path=entry.path, expected=MOST_GROUPS)
    if not levels_of(image) and "/" in name and folder.above:
        above = node_in(folder.above)
        image, name = image_in(above[1] if above else {}), os.path.basename(name)
    desc = _describe(folder, entry, document, nav_shape, sig_dims, image, name)
    desc = desc.with_doubts(*doubts)
    if name not in listed:
        return desc
    facts = {**desc.metadata["zarr"], "dataset": name, "datasets": listed}
    return replace(desc, metadata={**desc.metadata, "zarr": facts})


def _results(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """List the array of an export and its results, if they are numeric arrays."""
    found = {}
    with suppress(KeyError, TypeError, AttributeError, ValueError, OverflowError):
        members = document["consolidated_metadata"]["metadata"]
        for name in ("data", *document["attributes"][MARK]["results"]):
            shape = tuple(map(int, members[name]["shape"]))
            if 0 < len(shape) < MAX_NDIM and all(shape) and members[name]["data_type"] in NUMBERS:
                found[name] = {"name": name, "shape": shape}
    return found if len(found) > 1 else {}


def _describe(
    folder: Folder,
    entry: Entry,
    document: dict[str, Any],
    nav_shape: tuple[int, ...] | None,
    sig_dims: int | None,
    image: Mapping[str, Any],
    name: str,
) -> Description:
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
    chunks = Chunks(array, document, folder, entry, int(not split), complete="written_by" in mark)
    unread: list[str] = []
    axes, uneven = _axes(array, document, folder, mark, axes_of(image, name), split, unread)
    if of_hyperspy:
        named = zip(of_hyperspy, axes, strict=True)
        axes = tuple(replace(one.axis, name=one.axis.name or old.name) for one, old in named)
        lost = zip(of_hyperspy, axes, strict=True)
        uneven = tuple(uneven_axis(axis.name, one.lost) for one, axis in lost if one.lost)
    nav, sig = array.shape[:split], array.shape[split:]
    layout = Layout(chunks.files, nav or (1,), sig, chunks.table(), chunks.decoders)
    count = math.prod(-(-n // size) for n, size in zip(array.shape, chunks.chunk, strict=True))
    facts = {
        "chunks": array.chunks,
        "shards": array.shards,
        "codecs": [codec["name"] for codec in chunks.codecs],
        "attributes": attributes,
        "missing": mark.get("missing"),
    }
    if isinstance(attributes.get("units"), str):
        facts["units"] = attributes["units"]
    if count > chunks.found:
        facts["unwritten_chunks"] = count - chunks.found
    if unread:
        facts["unread_coordinates"] = unread
    if name in levels_of(image):
        facts["levels"] = levels_of(image)
    told = mark.get("metadata")
    metadata = _plain({**(told if isinstance(told, dict) else {}), "zarr": facts})
    desc = Description.of("zarr", layout.show(nav), metadata, axes, base_shape=chunks.base_shape)
    told = from_json(mark.get("doubts"))
    desc = replace(desc, instrument=told_instrument(mark), doubts=(*desc.doubts, *uneven, *told))
    return with_missing(desc, mark, nav_shape)


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
    folder: Folder,
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
        if one is None and name and not mark:
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
