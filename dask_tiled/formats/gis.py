"""GIS volumes of AIMS and BrainVISA: pixels in ``.ima``, what they are in ``.dim``.

Axes are shown in C order, (t, z, y, x): the bytes as they lie, x fastest.
Layout facts: the GIS reader of ITK, CGAL's ImageIO and soma-io (AIMS, BrainVISA), which agree.
"""

from __future__ import annotations

import ast
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError, printable
from dask_tiled.formats.format import Format
from dask_tiled.formats.tools.headers import Order
from dask_tiled.formats.tools.volumes import check_bytes, check_shape, volume_layout
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.model.description import Axis, Description
from dask_tiled.model.files import File, read_head
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece

MOST_DIM = 1 << 14
MOST_MINF = 1 << 18
"""So many bytes are read of the text files."""
MOST_LENGTH = 1 << 62
BEGINNING = re.compile(rb"\s*\d{1,19}([ \t]+\d{1,19}){0,7}\s+-[a-z]")
NUMBERS = {
    "S8": "i1",
    "U8": "u1",
    "S16": "i2",
    "U16": "u2",
    "S32": "i4",
    "U32": "u4",
    "S64": "i8",
    "U64": "u8",
    "LONG": "i8",
    "ULONG": "u8",
    "FLOAT": "f4",
    "DOUBLE": "f8",
    "CFLOAT": "c8",
    "CDOUBLE": "c16",
}
COLOURS = {"RGB": 3, "RGBA": 4, "HSV": 3}
POINTS = {"POINT2DF": 2, "POINT3DF": 3}
C_NAMES = {"CHAR": "i1", "UCHAR": "u1", "SHORT": "i2", "USHORT": "u2", "INT": "i4", "UINT": "u4"}
"""What vectors may call the types of their components, besides the names of above."""
VECTOR = re.compile(r"VECTOR_OF_([1-9]\d{0,5})_(\w+)")
BYTE_ORDERS: dict[str, Order] = {"DCBA": "<", "ABCD": ">"}
MODES = ("binar", "ascii")
SIZES = ("dx", "dy", "dz", "dt", "dx4", "dx5", "dx6", "dx7")
"""Keys of the voxel sizes, in the order of the axes."""
NAMES = ("x", "y", "z", "t", "dim_4", "dim_5", "dim_6", "dim_7")


class Header(NamedTuple):
    """What a ``.dim`` file says.

    Attributes
    ----------
    shape : tuple of int
        Lengths of the axes in the order of the file: x first.
    dtype : numpy.dtype
        Type of a number in the file.
    parts : int
        Numbers of a pixel, where they are an axis of their own; otherwise 0.
    part_name : str
        Name of that axis.
    ascii : bool
        Whether the numbers are written as text.
    axes : tuple of Axis
        In C order.
    facts : dict
        For the metadata.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    parts: int
    part_name: str
    ascii: bool
    axes: tuple[Axis, ...]
    facts: dict[str, Any]


def read_dim(path: str) -> Header:
    """Read a ``.dim`` file. What it does not know is left in the metadata.

    Raises
    ------
    CorruptFileError
        It is none, or says something that cannot be.
    DatasetError
        The pixels are of a type that is not read.
    """
    text = read_head(path, MOST_DIM)
    if not BEGINNING.match(text):
        raise CorruptFileError(
            "no GIS header",
            path=path,
            where="byte 0",
            expected="1 to 8 sizes, and keys such as -type",
            found=text[:40],
        )
    first, _, rest = text.decode("latin1").lstrip().partition("-")
    sizes = tuple(map(int, first.split()))
    fields = _fields(path, "-" + rest)
    for size in sizes:
        if not 0 < size < MOST_LENGTH:
            raise CorruptFileError(
                "no size of a volume", path=path, expected="1 or more", found=size
            )
    order = _one_of(path, fields, "bo", BYTE_ORDERS)
    mode = _one_of(path, fields, "om", MODES)
    stored, parts, part_name = _type(path, fields)
    native: Order = "<" if sys.byteorder == "little" else ">"
    dtype = np.dtype(stored).newbyteorder(BYTE_ORDERS.get(order or "", native))
    scales = [float(fields.get(key, 1.0)) for key in SIZES]
    axes = tuple(map(_axis, NAMES, scales))[: len(sizes)]
    facts = {"sizes": sizes, "header": fields}
    facts["byte_order_from"] = "the key -bo" if order else "this machine"
    return Header(sizes, dtype, parts, part_name, mode == "ascii", axes[::-1], facts)


def _axis(name: str, scale: float) -> Axis:
    return Axis.calibrated(name, "mm" if name in {"x", "y", "z"} else "", scale)


def _fields(path: str, text: str) -> dict[str, Any]:
    """Read keys and values. What is no key is left out; of unknown keys the line is kept."""
    fields: dict[str, Any] = {}
    for line in text.splitlines():
        tokens = iter(re.finditer(r"\S+", line))
        for token in tokens:
            key = token[0][1:]
            if token[0] == "-" + key and key in {"type", "bo", "om", *SIZES}:
                value = next(tokens, None)
                fields[key] = _value(path, key, value[0] if value else "")
            elif re.fullmatch(r"-[A-Za-z_]\w*", token[0]):
                fields[key] = printable(line[token.end() :].strip())
                break
    return fields


def _value(path: str, key: str, text: str) -> str | float:
    if key not in SIZES:
        return printable(text)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < abs(value) < float("inf"):
        raise CorruptFileError(
            "no voxel size", path=path, where=f"the key -{key}", expected="a number", found=text
        )
    return value


def _one_of(path: str, fields: dict[str, Any], key: str, known: Any) -> str | None:
    value = fields.get(key)
    if value is not None and value not in known:
        raise CorruptFileError(
            "a value that has no meaning",
            path=path,
            where=f"the key -{key}",
            expected=" or ".join(known),
            found=value,
        )
    return value


def _type(path: str, fields: dict[str, Any]) -> tuple[str, int, str]:
    """Give the type of numbers, how many make a pixel, and what their axis is called."""
    name = fields.get("type", "")
    if name in NUMBERS:
        return NUMBERS[name], 0, ""
    if name in COLOURS:
        return "u1", COLOURS[name], "s"
    if name in POINTS:
        return "f4", POINTS[name], "component"
    vector = VECTOR.fullmatch(name)
    if vector:
        stored = (NUMBERS | C_NAMES).get(vector[2])
        if stored:
            return stored, int(vector[1]), "component"
    kind = DatasetError if name else CorruptFileError
    raise kind(
        "pixels of this type are not read" if name else "the type of the pixels is missing",
        path=path,
        where="the key -type",
        expected=", ".join((*NUMBERS, *COLOURS, *POINTS, "VECTOR_OF_n_type")),
        found=name or "no such key",
    )


def read_minf(path: str) -> dict[str, Any]:
    """Read the attributes of a ``.minf`` file, as plain values; what is wrong is one of them."""
    try:
        text = read_head(path, MOST_MINF + 1)
        if len(text) > MOST_MINF:
            raise ValueError(f"longer than {MOST_MINF} bytes")  # noqa: TRY301
        _, found, value = text.decode("utf8").partition("=")
        attributes = ast.literal_eval(value.strip()) if found else None
        if not isinstance(attributes, dict):
            raise ValueError("no 'attributes = {...}'")  # noqa: TRY301, TRY004
        return _plain(attributes)
    except (OSError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        return {"not_read": printable(str(error)[:200])}


def _plain(value: Any) -> Any:
    """Make lists tuples, and text of what is neither a number nor text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    finite = not isinstance(value, float) or abs(value) < float("inf")
    return value if isinstance(value, (str, int, float)) and finite else str(value)


SUFFIXES = (".ima", ".dim")
NUMBER = re.compile(rb"[^\s(),;]+")
"""Complex numbers may stand in brackets."""


def sniff(path: str, head: bytes) -> str | None:
    """Look for the sizes and keys of a header, in the file or in the ``.dim`` file beside it."""
    base, suffix = _split(path)
    if BEGINNING.match(head) and b"-type" in head:
        return None
    if suffix and suffix != ".dim" and _is_header(base + ".dim"):
        return None
    return "is no header with sizes and -type, and has none beside it"


def describe(paths: Sequence[str]) -> Description:
    """Describe a volume.

    Parameters
    ----------
    paths : sequence of str
        One file: ``.ima``, ``.dim``, ``.ima.minf``, or what their names have in common.
    """
    named = File.only(paths, "gis").path
    base, suffix = _split(named)
    header_path = base + ".dim" if suffix else named
    for path, what in ((header_path, "header"), (base + ".ima", "pixels")):
        if not os.path.isfile(path):
            raise TruncatedFileError(
                f"the file of the {what} is missing",
                path=named,
                expected=os.path.basename(path),
            )
    header = read_dim(header_path)
    file = File.at(base + ".ima")
    shape = tuple(reversed(header.shape))
    nav, sig, axes = shape[:-2], shape[-2:], header.axes
    if header.parts:
        sig, axes = (*sig, header.parts), (*axes, Axis(header.part_name))
    facts: dict[str, Any] = dict(header.facts)
    minf = base + ".ima.minf"
    if os.path.isfile(minf):
        facts["minf"] = read_minf(minf)
    if header.ascii:
        layout = _text_layout(file, nav, sig, header.dtype)
        return Description.of("gis", layout, {"gis": facts}, axes, base_shape=(nav or (1,)) + sig)
    dtype = _settled(file, header, nav + sig)
    layout = volume_layout(file, nav, sig, dtype)
    return Description.of("gis", layout, {"gis": facts | {"dtype": str(dtype)}}, axes)


def _settled(file: File, header: Header, shape: tuple[int, ...]) -> np.dtype:
    """Give the type of the pixels: longs have the length of those of the machine that wrote them.

    Raises
    ------
    TruncatedFileError
        The file is too short.
    CorruptFileError
        It is too long: there are no other bytes in it, so that the header tells something else.
    """
    check_shape(file, shape)
    dtype, count = header.dtype, math.prod(shape)
    if header.facts["header"]["type"].endswith("LONG") and file.size == 4 * count:
        dtype = np.dtype(f"{dtype.kind}4").newbyteorder(dtype.byteorder)
    check_bytes(file, shape, dtype, exact=True)
    return dtype


def _text_layout(file: File, nav: tuple[int, ...], sig: tuple[int, ...], dtype: np.dtype) -> Layout:
    """Lay out numbers that are written as text: one block, as no number says where it lies."""
    numbers = math.prod(nav + sig) * (2 if dtype.kind == "c" else 1)
    check_shape(file, nav + sig)
    if 2 * numbers - 1 > file.size:
        raise TruncatedFileError(
            "the file is too short for so many numbers",
            path=file.path,
            expected=f"{2 * numbers - 1} bytes, at least, for a volume of shape {nav + sig}",
            found=f"{file.size} bytes",
        )
    grid = nav or (1,)
    native = dtype.newbyteorder("=")
    options = (("dtype", native.str),)
    decoder = BlockDecoder("dask_tiled.formats.gis:decode", native, options)
    zeros = (0,) * len(grid + sig)
    piece = Piece(0, zeros, grid + sig, 0, zeros, nbytes=file.size)
    layout = Layout([file], grid, sig, [piece], [decoder])
    return layout.show(nav)


def decode(block: Block, fetch: Fetch, *, dtype: str) -> npt.NDArray[Any]:
    """Read numbers that are written as text, separated by any blanks; what follows is left out.

    Where the last number has lost digits, nothing tells.

    Raises
    ------
    TruncatedFileError
        There are fewer than the header promises.
    CorruptFileError
        Something else is written there, or a number that the type cannot hold.
    """
    kind = np.dtype(dtype)
    text = fetch(block.file, block.offset, block.offset + block.nbytes).data
    number: Callable[[bytes], Any] = int if kind.kind in "iu" else float
    part = np.dtype(f"f{kind.itemsize // 2}") if kind.kind == "c" else kind
    count = math.prod(block.shape) * kind.itemsize // part.itemsize
    numbers = (number(match[0]) for match in NUMBER.finditer(text))
    try:
        with np.errstate(over="ignore"):
            values = np.fromiter(islice(numbers, count), part)
    except (ValueError, OverflowError) as error:
        raise CorruptFileError(
            "something else than numbers of the type of the pixels",
            path=block.file.path,
            expected=f"{count} numbers of type {part}",
            found=str(error)[:80],
        ) from error
    if len(values) < count:
        raise TruncatedFileError(
            "the text ends too early",
            path=block.file.path,
            expected=f"{count} numbers",
            found=f"{len(values)} numbers",
        )
    return values.view(kind).reshape(block.shape)


def _split(path: str) -> tuple[str, str]:
    """Split off the suffixes of the files of a volume: nothing where it has another name."""
    base, suffix = os.path.splitext(path.removesuffix(".minf"))
    if suffix in SUFFIXES:
        return base, suffix
    return (path[:-5], ".minf") if path.endswith(".minf") else (path, "")


def _is_header(path: str) -> bool:
    try:
        head = read_head(path, 4096)
    except (OSError, ValueError):
        return False
    return bool(BEGINNING.match(head)) and b"-type" in head


FORMAT = Format(
    name="gis",
    extensions=(".ima", ".dim"),
    summary="volumes of AIMS and BrainVISA: all types, both byte orders, binary and as text",
    nav_shape_from="the header: all axes before the last two",
    sniff=sniff,
    describe=describe,
    implied=".dim",
)
