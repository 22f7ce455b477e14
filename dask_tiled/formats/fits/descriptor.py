"""FITS images: the primary array, or an image extension.

Axes are in C order, NAXIS1 last, as in astropy.

Source: FITS Standard, version 4.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dask_tiled.codecs.limits import most_bytes
from dask_tiled.codecs.packed_files import (
    content_reader,
    is_compressed,
    packed_by,
    read_start,
    unpacker,
)
from dask_tiled.codecs.streams import BROKEN
from dask_tiled.errors import require
from dask_tiled.files.file import is_refusal
from dask_tiled.formats import tools
from dask_tiled.formats.fits.tiles import TYPES, Table, shape_of
from dask_tiled.formats.tools.choosing import Chosen, choose_picture
from dask_tiled.formats.tools.header import NUMBER, WORD, Keys, choice, parse_keys, whole
from dask_tiled.formats.tools.volume import axis_names
from dask_tiled.model.doubts import MOST_RIVALS, Doubt, lost_datasets, may_be_meant
from dask_tiled.model.instrument import entries
from dask_tiled.model.listing import most_listed

BLOCK, CARD = 2880, 80
MAX_HEADER, MAX_HEADERS = BLOCK << 12, BLOCK << 16
"""Largest header, and largest sum of all headers of a file, in bytes."""
MOST_UNPACKED = 1 << 26
"""Decompress at most this many bytes to look for images behind the default one."""
PADDING, MOST_PADDING = b"\0 \r\n\x1a", 1 << 20
"""Bytes without a meaning behind the last HDU; at most this many are checked."""
START = re.compile(rb"SIMPLE  = +T ")
PAIR = re.compile(r"([A-Z0-9_-]{1,8}) *= *('(?:[^']|'')*'|[^/ ][^/]*)")
LENGTH = whole(range(1 << 62))
MOVED = {("u1", -128): "i1", (">i2", 1 << 15): "u2", (">i4", 1 << 31): "u4", (">i8", 1 << 63): "u8"}
"""Types that FITS represents by another type with a BZERO."""
KEYS: Keys = {
    "BITPIX": choice(TYPES), "ZBITPIX": choice(TYPES, "u1"), "NAXIS": whole(range(1000)),
    "PCOUNT": LENGTH._replace(default=0), "GCOUNT": LENGTH._replace(default=1),
    "BSCALE": NUMBER._replace(default=1.0), "BZERO": NUMBER,
    "XTENSION": WORD._replace(default="IMAGE"), "EXTNAME": WORD,
    "BUNIT": WORD,
}  # fmt: skip
ALONG: Keys = dict.fromkeys(("CDELT", "CRVAL", "CRPIX"), NUMBER)
ALONG = {**ALONG, "CTYPE": WORD, "CUNIT": WORD}
TURNED = re.compile(r"(PC|CD)\d+_\d+")
"""Keys of rotated axes."""
ORIENTATION = "rows as stored: in the standard, the first row is the lowest of an image"


Read: TypeAlias = Callable[[int, int], bytes]
"""Returns some bytes at an offset."""


class Hdu(NamedTuple):
    """A header as text and values, the shape of its image, and the position of its data."""

    header: Mapping[str, str]
    values: Mapping[str, Any]
    shape: tuple[int, ...]
    offset: int
    end: int


def sniff(path: str, head: bytes) -> str | None:
    """Check for the first card."""
    head = read_start(path, CARD, head)
    return None if START.match(head) else "does not begin with 'SIMPLE  = T'"


def describe(
    paths: Sequence[str], *, dataset: int | str | None = None, scaled: bool = False
) -> tools.Description:
    """Describe an image of a file, which may be compressed.

    Parameters
    ----------
    dataset : int or str, optional
        Number of the HDU, 0 for the primary one, or its EXTNAME. By default the first with pixels.
    scaled : bool
        Show ``pixels * BSCALE + BZERO`` in float64 instead of the pixels as they are stored. A
        BZERO that stands for unsigned integers, or for signed bytes, is always applied. BLANK is
        not applied, but is in the metadata.
    """
    file = tools.File.only(paths, "fits")
    packed_file = is_compressed(file.path)
    with content_reader(file.path) as read:
        hdus, (number, doubts), are_all = _choose(file, read, dataset, packed_file=packed_file)
    header, values, shape, offset, _ = hdus[number]
    stored = "ZBITPIX" if "ZIMAGE" in header else "BITPIX"
    kind, gain, zero = (values[key] for key in (stored, "BSCALE", "BZERO"))
    moved = MOVED.get((kind, zero)) if gain == 1 else None
    decoder: tools.Decoder | tools.BlockDecoder | None = None
    if moved and packed_file:
        codec = packed_by(file)
        decoder = unpacker(np.dtype(kind), offset, codec=codec, moved=np.dtype(moved))
    elif moved:
        decoder = tools.Decoder("biased", np.dtype(moved), int(kind[-1]))
    scaling = (gain, zero) if scaled and not moved and (gain, zero) != (1, 0) else None
    axes = tuple(_axis(file.path, header, n) for n in range(len(shape), 0, -1))
    facts = {"hdu": number, "header": header, "orientation": ORIENTATION, "scaled": bool(scaling)}
    if are_all:
        named = [{"name": x.values["EXTNAME"], "shape": x.shape} for x in hdus]
        images = tuple(one if one["shape"] else {} for one in named)
        facts |= {"dataset": number, "datasets": images}
    if scaling or moved or (gain, zero) == (1, 0):
        facts["units"] = values["BUNIT"]
    if "ZIMAGE" in header:
        where = f"HDU {number}"
        if packed_file:
            problem, hint = "tile-compressed images in a compressed file", "Decompress the file."
            raise tools.DatasetError(problem, path=file.path, where=where, hint=hint)
        table = Table.of(file.path, header, shape, offset)
        if table.packing.codec == "RICE_1":
            require("imagecodecs", "tiff", file.path)
        layout = table.layout(file, np.dtype(moved) if moved else None)
        more: dict[str, Any] = {"base_shape": table.base_shape, "scaling": scaling}
        return tools.Description.of("fits", layout, {"fits": facts}, axes, **more).with_doubts(
            *doubts
        )
    dtype = np.dtype(kind)
    desc = tools.describe_volume(
        "fits", file, shape, dtype, axes, facts, skip=offset, decoder=decoder, scaling=scaling
    )
    return desc.with_doubts(*doubts)


def _choose(
    file: tools.File, read: Read, dataset: int | str | None, *, packed_file: bool
) -> tuple[list[Hdu], Chosen, bool]:
    """Read HDUs and select one, by default the first with pixels.

    Those behind it are read to list them, to see whether a name is unique, or whether others may be
    meant; by default as many as metadata list, and until some others are found. None are read if
    the user gives a number, or if much would have to be decompressed.

    Returns
    -------
    list of Hdu
    Chosen
    bool
        Whether these are all HDUs of the file.
    """
    hdus, sizes, most = list[Hdu](), list[int](), most_listed()
    shown = alike = 0
    are_all, damage = True, ""
    try:
        for hdu in _hdus(file, read):
            hdus.append(hdu)
            sizes.append(math.prod(hdu.shape) if hdu.shape else 0)
            alike += may_be_meant(sizes[-1], shown)
            shown = shown or sizes[-1]
            enough = hdu.end > MOST_UNPACKED if packed_file else False
            enough |= bool(most and len(hdus) > most and alike > MOST_RIVALS)
            by_number = type(dataset) is int and dataset == len(hdus) - 1
            if by_number or (dataset is None and shown and enough):
                are_all = False
                break
        else:
            damage = _unknown_after(read, hdus[-1].end) if dataset is None and shown else ""
    except (tools.DatasetError, *BROKEN) as error:
        if dataset is not None or not shown or is_refusal(error):
            raise  # else the damage is behind the pixels
        damage = error.problem if isinstance(error, tools.DatasetError) else str(error)
    names = [hdu.values["EXTNAME"] for hdu in hdus]
    default = next((k for k, size in enumerate(sizes) if size), len(hdus) - 1)
    chosen = choose_picture(file.path, names, dataset, sizes, default, more=not are_all)
    header, where = hdus[chosen.number].header, f"HDU {chosen.number} {names[chosen.number]}"
    if not hdus[chosen.number].shape:
        problem, kind = "there are no pixels", header.get("XTENSION", "no axes")
        raise tools.DatasetError(problem, path=file.path, where=where, found=kind)
    doubts: tuple[Doubt, ...] = ()
    if damage:
        doubts = (lost_datasets(len(hdus), "HDUs", hdus[-1].end, damage),)
    return hdus, chosen._replace(doubts=(*chosen.doubts, *doubts)), are_all


def _unknown_after(read: Read, at: int) -> str:
    """Return why bytes behind the last HDU are no padding; empty if there are none."""
    rest = read(MOST_PADDING, at).strip(PADDING)
    return "they do not begin a header" if rest else ""


def _hdus(file: tools.File, read: Read) -> Iterator[Hdu]:
    """Yield the HDUs of a file."""
    at = nbytes = 0
    while not at or (at <= most_bytes("deflate", file.size) and read(8, at) == b"XTENSION"):
        hdu = _read_hdu(file.path, read, at)
        yield hdu
        nbytes += hdu.offset - at if at else 0
        if nbytes > MAX_HEADERS:
            problem, expected = "there are too many headers", f"{MAX_HEADERS} bytes at most"
            raise tools.CorruptFileError(
                problem, path=file.path, where=f"byte {at}", expected=expected
            )
        at = hdu.end


def _read_hdu(path: str, read: Read, at: int) -> Hdu:
    header, offset = _read_header(path, read, at)
    values = parse_keys(path, header, KEYS)
    axes = {f"NAXIS{n}": LENGTH for n in range(values["NAXIS"], 0, -1)}
    sizes = tuple(parse_keys(path, header, axes).values())
    count = values["GCOUNT"] * (values["PCOUNT"] + math.prod(sizes)) if sizes else 0
    blocks = -(np.dtype(values["BITPIX"]).itemsize * count // -BLOCK)
    is_image = values["XTENSION"] == "IMAGE" and min(sizes, default=0)
    shape = shape_of(path, header) if "ZIMAGE" in header else sizes if is_image else ()
    return Hdu(header, values, shape, offset, offset + blocks * BLOCK)


def _read_header(path: str, read: Read, at: int) -> tuple[dict[str, str], int]:
    """Read the cards of a header; return them and the offset behind it."""
    header: dict[str, str] = {}
    for start in range(at, at + MAX_HEADER, BLOCK):
        text = read(BLOCK, start).decode("latin1")
        if len(text) < BLOCK:
            problem, found = "the file ends inside a header", f"{len(text)} bytes"
            raise tools.TruncatedFileError(
                problem, path=path, where=f"byte {start}", expected=f"{BLOCK} bytes", found=found
            )
        cards = [text[k : k + CARD] for k in range(0, BLOCK, CARD)]
        for pair in filter(None, map(PAIR.match, filter(str.isprintable, cards))):
            header.setdefault(pair[1], _text(pair[2].strip()))
        if any(card.rstrip() == "END" for card in cards):
            return header, start + BLOCK
    raise tools.CorruptFileError("the header has no end", path=path, where=f"byte {at}")


def _text(value: str) -> str:
    """Remove quotes from a text, or write the exponent of a number with E."""
    return value[1:-1].replace("''", "'").rstrip() if value[:1] == "'" else value.replace("D", "E")


def _axis(path: str, header: Mapping[str, str], n: int) -> tools.Axis:
    """Calibrate an axis, unless it is projected or rotated."""
    along = parse_keys(path, header, {f"{key}{n}": value for key, value in ALONG.items()})
    step, value, at, kind, units = along.values()
    step = 0.0 if "-" in kind or any(map(TURNED.match, header)) else step
    start = value + (1 - at) * step
    return tools.Axis.calibrated(axis_names(n)[0], units, step, start, signed=True)


ROWS = (("detector", "INSTRUME"), ("exposure_time", "EXPTIME", "s"), ("date", "DATE-OBS"))

FORMAT = tools.Format(
    name="fits",
    extensions=(".fits", ".fit", ".fts", ".fz"),
    summary="FITS images and image extensions of all types, unsigned too, compressed or in tiles",
    nav_shape_from="the header: all axes before the last two",
    sniff=sniff,
    describe=describe,
    instrument=entries({"fits/header": ROWS}),
    peers=("astropy",),
)
