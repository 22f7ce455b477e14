"""FreeSurfer volumes: ``.mgh``, and ``.mgz``, which is compressed by gzip.

Axes are in C order, (t, z, y, x), x fastest. The affine in the metadata gives the orientation.
Layout according to FreeSurfer's description of the format, and nibabel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_tiled.codecs.packed_files import is_compressed, read_start
from dask_tiled.formats import tools
from dask_tiled.formats.tools.volume import anatomical

FIELDS: tools.Fields = {
    "version": (0, "i4"), "width": (4, "i4"), "height": (8, "i4"), "depth": (12, "i4"),
    "nframes": (16, "i4"), "type": (20, "i4"), "dof": (24, "i4"), "goodRASFlag": (28, "i2"),
    "delta": (30, "3f4"), "Mdc": (42, "9f4"), "Pxyz_c": (78, "3f4"),
}  # fmt: skip
SIZES = ("width", "height", "depth", "nframes")
DTYPES = {0: "u1", 1: ">i4", 3: ">f4", 4: ">i2", 10: ">u2"}
ALLOWED = {"version": (1,), **dict.fromkeys(SIZES, tools.POSITIVE), "type": tuple(DTYPES)}
PIXELS = 284
BEHIND: tools.Fields = {"TR": (0, "f4")}
"""The repetition time follows the pixels; for .mgz files it is not read, as all pixels would
have to be decompressed."""


def sniff(path: str, head: bytes) -> str | None:
    """Check for a plausible version, sizes and type; there is no magic number."""
    head = read_start(path, PIXELS, head)
    if len(head) < PIXELS:
        return "shorter than an MGH header"
    header = tools.parse_fields(head, FIELDS, ">")
    name = tools.wrong_field(header, ALLOWED)
    return None if name is None else f"no MGH header: {name} is {header[name]}"


def describe(paths: Sequence[str]) -> tools.Description:
    """Describe a volume in one file."""
    file = tools.File.only(paths, "mgh")
    head = read_start(file.path, PIXELS)
    problem = sniff(file.path, head)
    if problem is not None:
        raise tools.CorruptFileError("not an MGH file", path=file.path, found=problem)
    header = tools.parse_fields(head, FIELDS, ">")
    dtype = np.dtype(DTYPES[header["type"]])
    shape = tuple(header[name] for name in reversed(SIZES))
    end = PIXELS + math.prod(shape) * dtype.itemsize
    if not is_compressed(file.path) and end + 4 <= file.size:
        header |= tools.read_fields(file.path, BEHIND, ">", end)
    steps = *(header["delta"] if header["goodRASFlag"] > 0 else (0.0,) * 3), header.get("TR", 0.0)
    axes = tuple(map(tools.Axis.calibrated, "xyzt", ("mm", "mm", "mm", "ms"), steps))[::-1]
    first = 1 if header["nframes"] == 1 else 0
    facts = {"header": header, **_affine(header)}
    shape, axes = shape[first:], axes[first:]
    return tools.describe_volume("mgh", file, shape, dtype, axes, facts, skip=PIXELS)


def _affine(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the affine from (x, y, z) to millimetres right, anterior and superior, if known."""
    matrix = np.array(header["Mdc"]).reshape(3, 3).T * header["delta"]
    corner = header["Pxyz_c"] - matrix @ [header[name] / 2 for name in SIZES[:3]]
    affine = np.vstack([np.column_stack([matrix, corner]), (0, 0, 0, 1)])
    told = header["goodRASFlag"] > 0 and np.isfinite(affine).all()
    if not told:
        return {}
    directions = anatomical("xyz", matrix.T)
    return {"affine": tuple(map(tuple, affine.tolist())), "directions": directions}


FORMAT = tools.Format(
    name="mgh",
    extensions=(".mgh", ".mgz"),
    summary="FreeSurfer volumes, compressed or not; all types of pixels",
    nav_shape_from="the header: all axes before the last two",
    sniff=sniff,
    describe=describe,
    peers=("nibabel",),
    aliases=("freesurfer",),
)
