"""ESRF data format: frames, each after a header of keys and values in braces.

Layout according to the ESRF's description; type names according to fabio.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from dask_tiled.codecs.packed_files import (
    content_reader,
    is_compressed,
    packed_by,
    read_start,
    unpacker,
)
from dask_tiled.formats import tools
from dask_tiled.formats.tools.byte_order import in_order
from dask_tiled.formats.tools.files import SeriesFile, in_sequence
from dask_tiled.formats.tools.header import Keys, choice, parse_keys, whole
from dask_tiled.formats.tools.text import parse_pairs
from dask_tiled.formats.tools.volume import axis_names
from dask_tiled.model.doubts import Doubt
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
    "byteorder": choice({"LowByteFirst": "<", "HighByteFirst": ">"}, ""),
    "compression": choice(dict.fromkeys(("None", "NoCompression"), ""), ""),
    "edf_binaryfilename": choice({"none": ""}, ""),
    "edf_binarysize": LENGTH,
    "size": LENGTH,
}


class EdfFrame(NamedTuple):
    """The position and header of a frame."""

    file: int
    offset: int
    """In the content of the file, decompressed if needed."""
    header: Mapping[str, str]
    geometry: tuple[tuple[int, ...], np.dtype]
    doubts: tuple[Doubt, ...]


class EdfFrames(NamedTuple):
    """The frames of a file, and the number that it announces."""

    found: list[EdfFrame]
    announced: int


def sniff(path: str, head: bytes) -> str | None:
    """Check for a brace and a key of the first header."""
    head = read_start(path, 4096, head)
    return None if START.match(head) else "does not begin with a brace and a key Dim_1"


def describe(
    paths: Sequence[str], *, byte_order: Literal["little", "big"] | None = None
) -> tools.Description:
    """Describe frames of one shape and dtype, in one file or several, in frame order.

    Several frames may follow one header with a key ``Num_Images``, as in files of GE detectors.

    Parameters
    ----------
    byte_order : {"little", "big"}, optional
        Byte order of the pixels, by default the headers'; little where they do not tell.
    """
    files = [tools.File.at(path) for path in paths]
    of_files = [_frames(k, file, byte_order) for k, file in enumerate(files)]
    frames = [frame for one in of_files for frame in one.found]
    in_sequence([SeriesFile(files[f.file], n, 1, f.geometry) for n, f in enumerate(frames)])
    if not frames:
        raise tools.CorruptFileError("there are no frames", path=files[0].path)
    header, (shape, _) = frames[0].header, frames[0].geometry
    decoders: list[tools.Decoder | tools.BlockDecoder] = []
    pieces = [_piece(frame, n, files[frame.file], decoders) for n, frame in enumerate(frames)]
    grid, announced = (len(frames), *shape[:-2]), sum(one.announced for one in of_files)
    layout = tools.Layout(files, grid, shape[-2:], pieces, decoders)
    axes = tuple(map(tools.Axis, ("frame", *axis_names(len(shape)))))
    base = (1, *shape) if layout.has_blocks else ()
    if len(frames) == announced == 1:
        layout, axes = layout.show(grid[1:]), axes[1:]
    desc = tools.Description.of("edf", layout, {"edf": {"header": header}}, axes, base_shape=base)
    desc = desc.with_doubts(*dict.fromkeys(doubt for frame in frames for doubt in frame.doubts))
    if announced == len(frames):
        return desc
    return desc.with_scan((announced, *grid[1:]), "the key Num_Images")


def _piece(
    frame: EdfFrame,
    number: int,
    file: tools.File,
    decoders: list[tools.Decoder | tools.BlockDecoder],
) -> tools.Piece:
    """Return the piece of a frame, and add its decoder to the list if it is a new one."""
    shape, dtype = frame.geometry
    corner, box = (number, *(0,) * len(shape)), (1, *shape)
    strides = (0, *strides_of(shape, dtype.itemsize))
    packed = is_compressed(file.path)
    decoder: tools.Decoder | tools.BlockDecoder = tools.plain(dtype)
    if packed:
        codec = packed_by(file, frame.offset + math.prod(shape) * dtype.itemsize)
        decoder = unpacker(dtype, frame.offset, codec=codec)
    decoders += [decoder] if decoder not in decoders else []
    at, nbytes = (0, file.size) if packed else (frame.offset, 0)
    return tools.Piece(frame.file, corner, box, at, strides, decoders.index(decoder), nbytes)


def _frames(number: int, file: tools.File, byte_order: Any) -> EdfFrames:
    """Find the frames of a file; a general block holds defaults for the following headers."""
    path, at, found = file.path, 0, list[EdfFrame]()
    general: dict[str, str] = {}
    with content_reader(path) as read:
        while read(512, at).strip(BLANKS):
            own, at = _read_header(path, read, at)
            header = {**general, **own}
            keys = {key.lower(): text for key, text in header.items()}
            if "EDF_DataFormatVersion" in own:
                general = {key: text for key, text in own.items() if not key.startswith("EDF_")}
                at += parse_keys(path, keys, {"edf_binarysize": LENGTH})["edf_binarysize"]
                continue
            geometry, stored, doubts = _geometry(path, keys, at, byte_order)
            found.append(EdfFrame(number, at, header, geometry, doubts))
            at += stored
            if len(found) == 1 and "num_images" in keys and not START.match(read(4096, at)):
                told = parse_keys(path, keys, {"num_images": whole(tools.POSITIVE)})["num_images"]
                packed = is_compressed(path)
                if packed:
                    packed_by(file, at + (told - 1) * stored)
                there = told if packed else 1 + max(0, file.size - at) // stored
                more = [found[0]._replace(offset=at + k * stored) for k in range(there - 1)]
                return EdfFrames(found + more, told)
    return EdfFrames(found, len(found))


def _geometry(
    path: str, keys: Mapping[str, str], at: int, byte_order: Any
) -> tuple[tuple[tuple[int, ...], np.dtype], int, tuple[Doubt, ...]]:
    """Return shape and dtype of a frame at byte ``at``, the number of its bytes, and doubts."""
    values = parse_keys(path, keys, KEYS)
    axes = next(n for n in itertools.count(1) if f"dim_{n + 1}" not in keys)
    sizes = {f"dim_{n}": whole(tools.POSITIVE) for n in range(axes, 0, -1)}
    shape = tuple(parse_keys(path, keys, sizes).values())
    told, silent = values["byteorder"] or None, "a header has no key ByteOrder"
    dtype, doubts = in_order(np.dtype(values["datatype"]), told, byte_order, path, silent)
    nbytes = math.prod(shape) * dtype.itemsize
    stored = values["edf_binarysize"] or values["size"] or nbytes
    if stored < nbytes:
        where = f"the key 'Size' of the header before byte {at}"
        raise tools.CorruptFileError(
            "the frame is too small", path=path, where=where, expected=nbytes, found=stored
        )
    return (shape, dtype), stored, doubts


def _read_header(
    path: str, read: Callable[[int, int], bytes], at: int
) -> tuple[dict[str, str], int]:
    """Read a header in braces; return it and the offset behind it."""
    for nbytes in (4096, MAX_HEADER):
        head = read(nbytes, at)
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
    summary="ESRF data format: 8 to 64 bits, in one file or several, gzip; GE detectors (.ge5)",
    nav_shape_from="one axis of all frames",
    sniff=sniff,
    describe=describe,
    peers=("fabio",),
    aliases=("esrf",),
)
