"""NRRD volumes of Teem: a text header, followed by the pixels or naming their files.

Axes are in C order, (z, y, x): the first axis of the header comes last. Axes before the first one
of space belong to a pixel. The header in the metadata gives the orientation.

Layout after the "Definition of NRRD File Format" of Teem, version 1.9 and later.
"""

from __future__ import annotations

import binascii
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.byte_order import ORDERS, given_order
from dask_tiled.formats.tools.header import (
    NUMBER,
    TEXT,
    HeaderValue,
    Keys,
    check_lengths,
    choice,
    parse_keys,
    several,
    whole,
)
from dask_tiled.formats.tools.text import after_lines, parse_pairs, read_text
from dask_tiled.formats.tools.volume import anatomical, axis_along, pixel_files
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.indexing import Array

MAGIC = re.compile(rb"NRRD(0\d\.\d\d|000\d)\s*\n")
OF_USERS = re.compile(r"^[^:\n]*:=.*$", re.MULTILINE)
"""Pairs of keys and values that are no fields, whatever their keys."""
END = rb"\n\r?\n|(?mi:^data ?file:[ \t]*LIST\b.*\n)"
INTEGERS = {
    "i1": "signed char, int8, int8_t",
    "u1": "uchar, unsigned char, uint8, uint8_t",
    "i2": "short, short int, signed short, signed short int, int16, int16_t",
    "u2": "ushort, unsigned short, unsigned short int, uint16, uint16_t",
    "i4": "int, signed int, int32, int32_t",
    "u4": "uint, unsigned int, uint32, uint32_t",
    "i8": "longlong, long long, long long int, signed long long, signed long long int, int64, "
    "int64_t",
    "u8": "ulonglong, unsigned long long, unsigned long long int, uint64, uint64_t",
}
TYPES = {name: dtype for dtype, names in INTEGERS.items() for name in names.split(", ")}
TYPES |= {"float": "f4", "double": "f8"}
ENCODINGS = {"raw": "raw", **dict.fromkeys(("gz", "gzip", "bz2", "bzip2"), "packed")}
ENCODINGS |= dict.fromkeys(("ascii", "text", "txt"), "text") | {"hex": "hex"}
DIGITS = {"hex": 2, "text": 1}
"""Fewest characters of a byte or a number, by encoding."""
SPACE = ("domain", "space", "???", "none")
"""Kinds of axes that may be axes of space."""
NAMES = ("x", "y", "z", "t")
KINDS = {"time": "t", "list": "list", "complex": "complex"}
KINDS |= {f"{colours}-color": "s" for colours in ("rgb", "rgba", "hsv", "xyz", "3", "4")}
"""Axis names by kind; ``component`` for all others."""
ONE_LINE = bytes.maketrans(b"\r\n\t,", b"    ")
"""Separators between numbers in a text."""
SPACES = re.compile("[rl][ap][si]")
"""Directions of a body: the first letters of RAS or right-anterior-superior, also with time."""
CENTERS = {"cell": 0.5, "node": 0.0}
"""Position of a sample in its cell; Teem takes cells where a header does not tell."""
VECTOR = re.compile(r"none|\(([^()]*)\)", re.IGNORECASE)


def _vectors(text: str) -> tuple[tuple[float, ...], ...]:
    """Parse vectors such as ``(1,0,0) (0,1,0) none``; ``none`` becomes an empty one."""
    if VECTOR.sub("", text).strip():
        raise ValueError(text)
    found = (match[1] for match in VECTOR.finditer(text))
    return tuple(tuple(map(float, words.split(","))) if words else () for words in found)


VECTORS = HeaderValue(_vectors, "vectors such as (1,0,0)", ())
QUOTED = HeaderValue(lambda text: tuple(shlex.split(text)), "texts in double quotes", ())
KEYS: Keys = {
    "dimension": whole(range(1, 17)), "type": choice(TYPES),
    "endian": choice(ORDERS)._replace(expected="little or big, or the option byte_order"),
    "encoding": choice(ENCODINGS),
    "sizes": several(whole(tools.POSITIVE)),
    "datafile": TEXT._replace(default=""), "lineskip": whole(range(1 << 20), 0),
    "byteskip": whole(range(-1, 1 << 62), 0), "spacings": several(NUMBER, ()),
    "spacedirections": VECTORS, "spaceorigin": VECTORS, "spaceunits": QUOTED, "units": QUOTED,
    "labels": QUOTED, "kinds": several(TEXT, ()), "axismins": several(NUMBER, ()),
    "axismaxs": several(NUMBER, ()), "centers": several(TEXT, ()), "centerings": several(TEXT, ()),
}  # fmt: skip
PER_AXIS = (
    "spacings", "spacedirections", "units", "labels", "kinds", "axismins", "axismaxs", "centers",
    "centerings",
)  # fmt: skip


LINE = "axismins", "axismaxs", "spacings"


def sniff(path: str, head: bytes) -> str | None:
    """Check for the magic line."""
    return None if MAGIC.match(head) else "does not begin with a line like NRRD0004"


def describe(
    paths: Sequence[str], *, byte_order: Literal["little", "big"] | None = None
) -> tools.Description:
    """Describe a volume, given its header file.

    Parameters
    ----------
    byte_order : {"little", "big"}, optional
        Byte order of the pixels, by default the header's, which has to tell it.
    """
    file = tools.File.only(paths, "nrrd")
    text, end = read_text(file.path, END)
    own = parse_pairs(OF_USERS.sub("", text), ":")
    pairs = {k: v for k, v in {**parse_pairs(text, ":"), **own}.items() if k[:1] != "#"}
    fields = {"".join(key.lower().split()): value for key, value in own.items()}
    one_byte = TYPES.get(fields.get("type", "").lower()) in {"i1", "u1"}
    irrelevant = one_byte or ENCODINGS.get(fields.get("encoding", "").lower()) == "text"
    given = given_order(byte_order, file.path)
    if irrelevant or given:
        fields.setdefault("endian", "little")
    values = parse_keys(file.path, fields, KEYS)
    check_lengths(file.path, values, dict.fromkeys(("sizes", *PER_AXIS), values["dimension"]))
    dtype = np.dtype(values["type"]).newbyteorder(given or values["endian"])
    parts = pixel_files(file, "data file", values["datafile"], end)
    parts = [(part, after_lines(part, at, values["lineskip"])) for part, at in parts]
    axes, sig_dims = _axes(values)
    shape, encoding, skip = values["sizes"][::-1], values["encoding"], values["byteskip"]
    facts: dict[str, Any] = {
        "header": {tools.printable(k): tools.printable(v.lstrip("= ")) for k, v in pairs.items()}
    }
    directions = _directions(values, fields.get("space", ""), axes)
    if directions:
        facts["directions"] = directions
    options: dict[str, Any] = {"packed": encoding == "packed", "skip": skip, "sig_dims": sig_dims}
    if encoding in DIGITS:
        parts = [(part, at + skip) for part, at in parts]
        digits, count = DIGITS[encoding], math.prod(shape)
        _check_text(parts, count * dtype.itemsize if digits == 2 else count, skip, digits)
        native, told = dtype.newbyteorder("="), (("stored", dtype.str),)
        options["decoder"] = tools.BlockDecoder(f"{__name__}:decode_{encoding}", native, told)
        dtype = native
    return tools.describe_volume("nrrd", parts, shape, dtype, axes, facts, **options)


def _check_text(
    parts: Sequence[tuple[tools.File, int]], count: int, skip: int, digits: int
) -> None:
    """Check that a text is long enough for numbers and separators, or for two digits of each."""
    last = digits == 1  # which needs no separator
    path, room = parts[0][0].path, sum((file.size - at + last) // 2 for file, at in parts)
    if skip < 0:
        problem = "text cannot be located from the end of a file"
        expected = "0 bytes to skip, or more"
        raise tools.CorruptFileError(problem, path=path, expected=expected, found=skip)
    if count > room:
        problem, found = "a text file of this size cannot hold the pixels", f"{room} at most"
        raise tools.TruncatedFileError(problem, path=path, expected=f"{count} numbers", found=found)


def decode_hex(block: Block, fetch: Fetch, *, stored: str) -> Array:
    """Parse pixels that are stored as hexadecimal digits, two for each byte."""
    text = fetch(block.file, block.offset, block.offset + block.nbytes).tobytes()
    dtype, path = np.dtype(stored), block.file.path
    expected = f"{2 * math.prod(block.shape) * dtype.itemsize} hexadecimal digits"
    digits = text.translate(None, b" \t\r\n\v\f")
    try:
        pixels = np.frombuffer(binascii.unhexlify(digits), dtype).reshape(block.shape)
    except (binascii.Error, ValueError) as error:
        problem = "the text is not the digits of the pixels"
        found = f"{len(digits)} characters; {error}"
        raise tools.CorruptFileError(problem, path=path, expected=expected, found=found) from error
    return pixels.astype(dtype.newbyteorder("="))


def decode_text(block: Block, fetch: Fetch, *, stored: str) -> Array:
    """Parse pixels that are stored as text."""
    text = fetch(block.file, block.offset, block.offset + block.nbytes).tobytes()
    line, path = text.translate(ONE_LINE).strip() or b"no", block.file.path
    dtype = np.dtype(stored).newbyteorder("=")
    expected = f"{math.prod(block.shape)} numbers of type {dtype.str}"
    try:
        values = np.loadtxt([line], dtype, comments=None, ndmin=1)
    except ValueError as error:
        problem = "a pixel is not a number of this type"
        raise tools.CorruptFileError(
            problem, path=path, expected=expected, found=str(error)
        ) from error
    if len(values) != math.prod(block.shape):
        problem, found = "the text holds a different number of pixels", len(values)
        raise tools.CorruptFileError(problem, path=path, expected=expected, found=found)
    return values.reshape(block.shape)


def _axes(values: dict[str, Any]) -> tuple[list[tools.Axis], int]:
    """Return named and calibrated axes, and the number of signal axes."""
    names, origin = iter(NAMES), next(iter(values["spaceorigin"]), ())
    axes, in_space = [], []
    for k in range(values["dimension"]):
        own = {key: values[key][k : k + 1] for key in PER_AXIS}
        direction, units, label, kind = (own[key] for key in PER_AXIS[1:5])
        word = kind[0].lower() if kind else "domain"
        in_space.append(word in SPACE and direction != ((),))
        name = next(names, f"dim_{k}") if in_space[k] else KINDS.get(word, "component")
        name = "".join(label) or name
        if any(direction):
            sizes = [abs(number) for number in direction[0]]
            units = values["spaceunits"][sizes.index(max(sizes)) :][:1]
            axes.append(axis_along(name, "".join(units), direction[0], origin))
        else:
            scale, offset = _line(own, values["sizes"][k])
            axes.append(tools.Axis.calibrated(name, "".join(units), scale, offset, signed=True))
    return axes[::-1], 2 + [*in_space, True].index(True)


def _line(own: Mapping[str, Any], size: int) -> tuple[float, float]:
    """Return the step along an axis, and the position of its first sample."""
    low, high, step = (sum(own[key]) if own[key] else math.nan for key in LINE)
    word = next(iter(own["centers"] or own["centerings"]), "")
    half = CENTERS.get(word.lower(), CENTERS["cell"])
    if not (math.isfinite(step) and step):
        cells = size if half else size - 1
        step = (high - low) / cells if cells else math.nan
    if not math.isfinite(low):
        return step, 0.0
    return step, low + half * step


def _directions(values: dict[str, Any], space: str, axes: Sequence[tools.Axis]) -> dict[str, str]:
    """Return the directions of the axes in a body, if the header names its space."""
    words = space.lower().split("-")[:3]
    letters = "".join(word[:1] for word in words) if len(words) == 3 else words[0][:3]
    signs = [(letter in "ras") - (letter in "lpi") for letter in letters]
    along = [k for k, step in enumerate(values["spacedirections"]) if len(step) == 3]
    if not SPACES.fullmatch(letters) or len(along) != 3:
        return {}
    names = [axis.name for axis in axes[::-1]]
    steps = [np.multiply(values["spacedirections"][k], signs) for k in along]
    return anatomical([names[k] for k in along], steps)


FORMAT = tools.Format(
    name="nrrd",
    extensions=(".nrrd", ".nhdr"),
    summary="all types in both byte orders, raw, gzip, bzip2, text and hex, one file or many",
    nav_shape_from="the header: all axes before the last two of space",
    sniff=sniff,
    describe=describe,
    peers=("pynrrd",),
)
