"""DM5, HDF5 of Digital Micrograph: its images, with the axes and tags that DM3 and DM4 have.

Layout facts: files of GMS 3.5 and of Nion Swift. A group ``[n]`` of ``ImageList`` is an image, with
dimensions from the fastest to the slowest; the document shown first names its image by
``ImageSource`` and ``ImageRef``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dask_tiled.formats.dm.descriptor import COLOUR
from dask_tiled.formats.dm.instrument import ROWS
from dask_tiled.formats.dm.order import Order, find_order, read_axes
from dask_tiled.formats.hdf5.attributes import attribute, label, number, plain_attributes
from dask_tiled.formats.hdf5.convention import Calibration, Convention, Meant
from dask_tiled.formats.hdf5.datasets import Found, Picture
from dask_tiled.formats.hdf5.library import names_in
from dask_tiled.formats.hdf5.tree import Tree

DATA = re.compile(r"/ImageList/\[(\d+)\]/ImageData/Data")
NUMBERED = re.compile(r"\[\d+\]")
MOST_IMAGES = 1000
"""Look at most at this many images and thumbnails."""
COLOURS = (8, 23)
"""Data types of colours, which are stored as integers of 4 bytes."""
SETTLE = "use arr.transpose(2, 3, 0, 1) if scan and detector are exchanged"


class Dm5(Convention):
    """DM5 of Digital Micrograph and Nion Swift."""

    name = "Digital Micrograph"
    instrument = tuple((name, f"*ImageTags/{path}", *rest) for name, path, *rest in ROWS)

    def meant(self, tree: Tree, found: Found) -> Meant:
        """List the images, the one of the first document first, without thumbnails."""
        stored = {path: DATA.fullmatch(path) for path in found.pictures}
        images = {int(m[1]): found.pictures[path] for path, m in stored.items() if m}
        if not images:
            return Meant()
        thumbnails = {_number(one, "ImageIndex") for one in _listed(tree, "Thumbnails")}
        listed = {k: one for k, one in sorted(images.items()) if k not in thumbnails} or images
        sources = [_number(one, "ImageSource") for one in _listed(tree, "DocumentObjectList")]
        path = f"ImageSourceList/[{sources[0]}]" if sources else ""
        first = _number(tree.look(tree.root, path), "ImageRef") if path else None
        told_by = "the first image" if first not in listed else "the image of the first document"
        order = sorted(listed, key=lambda k: (k != first, k))
        return Meant(told_by, [_arranged(tree, listed[k]) for k in order], alone=True)

    def calibration(self, tree: Tree, picture: Picture) -> Calibration | None:
        """Read the axes from the calibrations."""
        if not DATA.fullmatch(picture.path):
            return None
        tags = _tags(tree, picture)
        order = _order(tree, picture, tags)
        return Calibration(read_axes(tags, len(picture.shape), order), order.sig_ndim)

    def facts(self, tree: Tree, picture: Picture) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the tags of an image, and the meaning of its values."""
        if not DATA.fullmatch(picture.path):
            return {}
        image = picture.folder.removesuffix("/ImageData")
        return {f"{image}/ImageTags": (), f"{picture.folder}/Calibrations/Brightness": ()}


def _arranged(tree: Tree, picture: Picture) -> Picture:
    """Return an image with its title, and its axes in the order of the array."""
    data = picture.members[0].parent
    order = _order(tree, picture, _tags(tree, picture))
    axes = order.arrange(tuple(range(len(picture.shape))))
    colours = attribute(data, "DataType") in COLOURS and picture.dtype.itemsize == COLOUR.itemsize
    return picture._replace(
        title=label(attribute(data.parent, "Name")).strip("/"),
        shape=order.arrange(picture.shape),
        order=axes if order.transposed else (),
        dtype=COLOUR if colours else picture.dtype,
        doubts=order.doubts,
    )


def _order(tree: Tree, picture: Picture, tags: Mapping[str, Any]) -> Order:
    order = find_order(tree.file.path, tags, picture.members[0].ndim, transposed=None)
    return order._replace(doubts=tuple(replace(one, settle=SETTLE) for one in order.doubts))


def _tags(tree: Tree, picture: Picture) -> dict[str, Any]:
    """Return the tags that tell the axes of an image, as DM3 and DM4 have them."""
    data = picture.members[0].parent
    steps = _listed(tree, f"{data.name}/Calibrations/Dimension")
    image_tags = {
        name: plain_attributes(inner)
        for name in ("Meta Data", "spim")
        if (inner := tree.look(data.parent, f"ImageTags/{name}")) is not None
    }
    return {
        "ImageData": {
            "Dimensions": dict(enumerate(picture.members[0].shape[::-1])),
            "Calibrations": {"Dimension": dict(enumerate(map(plain_attributes, steps)))},
        },
        "ImageTags": image_tags,
    }


def _listed(tree: Tree, path: str) -> list[Any]:
    """Return the groups of a list."""
    from h5py import Group

    listed = tree.look(tree.root, path)
    names = names_in(listed, MOST_IMAGES) if isinstance(listed, Group) else ()
    known = sorted((name for name in names if NUMBERED.fullmatch(name)), key=lambda x: int(x[1:-1]))
    groups = (tree.look(listed, name) for name in known)
    return [one for one in groups if isinstance(one, Group)]


def _number(item: Any, name: str) -> int | None:
    value = None if item is None else attribute(item, name)
    found = number(value, -1.0)
    return int(found) if found >= 0 else None
