"""ESRF data format: frames, each after a header of keys and values in braces.

Layout according to the ESRF's description; type names according to fabio.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.files import Member, in_sequence
from dask_tiled.formats.tools.header import Keys, choice, parse_keys, whole
from dask_tiled.formats.tools.text import parse_pairs
from dask_tiled.formats.tools.volume import axis_names
from dask_tiled.model.pieces import strides_of

MAX_HEADER = 1 << 20
START = re.compile(rb"\s*\{[^}]*?\b(Dim_1|EDF_DataFormatVersion)\s*=", re.IGNORECASE)
END = re.compile(rb"\}\r?\n")
BLANKS = b" \t\r\n\0"
TYPES = {"Byte": "i1", "Short": "i2", "Integer": "i4", "Long": "i4"}
TYPES |= {"8": "i1", "16": "i2", "32": "i4", "64": "i8"}
TYPES = {f"Signed{name}": dtype for name, dtype in TYPES.items()}
TYPES |= {f"Uns{name[1:]}": f"u{dtype[1]}" for name, dtype in TYPES.items()}
TYPES |= dict.fromkeys(("Float", "FloatValue", "Float32", "FloatIEEE32"), "f4")
TYPES |= dict.fromkeys(("Double", "DoubleValue", "FloatIEEE64", "DoubleIEEE64"), "f8")
TYPES["UnsignedShortInteger"] = "u2"
LENGTH = whole(range(1 << 62), 0)
KEYS: Keys = {
    "datatype": choice(TYPES),
    "byteorder": choice({"LowByteFirst": "<", "HighByteFirst": ">"}, "<"),
    "compression": choice(dict.fromkeys(("None", "NoCompression"), ""), ""),
    "edf_binaryfilename": choice({"none": ""}, ""),
    "edf_binarysize": LENGTH,
    "size": LENGTH,
}


class Frame(NamedTuple):
    """The position and header of a frame."""

    file: int
    offset: int
    header: Mapping[str, str]
    geometry: tuple[tuple[int, ...], np.dtype]


def sniff(path: str, head: bytes) -> str | None:
    """Check for a brace and a key of the first header."""
    return None if START.match(head) else "does not begin with a brace and a key Dim_1"


def describe(paths: Sequence[str]) -> tools.Description:
    """Describe frames of one shape and dtype, in one file or several, in frame order."""
    files = [tools.File.at(path) for path in paths]
    frames = [frame for k, file in enumerate(files) for frame in _frames(k, file.path)]
    in_sequence([Member(files[f.file], n, 1, f.geometry) for n, f in enumerate(frames)])
    if not frames:
        raise tools.CorruptFileError("there are no frames", path=files[0].path)
    _, _, header, (shape, dtype) = frames[0]
    strides, corner = strides_of(shape, dtype.itemsize), (0,) * len(shape)
    pieces = [
        tools.Piece(frame.file, (n, *corner), (1, *shape), frame.offset, (0, *strides))
        for n, frame in enumerate(frames)
    ]
    grid = (len(frames), *shape[:-2])
    layout = tools.Layout(files, grid, shape[-2:], pieces, [tools.plain(dtype)])
    axes = tuple(map(tools.Axis, ("frame", *axis_names(len(shape)))))
    if len(frames) == 1:
        layout, axes = layout.show(grid[1:]), axes[1:]
    return tools.Description.of("edf", layout, {"edf": {"header": header}}, axes)


def _frames(file: int, path: str) -> Iterator[Frame]:
    """Yield the frames of a file; a general block holds defaults for the following headers."""
    at = 0
    general: dict[str, str] = {}
    while tools.read_head(path, 512, at).strip(BLANKS):
        own, at = _read_header(path, at)
        header = {**general, **own}
        keys = {key.lower(): text for key, text in header.items()}
        if "EDF_DataFormatVersion" in own:
            general = {key: text for key, text in own.items() if not key.startswith("EDF_")}
            at += parse_keys(path, keys, {"edf_binarysize": LENGTH})["edf_binarysize"]
            continue
        values = parse_keys(path, keys, KEYS)
        axes = next(n for n in itertools.count(1) if f"dim_{n + 1}" not in keys)
        sizes = {f"dim_{n}": whole(tools.POSITIVE) for n in range(axes, 0, -1)}
        shape = tuple(parse_keys(path, keys, sizes).values())
        dtype = np.dtype(values["datatype"]).newbyteorder(values["byteorder"])
        nbytes = math.prod(shape) * dtype.itemsize
        stored = values["edf_binarysize"] or values["size"] or nbytes
        if stored < nbytes:
            where = f"the key 'Size' of the header before byte {at}"
            raise tools.CorruptFileError(
                "the frame is too small", path=path, where=where, expected=nbytes, found=stored
            )
        yield Frame(file, at, header, (shape, dtype))
        at += stored


def _read_header(path: str, at: int) -> tuple[dict[str, str], int]:
    """Read a header in braces; return it and the offset behind it."""
    for nbytes in (4096, MAX_HEADER):
        head = tools.read_head(path, nbytes, at)
        end = END.search(head)
        if end is not None and head.lstrip(BLANKS).startswith(b"{"):
            text = head[: end.start()].decode("latin1").partition("{")[2]
            pairs = parse_pairs(text.replace(";", "\n"), "=")
            return {key: tools.printable(value) for key, value in pairs.items()}, at + end.end()
    begun = head.lstrip(BLANKS).startswith(b"{") and len(head) < MAX_HEADER
    kind = tools.TruncatedFileError if begun else tools.CorruptFileError
    raise kind("no header in braces", path=path, where=f"byte {at}", found=head[:20])


FORMAT = tools.Format(
    name="edf",
    extensions=(".edf",),
    summary="ESRF data format: integers of 8 to 64 bits and floats, in one file or several",
    nav_shape_from="one axis of all frames",
    sniff=sniff,
    describe=describe,
    peers=("fabio",),
    aliases=("esrf",),
)
