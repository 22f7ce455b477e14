"""DM3 and DM4 files of Gatan's Digital Micrograph: images, spectra, stacks, maps, and 4D-STEM.

The tags "ImageList" hold pictures, some of them thumbnails. A picture has up to four dimensions,
x first, and its pixels lie one after the other. Of a scan, the detector's axes may be the slowest
ones in the file: that is so in spectrum images, and in 4D-STEM data unless a tag says otherwise.

Source: C. Boothroyd, "Digital Micrograph file format"; the readers of RosettaSciIO and LiberTEM for
data types and the order of scans; for 64-bit integers, M. Niermann's HDF5 plugin for GMS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dask_tiled.formats import tools
from dask_tiled.formats.dm.packed import PACKED, boxes, decoders
from dask_tiled.formats.dm.pictures import Order, Picture, find_order, read_axes, read_picture
from dask_tiled.formats.tools.dm_tags import group, parse_header, read_tags
from dask_tiled.model.indexing import Selection


def sniff(path: str, head: bytes) -> str | None:
    """Look for a version, a byte order, and a first tag."""
    try:
        version = parse_header(path, head)["version"]
    except tools.CorruptFileError as error:
        return error.problem
    if path.lower().endswith(".gtg"):
        return "the tags of a K2 camera, without pictures"
    at = {3: 18, 4: 26}[version]
    return None if head[at : at + 1] in (b"\x14", b"\x15") else "no tag follows the header"


def describe(
    paths: Sequence[str], *, dataset: int | str | None = None, transposed: bool | None = None
) -> tools.Description:
    """Describe a picture in a file, or the pictures of several files as one stack.

    Parameters
    ----------
    paths : sequence of str
        One file, or several with pictures of one geometry, in the order of their frames.
    dataset : int or str, optional
        Number or name of the picture among those that are no thumbnails; by default the first.
    transposed : bool, optional
        Whether the signal axes are the slowest ones in the file; by default what the tags say.
    """
    path = paths[0]
    files = [tools.File.at(p) for p in paths]
    tree = read_tags(path)
    pictures = _list_pictures(tree)
    names = tuple(str(tags.get("Name", "")) for tags in pictures.values())
    number = tools.choose_dataset(path, names, dataset)
    key, tags = list(pictures.items())[number]
    members = [read_picture(path, tags)]
    order = find_order(path, tags, len(members[0].shape), transposed=transposed)
    for other in paths[1:]:
        further = read_tags(other, ("ImageList", key, "ImageData"))
        members.append(read_picture(other, group(further, "ImageList", key)))
        _check_geometry(other, members[-1], members[0], order)
    layout = _lay_out(files, members, order)
    metadata = {
        "dataset": number,
        "name": names[number],
        "datasets": names,
        "data_type": members[0].data_type,
        "transposed": order.transposed,
        "transposed_from": order.told_by,
        "brightness": group(tags, "ImageData", "Calibrations", "Brightness"),
        "tags": group(tags, "ImageTags"),
    }
    axes = read_axes(tags, len(members[0].shape), order)
    if len(axes) < len(layout.shape):
        axes = tools.nav_axes(1) + axes
    return tools.Description.of("dm", layout, {"dm": metadata}, axes)


def _list_pictures(tree: dict[str, Any]) -> dict[str, Any]:
    found = group(tree, "Thumbnails").values()
    thumbnails = [group(thumbnail).get("ImageIndex") for thumbnail in found]
    pictures = enumerate(group(tree, "ImageList").items())
    return {k: v for i, (k, v) in pictures if i not in thumbnails and group(v, "ImageData")}


def _check_geometry(path: str, found: Picture, first: Picture, order: Order) -> None:
    shapes = [order.arrange(picture.shape) for picture in (found, first)]
    # Files of several frames may differ in how many these are.
    parts = [shape[1:] if len(shape) > order.sig_ndim else shape for shape in shapes]
    if parts[0] != parts[1] or found.dtype != first.dtype or found.data_type != first.data_type:
        raise tools.CorruptFileError(
            "the frames differ from those of the first file",
            path=path,
            expected=f"{shapes[1]}, {first.dtype}, type {first.data_type}",
            found=f"{shapes[0]}, {found.dtype}, type {found.data_type}",
        )


def _lay_out(files: Sequence[tools.File], members: Sequence[Picture], order: Order) -> tools.Layout:
    pieces = []
    frames = 0
    for i, picture in enumerate(members):
        size = picture.dtype.itemsize
        stored = tools.strides_of(picture.shape, size)
        shape, strides = order.arrange(picture.shape), order.arrange(stored)
        split = len(shape) - order.sig_ndim
        nav, sig = shape[:split], shape[split:]
        steps = strides[:split] or (size * math.prod(sig),)
        grid = nav or (1,)
        parts = [tools.Part((0,) * len(sig), sig, 0, strides[split:], 0)]
        if picture.data_type in PACKED:
            parts = boxes(picture.data_type, sig, size)
        pieces += [
            tools.Piece(
                i,
                (frames, *(0,) * (len(grid) - 1), *part.start),
                (*grid, *part.shape),
                picture.offset + part.offset,
                (*steps, *part.strides),
                part.decoder,
            )
            for part in parts
        ]
        frames += grid[0]
    grid = (frames, *grid[1:])
    kinds = decoders(picture.dtype) if picture.data_type in PACKED else [tools.plain(picture.dtype)]
    shown = Selection(nav if len(files) == 1 else grid, math.prod(grid))
    return tools.Layout(files, grid, sig, pieces, kinds, shown)


FORMAT = tools.Format(
    name="dm",
    extensions=(".dm3", ".dm4"),
    summary="images, spectra, stacks, spectrum images and 4D-STEM of Digital Micrograph",
    nav_shape_from="the tags of the picture; files of one geometry are one stack",
    sniff=sniff,
    describe=describe,
    peers=("LiberTEM", "RosettaSciIO", "ncempy"),
)
