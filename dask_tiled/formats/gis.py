"""GIS volumes of AIMS and BrainVISA: pixels in ``.ima``, metadata in ``.dim``.

Axes are in C order, (t, z, y, x), x fastest.

Layout facts: the GIS reader of ITK, CGAL's ImageIO and soma-io (AIMS, BrainVISA), which agree.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Literal

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.byte_order import in_order
from dask_tiled.formats.tools.files import is_file
from dask_tiled.formats.tools.header import HeaderValue, Keys, parse_keys
from dask_tiled.formats.tools.text import parse_literal
from dask_tiled.formats.tools.volume import check_bytes, pixels_beside
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.indexing import Array

MOST_DIM = 1 << 14
MOST_MINF = 1 << 16
"""Read at most this many bytes of the text files."""
BEGINNING = re.compile(rb"\s*\d{1,19}([ \t]+\d{1,19}){0,7}\s+-[a-z]")
NUMBERS = {f"{sign}{8 * n}": f"{kind}{n}" for sign, kind in ("Si", "Uu") for n in (1, 2, 4, 8)}
NUMBERS |= {"LONG": "i8", "ULONG": "u8", "FLOAT": "f4", "DOUBLE": "f8"}
NUMBERS |= {"CFLOAT": "c8", "CDOUBLE": "c16"}
TYPES: dict[str, tuple[str, int, str]] = {
    **{name: (dtype, 0, "") for name, dtype in NUMBERS.items()},
    **{name: ("u1", len(name), "s") for name in ("RGB", "RGBA", "HSV")},
    "POINT2DF": ("f4", 2, "component"),
    "POINT3DF": ("f4", 3, "component"),
}
"""The dtype of a number, the numbers per pixel if they form an axis, and the axis name."""
C_NAMES = {"CHAR": "i1", "UCHAR": "u1", "SHORT": "i2", "USHORT": "u2", "INT": "i4", "UINT": "u4"}
"""Further names of component types of vectors."""
VECTOR = re.compile(r"VECTOR_OF_([1-9]\d{0,5})_(\w+)")
ORDERS = {"DCBA": "<", "ABCD": ">"}
SIZES = ("dx", "dy", "dz", "dt", "dx4", "dx5", "dx6", "dx7")
"""Keys of the voxel sizes, in axis order."""
NAMES = ("x", "y", "z", "t", "dim_4", "dim_5", "dim_6", "dim_7")


def _pixel(name: str) -> tuple[str, int, str]:
    vector = VECTOR.fullmatch(name)
    if vector:
        return (NUMBERS | C_NAMES)[vector[2]], int(vector[1]), "component"
    return TYPES[name]


def _voxel_size(text: str) -> float:
    if not 0 < abs(float(text)) < float("inf"):
        raise ValueError(text)
    return float(text)


KEYS: Keys = {
    "type": HeaderValue(_pixel, ", ".join((*TYPES, "VECTOR_OF_n_type"))),
    "bo": HeaderValue(ORDERS.__getitem__, " or ".join(ORDERS), ""),
    "om": HeaderValue({"binar": False, "ascii": True}.__getitem__, "binar or ascii", default=False),
    **dict.fromkeys(SIZES, HeaderValue(_voxel_size, "a number, but not 0", 1.0)),
}
FIELD = re.compile(rf"(?<!\S)-(?:({'|'.join(KEYS)})(?!\S)\s*(\S*)|([A-Za-z_]\w*)(?!\S)(.*))")
"""A known key with its value, or another key with the rest of its line."""


def read_dim(path: str) -> tuple[tuple[int, ...], dict[str, Any], dict[str, Any]]:
    """Read a ``.dim`` file: sizes, x first, parsed values, and metadata."""
    text = tools.read_head(path, MOST_DIM)
    if not BEGINNING.match(text):
        expected = "1 to 8 sizes, and keys such as -type"
        raise tools.CorruptFileError(
            "not a GIS header", path=path, where="byte 0", expected=expected, found=text[:40]
        )
    first, _, rest = text.decode("latin1").lstrip().partition("-")
    sizes, fields = tuple(map(int, first.split())), _fields("-" + rest)
    values = parse_keys(path, fields, KEYS)
    header = fields | {key: values[key] for key in SIZES if key in fields}
    return sizes, values, {"sizes": sizes, "header": header}


def _fields(text: str) -> dict[str, str]:
    """Parse keys and values; skip other text."""
    found = (match for line in text.splitlines() for match in FIELD.finditer(line))
    return {m[1] or m[3]: tools.printable((m[2] or m[4] or "").strip()) for m in found}


def read_minf(path: str) -> dict[str, Any]:
    """Read the attributes of a ``.minf`` file as plain values; an error becomes an attribute."""
    try:
        text = tools.read_head(path, MOST_MINF + 1)
        if len(text) > MOST_MINF:
            raise ValueError(f"longer than {MOST_MINF} bytes")  # noqa: TRY301
        _, found, value = text.decode("utf8").partition("=")
        attributes = parse_literal(value.strip()) if found else None
        if not isinstance(attributes, dict):
            raise ValueError("no 'attributes = {...}'")  # noqa: TRY301, TRY004
        return _plain(attributes)
    except (OSError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        return {"not_read": tools.printable(str(error)[:200])}


def _plain(value: Any) -> Any:
    """Convert lists to tuples, and values other than numbers and text to text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    finite = not isinstance(value, float) or abs(value) < float("inf")
    return value if isinstance(value, (str, int, float)) and finite else str(value)


NUMBER = re.compile(rb"[^\s(),;]+")
"""Complex numbers may be in brackets."""


def sniff(path: str, head: bytes) -> str | None:
    """Check for sizes and keys of a header, in the file or in its ``.dim`` file."""
    base, suffix = _split(path)
    starts = [head]
    if suffix:
        with suppress(FileNotFoundError):
            starts.append(tools.read_head(base + ".dim", 4096))
    if any(BEGINNING.match(start) and b"-type" in start for start in starts):
        return None
    return "no header with sizes and -type, in the file or beside it"


def describe(
    paths: Sequence[str], *, byte_order: Literal["little", "big"] | None = None
) -> tools.Description:
    """Describe a volume, given its ``.ima``, ``.dim`` or ``.ima.minf`` file, or their stem.

    Parameters
    ----------
    byte_order : {"little", "big"}, optional
        Byte order of the pixels, by default the header's; little where it does not tell.
    """
    named = tools.File.only(paths, "gis").path
    base, suffix = _split(named)
    header_path = base + ".dim" if suffix else named
    if not is_file(header_path):
        raise tools.TruncatedFileError(
            "the file of the header is missing", path=named, expected=os.path.basename(header_path)
        )
    file = pixels_beside(base + ".dim", ".ima")
    sizes, values, facts = read_dim(header_path)
    stored, parts, part_name = values["type"]
    units, scales = ["mm"] * 3 + [""] * 5, [values[key] for key in SIZES[: len(sizes)]]
    axes = [*map(tools.Axis.calibrated, NAMES, units, scales)][::-1]
    shape, sig_dims, silent = sizes[::-1], 2, "the header has no key -bo"
    dtype, doubts = in_order(np.dtype(stored), values["bo"] or None, byte_order, named, silent)
    if parts:
        shape, sig_dims, axes = (*shape, parts), 3, [*axes, tools.Axis(part_name)]
    minf = tools.beside(base, ".ima.minf")
    if minf is not None:
        facts["minf"] = read_minf(minf)
    decoder = None
    if values["om"]:
        dtype, doubts = dtype.newbyteorder("="), ()
        decoder = _text_decoder(file, shape, dtype)
    else:
        # The size of a C long depends on the machine that wrote the file; the file size decides.
        if facts["header"]["type"].endswith("LONG") and file.size == 4 * math.prod(shape):
            dtype = np.dtype(f"{dtype.kind}4").newbyteorder(dtype.byteorder)
        check_bytes(file, shape, dtype, exact=True)
        facts["dtype"] = str(dtype)
    options: dict[str, Any] = {"sig_dims": sig_dims, "packed": False, "decoder": decoder}
    desc = tools.describe_volume("gis", file, shape, dtype, axes, facts, **options)
    return desc.with_doubts(*doubts)


def _text_decoder(file: tools.File, shape: tuple[int, ...], dtype: np.dtype) -> tools.BlockDecoder:
    """Return the decoder of text: one block, as numbers have no fixed positions."""
    fewest = 2 * math.prod(shape) * (2 if dtype.kind == "c" else 1) - 1
    if fewest > file.size:
        problem, found = "the file is too short for its numbers", f"{file.size} bytes"
        expected = f"{fewest} bytes, at least, for a volume of shape {shape}"
        raise tools.TruncatedFileError(problem, path=file.path, expected=expected, found=found)
    return tools.BlockDecoder("dask_tiled.formats.gis:decode", dtype, (("dtype", dtype.str),))


def decode(block: Block, fetch: Fetch, *, dtype: str) -> Array:
    """Parse numbers separated by blanks; the rest of the text is ignored.

    Missing digits of the last number cannot be detected.
    """
    kind, path = np.dtype(dtype), block.file.path
    text = fetch(block.file, block.offset, block.offset + block.nbytes).data
    number: Callable[[bytes], Any] = int if kind.kind in "iu" else float
    part = np.dtype(f"f{kind.itemsize // 2}") if kind.kind == "c" else kind
    count = math.prod(block.shape) * kind.itemsize // part.itemsize
    numbers = (number(match[0]) for match in NUMBER.finditer(text))
    try:
        with np.errstate(over="ignore"):
            values = np.fromiter(islice(numbers, count), part)
    except (ValueError, OverflowError) as error:
        problem = "the text is not numbers of the pixel type"
        expected, found = f"{count} numbers of type {part}", str(error)[:80]
        raise tools.CorruptFileError(problem, path=path, expected=expected, found=found) from error
    if len(values) < count:
        expected, found = f"{count} numbers", f"{len(values)} numbers"
        problem = "the text ends too early"
        raise tools.TruncatedFileError(problem, path=path, expected=expected, found=found)
    return values.view(kind).reshape(block.shape)


def _split(path: str) -> tuple[str, str]:
    """Split off the suffix of a volume's file; empty for other names."""
    base, suffix = os.path.splitext(path.removesuffix(".minf"))
    if suffix in {".ima", ".dim"}:
        return base, suffix
    return (path[:-5], ".minf") if path.endswith(".minf") else (path, "")


FORMAT = tools.Format(
    name="gis",
    extensions=(".ima", ".dim"),
    summary="volumes of AIMS and BrainVISA: all types, both byte orders, binary and as text",
    nav_shape_from="the header: all axes before the last two",
    sniff=sniff,
    describe=describe,
    implied=".dim",
    aliases=("aims", "brainvisa"),
)
