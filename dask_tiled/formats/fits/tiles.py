"""Tile-compressed FITS images: a table with a row for each tile, which points to its bytes.

Source: FITS Standard, version 4.0, section 10; for the numbers of dithering, its appendix I. Floats
are quantised to integers, each tile with its own step, unless they are packed by gzip.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.codecs.limits import check_room
from dask_tiled.codecs.packed_files import shifted
from dask_tiled.errors import require
from dask_tiled.formats import tools
from dask_tiled.formats.tools.header import NUMBER, WORD, Keys, choice, parse_keys, whole
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.indexing import Array
from dask_tiled.model.pieces import piece_table

CODECS = {name: name for name in ("RICE_1", "GZIP_1", "GZIP_2", "NOCOMPRESS")}
CODECS["RICE_ONE"] = "RICE_1"
UNREAD = "HCOMPRESS_1", "PLIO_1"
"""Compressions that only CFITSIO's code unpacks, which damaged tiles of HCOMPRESS crash."""
METHODS = {name: name for name in ("NO_DITHER", "SUBTRACTIVE_DITHER_1", "SUBTRACTIVE_DITHER_2")}
TYPES = {"8": "u1", "16": ">i2", "32": ">i4", "64": ">i8", "-32": ">f4", "-64": ">f8"}
WIDTHS = {"L": 1, "B": 1, "I": 2, "J": 4, "K": 8, "A": 1, "E": 4, "D": 8, "C": 8, "M": 16}
WIDTHS |= {"P": 8, "Q": 16}
"""Bytes of the types of columns; X has bits."""
FORM = re.compile(r"(\d{0,9})([A-Z])([A-Z]?)")
LENGTH = whole(range(1, 1 << 62))
KEYS: Keys = {
    "ZCMPTYPE": choice(CODECS), "ZBITPIX": choice(TYPES),
    "ZQUANTIZ": choice({**METHODS, "NONE": "NO_DITHER"}, "NO_DITHER"),
    "ZDITHER0": whole(range(1, 10001), 1), "TFIELDS": whole(range(1, 1000)),
    "NAXIS1": LENGTH, "NAXIS2": LENGTH, "THEAP": whole(range(1 << 62), 0),
}  # fmt: skip
PARTS = "COMPRESSED_DATA", "GZIP_COMPRESSED_DATA", "UNCOMPRESSED_DATA"
"""Columns with the bytes of a tile; the first one that has any counts."""
NUMBERS = "ZSCALE", "ZZERO", "ZBLANK"
RICE_RATIO = 1 << 10
"""Rice packs at most 64 integers of 4 bytes into 5 bits."""
ZERO, BLANK = -2147483646, -2147483648
"""Quantised values of an exact 0, and of NaN where the header has no ZBLANK."""
RANDOM, SPREAD = 10_000, 500


REAL = {"E": "f", "D": "d", "J": "i", "I": "h", "K": "q", "B": "B"}
"""Types of columns of single numbers, as :mod:`struct` calls them."""


class TableColumn(NamedTuple):
    """A column of the table."""

    name: str
    at: int  # offset in a row
    kind: str
    item: int  # bytes of the elements that a row points to


class Table(NamedTuple):
    """A table of tiles, in the file from ``offset`` on."""

    shape: tuple[int, ...]  # of the image, in C order
    tile: tuple[int, ...]
    dtype: np.dtype  # of the pixels as stored
    rows: int
    packing: CompressedTile

    @classmethod
    def of(cls, path: str, header: Mapping[str, str], shape: tuple[int, ...], offset: int) -> Table:
        """Return the table that a header describes, of an image of this shape."""
        if header.get("ZCMPTYPE") in UNREAD:
            raise tools.DatasetError(
                "unsupported compression of tiles",
                path=path,
                where="the key 'ZCMPTYPE'",
                expected=" or ".join(dict.fromkeys(CODECS.values())),
                found=header["ZCMPTYPE"],
                hint="Unpack the file with funpack of CFITSIO, or with astropy.",
            )
        values = parse_keys(path, header, KEYS)
        nbytes, rows, axes = values["NAXIS1"], values["NAXIS2"], range(len(shape), 0, -1)
        usual = {n: shape[-1] if n == 1 else 1 for n in axes}
        lengths = {f"ZTILE{n}": LENGTH._replace(default=usual[n]) for n in axes}
        told = parse_keys(path, header, lengths).values()
        tile = tuple(min(n, most) for n, most in zip(told, shape, strict=True))
        grid = [-(-n // step) for n, step in zip(shape, tile, strict=True)]
        if math.prod(grid) != rows:
            problem, where = "the table has another number of tiles", "NAXIS2"
            expected = f"{math.prod(grid)} tiles of {tile}, for an image of {shape}"
            raise tools.CorruptFileError(
                problem, path=path, where=where, expected=expected, found=rows
            )
        columns = _columns(path, header, values["TFIELDS"], nbytes)
        keys = parse_keys(path, header, {key: NUMBER for key in NUMBERS if key in header})
        rice = _parameters(path, header)
        dtype = np.dtype(values["ZBITPIX"])
        is_float = dtype.kind == "f"
        packing = CompressedTile(
            codec=values["ZCMPTYPE"],
            stored=dtype.str,
            columns=tuple(one for one in columns if one.name in PARTS + NUMBERS),
            heap=offset + (values["THEAP"] or nbytes * rows),
            first=offset,
            together=rice.get("BLOCKSIZE", 32),
            width=rice.get("BYTEPIX", 4),
            method=values["ZQUANTIZ"] if is_float else "",
            seed=values["ZDITHER0"],
            keys=tuple(keys.items()) if is_float else (),
            row=nbytes,
        )
        return cls(shape, tile, dtype, rows, packing)

    @property
    def base_shape(self) -> tuple[int, ...]:
        """Shape of the tiles as blocks of frames."""
        return self.tile if len(self.tile) > 2 else (1, *self.tile)

    def layout(self, file: tools.File, moved: np.dtype | None) -> tools.Layout:
        """Return the layout of the tiles; integers are shown as another type if ``moved``."""
        first, row = self.packing.first, self.packing.row
        end, wanted = first + self.rows * row, math.prod(self.tile)
        if end > file.size:
            problem, expected = "the file ends inside the table of tiles", f"{end} bytes"
            found = f"{file.size} bytes"
            raise tools.TruncatedFileError(problem, path=file.path, expected=expected, found=found)
        if wanted * self.dtype.itemsize > RICE_RATIO * 2 * file.size:
            problem, expected = "a file of this size cannot hold a tile", f"{self.tile} pixels"
            raise tools.CorruptFileError(problem, path=file.path, expected=expected)
        native = self.dtype.newbyteorder("=") if moved is None else moved
        told = self.packing._replace(moved="" if moved is None else moved.str)
        name = "decode_rice" if told.codec == "RICE_1" else "decode"
        decoder = tools.BlockDecoder(f"{__name__}:{name}", native, tuple(told._asdict().items()))
        grid = [range(0, n, step) for n, step in zip(self.shape, self.tile, strict=True)]
        mesh = np.meshgrid(*map(np.array, grid), indexing="ij")
        start = np.stack([one.ravel() for one in mesh], axis=1)
        shape = np.minimum(self.tile, np.array(self.shape) - start)
        offset = first + row * np.arange(self.rows)
        nav, sig = self.shape[:-2], self.shape[-2:]
        if not nav:
            start, shape = (np.insert(one, 0, k, axis=1) for k, one in enumerate((start, shape)))
        pieces = piece_table(start, shape, offset, np.zeros(start.shape[1], np.int64), nbytes=row)
        return tools.Layout([file], nav or (1,), sig, pieces, [decoder]).show(nav)


def shape_of(path: str, header: Mapping[str, str]) -> tuple[int, ...]:
    """Return the shape of the image in a table of tiles, in C order."""
    ndim = parse_keys(path, header, {"ZNAXIS": whole(range(1, 1000))})["ZNAXIS"]
    keys = {f"ZNAXIS{n}": whole(range(1 << 62)) for n in range(ndim, 0, -1)}
    sizes = tuple(parse_keys(path, header, keys).values())
    return sizes if min(sizes) else ()


def _columns(path: str, header: Mapping[str, str], count: int, nbytes: int) -> list[TableColumn]:
    """Return the columns of a row."""
    keys = {f"TFORM{n}": WORD for n in range(1, count + 1)}
    keys |= {f"TTYPE{n}": WORD for n in range(1, count + 1)}
    values = parse_keys(path, header, keys)
    found: list[TableColumn] = []
    at = 0
    for n in range(1, count + 1):
        form = FORM.match(values[f"TFORM{n}"])
        if form is None or (form[2] not in WIDTHS and form[2] != "X"):
            where, text = f"TFORM{n}", values[f"TFORM{n}"]
            raise tools.CorruptFileError(
                "invalid type of a column", path=path, where=where, found=text
            )
        name, item = values[f"TTYPE{n}"].upper(), WIDTHS.get(form[3], 1)
        found.append(TableColumn(name, at, form[2], item))
        repeat = int(form[1] or 1)
        at += -(-repeat // 8) if form[2] == "X" else repeat * WIDTHS[form[2]]
    if at > nbytes or PARTS[0] not in {one.name for one in found}:
        problem, expected = "the columns do not fit into a row", "COMPRESSED_DATA in the row"
        raise tools.CorruptFileError(
            problem, path=path, where="TFORMn", expected=expected, found=f"{at} of {nbytes} bytes"
        )
    return found


def _parameters(path: str, header: Mapping[str, str]) -> dict[str, int]:
    """Return the parameters of Rice."""
    known: Keys = {"BLOCKSIZE": whole(range(1, 65)), "BYTEPIX": choice({"1": 1, "2": 2, "4": 4})}
    told = {header.get(f"ZNAME{n}", "").strip(): header.get(f"ZVAL{n}", "") for n in range(1, 10)}
    used = {name: told[name].strip() for name in known if name in told}
    return parse_keys(path, used, {name: known[name] for name in used})


class CompressedTile(NamedTuple):
    """The bytes of a tile, and how to decode them; options of the decoder."""

    codec: str
    stored: str  # dtype of the pixels
    columns: tuple[TableColumn, ...]
    heap: int
    first: int  # offset of the first row
    together: int  # integers that Rice packs with one width
    width: int  # bytes of these integers
    method: str
    seed: int
    keys: tuple[tuple[str, float], ...]  # scale, offset and blank value of all tiles
    row: int  # bytes of a row
    moved: str = ""  # dtype of pixels that FITS stores with an offset; empty for others


def decode(block: Block, fetch: Fetch, **options: Any) -> Array:
    """Decode a tile, given its row in the table."""
    tile = CompressedTile(**options)
    row = fetch(block.file, block.offset, block.offset + tile.row).tobytes()
    where, count = f"the tile at byte {block.offset}", math.prod(block.shape)
    column, start, nbytes = _find(block, tile, row, where)
    data = fetch(block.file, start, start + nbytes).tobytes()
    number = (block.offset - tile.first) // tile.row
    try:
        pixels = _pixels(tile, column.name, row, data, count, number)
    except (zlib.error, ValueError, RuntimeError, OverflowError) as error:
        expected = f"{count} pixels, as {nbytes} bytes of {tile.codec}"
        raise tools.CorruptFileError(
            "a tile cannot be decoded",
            path=block.file.path,
            where=where,
            expected=expected,
            found=str(error) or repr(error),
        ) from error
    return pixels.reshape(block.shape)


def decode_rice(block: Block, fetch: Fetch, **options: Any) -> Array:
    """Decode a tile of an image of which imagecodecs decodes tiles."""
    return decode(block, fetch, **options)


def _find(
    block: Block, tile: CompressedTile, row: bytes, where: str
) -> tuple[TableColumn, int, int]:
    """Return the column that has bytes for a tile, and their position in the file."""
    for name in PARTS:
        column = next((one for one in tile.columns if one.name == name), None)
        if column is None or column.kind not in "PQ":
            continue
        length, place = struct.unpack_from(">2i" if column.kind == "P" else ">2q", row, column.at)
        if length:
            start, nbytes = tile.heap + place, length * column.item
            if length < 0 or place < 0 or start + nbytes > block.file.size:
                raise tools.TruncatedFileError(
                    "a tile reaches beyond the file",
                    path=block.file.path,
                    where=where,
                    expected=f"bytes {start} to {start + nbytes}",
                    found=f"{block.file.size} bytes",
                )
            return column, start, nbytes
    raise tools.CorruptFileError("a tile has no bytes", path=block.file.path, where=where)


def _pixels(
    tile: CompressedTile, name: str, row: bytes, data: bytes, count: int, number: int
) -> Array:
    """Return the pixels of a tile."""
    stored, numbers = np.dtype(tile.stored), dict(tile.keys)
    for column in tile.columns:
        if column.name in NUMBERS and column.kind in REAL:
            numbers[column.name] = struct.unpack_from(f">{REAL[column.kind]}", row, column.at)[0]
    codec = {PARTS[0]: tile.codec, PARTS[1]: "GZIP_1", PARTS[2]: "NOCOMPRESS"}[name]
    values = _unpack(tile, codec, data, count)
    native = stored.newbyteorder("=")
    if stored.kind != "f":
        found = values.astype(native)
        return shifted(found, tile.moved) if tile.moved else found
    if name == PARTS[0] and tile.codec == "RICE_1" and "ZSCALE" not in numbers:
        raise ValueError("floats as integers without ZSCALE")
    if name != PARTS[0] or "ZSCALE" not in numbers:
        return values.view(f">f{values.itemsize}").astype(native)
    blank, zero = numbers.get("ZBLANK", BLANK), numbers.get("ZZERO", 0.0)
    shown = values.astype(float)
    if tile.method != "NO_DITHER":
        shown = shown - _dither(number + tile.seed - 1, count) + 0.5
    with np.errstate(all="ignore"):
        shown = (shown * numbers["ZSCALE"] + zero).astype(native)
    shown[values == blank] = np.nan
    if tile.method == "SUBTRACTIVE_DITHER_2":
        shown[values == ZERO] = 0
    return shown


def _unpack(tile: CompressedTile, codec: str, data: bytes, count: int) -> Array:
    """Return the numbers of a tile, as big-endian integers or bytes of floats."""
    if codec == "RICE_1":
        if count * tile.width > RICE_RATIO * len(data):
            raise ValueError("too few bytes")
        decoded = require("imagecodecs", "tiff", "a tile").rcomp_decode(
            data,
            shape=count,
            dtype="u1" if tile.width == 1 else f"i{tile.width}",
            nblock=tile.together,
        )
        return np.asarray(decoded)
    if codec != "NOCOMPRESS":
        check_room("deflate", len(data), count)
        data = zlib.decompressobj(47).decompress(data, 8 * count + 1)
    size, rest = divmod(len(data), count)
    if rest or size not in {1, 2, 4, 8}:
        raise ValueError(f"{len(data)} bytes")
    pixels = np.frombuffer(data, "u1")
    if codec == "GZIP_2":  # the first bytes of all pixels, then the second ones, ...
        pixels = np.ascontiguousarray(pixels.reshape(size, count).T).ravel()
    return pixels.view("u1" if size == 1 else f">i{size}")


def _dither(number: int, count: int) -> Array:
    """Return the numbers that were added to the pixels of a tile before they were rounded."""
    table, seed = _random(), number % RANDOM
    parts, left = [], count
    while left > 0:
        start = int(table[seed] * SPREAD)
        parts.append(table[start : start + left])
        left -= len(parts[-1])
        seed = (seed + 1) % RANDOM
    return np.concatenate(parts)


@cache
def _random() -> Array:
    """Return the random numbers of the standard, by Park and Miller."""
    found, seed = np.empty(RANDOM, "f4"), 1
    for k in range(RANDOM):
        seed = 16807 * seed % 2147483647
        found[k] = seed / 2147483647
    return found
