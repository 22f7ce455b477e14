"""DM3 and DM4 files of Gatan's Digital Micrograph: images, spectra, stacks, maps, and 4D-STEM.

The tags "ImageList" hold images, some of them thumbnails. An image has up to four dimensions, x
first, and contiguous pixels. In scans, the detector axes may be the slowest: they are in spectrum
images, and in 4D-STEM data unless a tag or the units of the axes say otherwise.

Source: C. Boothroyd, "Digital Micrograph file format"; the readers of RosettaSciIO and LiberTEM for
data types and the order of scans; for 64-bit integers, M. Niermann's HDF5 plugin for GMS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.dm.instrument import INSTRUMENT
from dask_tiled.formats.dm.order import Order, find_order, read_axes
from dask_tiled.formats.dm.packed import PACKED, boxes, decoders, stored_bytes
from dask_tiled.formats.dm.tags import TagArray, group, parse_header, read_tags
from dask_tiled.formats.tools.choosing import choose_picture
from dask_tiled.formats.tools.files import SeriesFile, in_sequence
from dask_tiled.formats.tools.frames import FramePart
from dask_tiled.model.axes import nav_axes
from dask_tiled.model.pieces import strides_of

COLOUR = np.dtype({"names": list("RGBA"), "formats": ["u1"] * 4, "offsets": [2, 1, 0, 3]})
DTYPES: dict[int, Any] = {
    **dict(enumerate(["i2", "f4", "c8"], 1)),
    **dict(enumerate(["u1", "i4", COLOUR, "i1", "u2", "u4", "f8", "c16", "?"], 6)),
    **dict(enumerate(["i8", "u8"], 39)),
    23: COLOUR,
    **PACKED,
}


class DmImage(NamedTuple):
    """An image of a file; ``shape`` is in C order, the reverse of the file's dimensions."""

    shape: tuple[int, ...]
    data_type: int
    dtype: np.dtype
    offset: int


def sniff(path: str, head: bytes) -> str | None:
    """Check for version, byte order, and a first tag."""
    try:
        version = parse_header(path, head)["version"]
    except tools.CorruptFileError as error:
        return error.problem
    if path.lower().endswith(".gtg"):
        return "tags of a K2 camera, without images"
    at = {3: 18, 4: 26}[version]
    return None if head[at : at + 1] in (b"\x14", b"\x15") else "no tag after the header"


def describe(
    paths: Sequence[str], *, dataset: int | str | None = None, transposed: bool | None = None
) -> tools.Description:
    """Describe an image of a file, or the images of several files as one stack.

    Parameters
    ----------
    paths : sequence of str
        One file, or several with images of one geometry, in frame order.
    dataset : int or str, optional
        Number or name of the image, not counting thumbnails; by default the first.
    transposed : bool, optional
        Whether the signal axes are the slowest in the file; by default from the tags.
    """
    path = paths[0]
    files = [tools.File.at(p) for p in paths]
    pictures = _list_pictures(read_tags(path))
    names = tuple(str(tags.get("Name", "")) for tags in pictures.values())
    sizes = [_size_of(one) for one in pictures.values()]
    number, doubts = choose_picture(path, names, dataset, sizes)
    key, tags = list(pictures.items())[number]
    further = (read_tags(other, ("ImageList", key, "ImageData")) for other in paths[1:])
    of_each = [tags, *(group(tree, "ImageList", key) for tree in further)]
    members = list(map(_read_picture, paths, of_each))
    order = find_order(path, tags, len(members[0].shape), transposed=transposed)
    alike = [SeriesFile(file, n, 1, _frame_of(members[n], order)) for n, file in enumerate(files)]
    in_sequence(alike)
    layout = _lay_out(files, members, order)
    metadata = {
        "dataset": number,
        "name": names[number],
        "datasets": names,
        "data_type": members[0].data_type,
        "transposed": order.transposed,
        "transposed_from": order.told_by,
        "brightness": group(tags, "ImageData", "Calibrations", "Brightness"),
        "units": _units(group(tags, "ImageData", "Calibrations", "Brightness")),
        "tags": group(tags, "ImageTags"),
    }
    axes = read_axes(tags, len(members[0].shape), order)
    if len(axes) < len(layout.shape):
        axes = nav_axes(1) + axes
    return tools.Description.of("dm", layout, {"dm": metadata}, axes).with_doubts(
        *doubts, *order.doubts
    )


def _units(brightness: dict[str, Any]) -> str:
    """Return the unit of unscaled pixels; empty if they need scaling."""
    stored = brightness.get("Scale") == 1 and brightness.get("Origin") == 0
    units = brightness.get("Units", "")
    return units if stored and isinstance(units, str) else ""


def _list_pictures(tree: dict[str, Any]) -> dict[str, Any]:
    thumbnails = [group(t).get("ImageIndex") for t in group(tree, "Thumbnails").values()]
    pictures = enumerate(group(tree, "ImageList").items())
    return {k: v for i, (k, v) in pictures if i not in thumbnails and group(v, "ImageData")}


def _size_of(tags: Any) -> int:
    """Return the number of pixels of an image; 0 if it is unknown."""
    sizes = group(tags, "ImageData", "Dimensions").values()
    return math.prod(sizes) if sizes and all(type(n) is int for n in sizes) else 0


def _read_picture(path: str, tags: Any) -> DmImage:
    fields = group(tags, "ImageData")
    shape = tuple(group(fields, "Dimensions").values())[::-1]
    kind, data = fields.get("DataType"), fields.get("Data")
    sizes = all(type(n) is int and n > 0 for n in shape)
    if not sizes or not 1 <= len(shape) <= 4 or not isinstance(data, TagArray):
        raise tools.CorruptFileError(
            "not an image", path=path, where="ImageData", expected="1 to 4 Dimensions", found=shape
        )
    if type(kind) is not int or kind not in DTYPES:
        raise tools.DatasetError("unknown pixel type", path=path, where="DataType", found=kind)
    dtype = np.dtype(DTYPES[kind]).newbyteorder(data.dtype[0])
    whole = math.prod(shape) * dtype.itemsize
    needed = stored_bytes(path, kind, shape, dtype) if kind in PACKED else whole
    if needed > data.nbytes:
        problem, where = "fewer pixels than in Dimensions", f"byte {data.offset}"
        told, found = f"{needed} bytes", f"{data.nbytes} bytes"
        raise tools.CorruptFileError(problem, path=path, where=where, expected=told, found=found)
    return DmImage(shape, kind, dtype, data.offset)


def _frame_of(picture: DmImage, order: Order) -> tuple[Any, ...]:
    """Return frame shape and dtype, which must be equal in all images of a stack."""
    shape = order.arrange(picture.shape)
    return shape[len(shape) > order.sig_ndim :], picture.dtype, picture.data_type


def _lay_out(files: Sequence[tools.File], members: Sequence[DmImage], order: Order) -> tools.Layout:
    pieces = []
    frames = 0
    for i, picture in enumerate(members):
        size = picture.dtype.itemsize
        shape = order.arrange(picture.shape)
        strides = order.arrange(strides_of(picture.shape, size))
        split = len(shape) - order.sig_ndim
        nav, sig = shape[:split], shape[split:]
        grid, steps = nav or (1,), strides[:split] or (size * math.prod(sig),)
        parts = [FramePart((0,) * len(sig), sig, 0, strides[split:])]
        if picture.data_type in PACKED:
            parts = boxes(picture.data_type, sig, size)
        for part in parts:
            corner, box = (frames, *[0] * (len(grid) - 1), *part.start), grid + part.shape
            at, lattice = picture.offset + part.offset, steps + part.strides
            pieces.append(tools.Piece(i, corner, box, at, lattice, part.decoder))
        frames += grid[0]
    grid = (frames, *grid[1:])
    kinds = decoders(picture.dtype) if picture.data_type in PACKED else [tools.plain(picture.dtype)]
    return tools.Layout(files, grid, sig, pieces, kinds).show(nav if len(files) == 1 else grid)


FORMAT = tools.Format(
    name="dm",
    extensions=(".dm3", ".dm4"),
    summary="images, spectra, stacks, spectrum images and 4D-STEM of Digital Micrograph",
    nav_shape_from="the tags of the image; files of one geometry are one stack",
    sniff=sniff,
    describe=describe,
    instrument=INSTRUMENT,
    peers=("LiberTEM", "RosettaSciIO", "ncempy"),
    aliases=("digital_micrograph", "digitalmicrograph", "gatan"),
)
