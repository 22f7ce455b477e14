"""MetaImage volumes of ITK: a text header, followed by the pixels or naming their files.

Axes are in C order, (z, y, x), x fastest. Channels are the last axis. Layout according to the
documentation and source of MetaIO.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dask_tiled.files.file import read_head
from dask_tiled.formats import tools
from dask_tiled.formats.tools.byte_order import in_order
from dask_tiled.formats.tools.header import (
    NUMBER,
    TEXT,
    Keys,
    check_lengths,
    choice,
    parse_keys,
    several,
    whole,
)
from dask_tiled.formats.tools.text import parse_pairs, read_text
from dask_tiled.formats.tools.volume import axis_along, pixel_files

GZIP = b"\x1f\x8b\x08"
END = rb"(?m)^ElementDataFile[ \t]*=.*(\n|\Z)"
MARKS = (re.compile(rb"^NDims\s*=", re.MULTILINE), re.compile(rb"^DimSize\s*=", re.MULTILINE))
NAMES = ("x", "y", "z", "t", *(f"dim_{k}" for k in range(4, 10)))
TYPES = {"CHAR": "i1", "SHORT": "i2", "INT": "i4", "LONG": "i4", "LONG_LONG": "i8"}
TYPES |= {f"U{name}": f"u{dtype[1]}" for name, dtype in TYPES.items()}
TYPES |= {"FLOAT": "f4", "DOUBLE": "f8"}
TYPES = {f"MET_{name}": dtype for name, dtype in TYPES.items()}
TYPES |= {f"{name}_ARRAY": dtype for name, dtype in TYPES.items()}
TRUE = dict.fromkeys(("True", "T", "1"), True)
FALSE = dict.fromkeys(("False", "F", "0"), False)
FLAG = choice({**TRUE, **FALSE}, default=False)
MSB = choice({**dict.fromkeys(TRUE, ">"), **dict.fromkeys(FALSE, "<")}, "")
"""MetaIO takes the order of the machine where a header does not tell."""
UNITS = {"mm": "mm", "um": "µm", "cm": "cm", "?": ""}
OTHER_NAMES = {
    "ElementByteOrderMSB": "BinaryDataByteOrderMSB",
    "Position": "Offset",
    "Origin": "Offset",
    "Rotation": "TransformMatrix",
    "Orientation": "TransformMatrix",
}
KEYS: Keys = {
    "ObjectType": choice({"Image": "Image"}, "Image"), "NDims": whole(range(1, 11)),
    "DimSize": several(whole(tools.POSITIVE)), "ElementType": choice(TYPES),
    "ElementNumberOfChannels": whole(range(1, 1 << 31), 1),
    "BinaryData": choice(TRUE, default=True), "BinaryDataByteOrderMSB": MSB,
    "CompressedData": FLAG, "HeaderSize": whole(range(-1, 1 << 62), 0),
    "ElementSpacing": several(NUMBER, ()), "ElementSize": several(NUMBER, ()),
    "Offset": several(NUMBER, ()), "TransformMatrix": several(NUMBER, ()),
    "DistanceUnits": choice(UNITS, ""), "ElementDataFile": TEXT,
}  # fmt: skip


def sniff(path: str, head: bytes) -> str | None:
    """Check for the lines with the sizes, in a file that begins like text."""
    known = head[:1].isalpha() and all(mark.search(head) for mark in MARKS)
    return None if known else "no lines NDims and DimSize"


def describe(
    paths: Sequence[str], *, byte_order: Literal["little", "big"] | None = None
) -> tools.Description:
    """Describe a volume, given its header file.

    Parameters
    ----------
    byte_order : {"little", "big"}, optional
        Byte order of the pixels, by default the header's; little where it does not tell.
    """
    file = tools.File.only(paths, "metaimage")
    text, end = read_text(file.path, END)
    pairs = parse_pairs(text, "=")
    known = {OTHER_NAMES.get(key, key): value for key, value in pairs.items()}
    values = parse_keys(file.path, known, KEYS)
    ndim, channels, skip = values["NDims"], values["ElementNumberOfChannels"], values["HeaderSize"]
    lengths = dict.fromkeys(("DimSize", "ElementSpacing", "ElementSize", "Offset"), ndim)
    lengths["TransformMatrix"] = ndim**2
    check_lengths(file.path, values, lengths)
    name, packed = values["ElementDataFile"], values["CompressedData"]
    parts = pixel_files(file, "ElementDataFile", name, end)
    parts = [(part, skip if skip > 0 else start) for part, start in parts]
    stored, told = np.dtype(values["ElementType"]), values["BinaryDataByteOrderMSB"] or None
    silent = "the header has no key BinaryDataByteOrderMSB or ElementByteOrderMSB"
    dtype, doubts = in_order(stored, told, byte_order, file.path, silent)
    shape, axes, sig_dims, skip = values["DimSize"][::-1], _axes(values), 2, min(skip, 0)
    if channels > 1:
        shape, axes, sig_dims = (*shape, channels), [*axes, tools.Axis("component")], 3
    packed = packed or _is_gzip(parts, math.prod(shape) * dtype.itemsize)
    facts = {"header": {tools.printable(k): tools.printable(v) for k, v in pairs.items()}}
    options = {"sig_dims": sig_dims, "packed": packed, "exact": True, "skip": skip}
    desc = tools.describe_volume("metaimage", parts, shape, dtype, axes, facts, **options)
    return desc.with_doubts(*doubts)


def _is_gzip(parts: Sequence[tuple[tools.File, int]], nbytes: int) -> bool:
    """Return whether pixels are packed without a word: not as many bytes, which begin like gzip."""
    stored = sum(file.size - at for file, at in parts)
    return stored != nbytes and all(
        read_head(file.path, len(GZIP), at) == GZIP for file, at in parts
    )


def _axes(values: dict[str, Any]) -> list[tools.Axis]:
    """Calibrate the axes; rows of the matrix are their directions, x first."""
    ndim, units, origin = values["NDims"], values["DistanceUnits"], values["Offset"]
    matrix = np.reshape(values["TransformMatrix"] or np.eye(ndim), (ndim, ndim))
    spacing = values["ElementSpacing"] or values["ElementSize"] or np.ones(ndim)
    steps = np.reshape(spacing, (ndim, 1)) * matrix
    axes = map(axis_along, NAMES, [units] * ndim, steps.tolist(), [origin] * ndim)
    return [*axes][::-1]


FORMAT = tools.Format(
    name="metaimage",
    extensions=(".mha", ".mhd"),
    summary="all types in both byte orders, channels, zlib, one file or many",
    nav_shape_from="the header: all axes before the last two",
    sniff=sniff,
    describe=describe,
    aliases=("itk",),
)
