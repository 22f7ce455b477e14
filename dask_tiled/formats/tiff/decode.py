"""Segments of TIFF pages become pixels: imagecodecs decompresses, without tifffile and any lock.

Nothing decodes to more than a segment has room for: what a header promises is what is allocated.

Layout facts: TIFF, revision 6.0 (compression, predictors, fill order); Adobe's technical notes on
TIFF (JPEG, floating-point predictor); which of them tifffile follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, require
from dask_tiled.model.blocks import Block, Fetch

Array = npt.NDArray[Any]

MOST_RATIO = 1 << 17
"""Compressed bytes give so many samples, and no more, in segments of more than ``SMALL``."""
SMALL = 1 << 28
JPEG = "jpeg"
BYTE_CODECS: Mapping[int, str] = {
    5: "lzw",
    **dict.fromkeys((8, 32946, 50013), "deflate"),
    32773: "packbits",
    34925: "lzma",
    **dict.fromkeys((34926, 50000), "zstd"),
}
"""What decompresses to the bytes of pixels, by the number of the compression."""
IMAGE_CODECS: Mapping[int, str] = {
    2: "ccittrle",
    3: "ccittfax3",
    4: "ccittfax4",
    **dict.fromkeys((6, 7, 33007, 34892), JPEG),
    **dict.fromkeys((22610, 34934), "jpegxr"),
    **dict.fromkeys((33003, 33004, 33005, 34712), "jpeg2k"),
    34887: "lerc",
    **dict.fromkeys((34927, 50001), "webp"),
    34933: "png",
    **dict.fromkeys((50002, 52546), "jpegxl"),
}
"""What decompresses to an image."""
PREDICTORS: Mapping[int, tuple[str, int]] = {
    1: ("", 0),
    2: ("delta", 1),
    34892: ("delta", 2),
    34893: ("delta", 4),
    3: ("floatpred", 1),
    34894: ("floatpred", 2),
    34895: ("floatpred", 4),
}
"""What undoes a predictor, and the distance of the pixels that it compares."""
YCBCR, RGB, CMYK, GREY, CMYK_OUT = 6, 2, 5, 1, 4
"""Colours: photometric interpretations of TIFF, and the last for what imagecodecs calls CMYK."""


def decode(
    block: Block,
    fetch: Fetch,
    *,
    axes: str,
    segment: tuple[int, ...],
    tiled: bool,
    stored: str,
    bits: int,
    compression: int,
    predictor: int = 1,
    reversed_bits: bool = False,
    **options: Any,
) -> Array:
    """Decode a strip or a tile, of which the block may be a part; `axes` are those of one frame.

    As it is stored, a `segment` has z, y, x and samples; the last strip of a page has fewer rows.
    """
    codecs = require("imagecodecs", "tiff", block.file.path)
    samples = math.prod(segment)
    if samples > max(SMALL, MOST_RATIO * block.nbytes):
        raise _corrupt(block, f"{samples} samples", f"{block.nbytes} bytes")
    data = bytes(fetch(block.file, block.offset, block.offset + block.nbytes))
    sizes = dict(zip(axes, block.shape[1:], strict=True))
    wanted = sizes.get("z", 1), sizes["y"], sizes["x"], segment[3]
    shape = segment if tiled else (1, wanted[1], *segment[2:])
    name = IMAGE_CODECS.get(compression)
    try:
        if reversed_bits and name != JPEG:
            data = codecs.bitorder_decode(data)
        if name is not None:
            dtype = np.dtype(stored).newbyteorder("=")
            pixels = _image(codecs, name, data, (shape, wanted), dtype, **options)
        else:
            row = -(-segment[2] * segment[3] * bits // 8)
            if compression != 1:
                room = segment[0] * segment[1] * row
                data = getattr(codecs, f"{BYTE_CODECS[compression]}_decode")(data, out=room)
            pixels = _samples(codecs, data, shape, np.dtype(stored), bits, row, predictor)
    except Exception as error:  # every codec has its own
        raise _corrupt(block, "data of its codec", repr(error)[:300]) from error
    pixels = pixels[tuple(map(slice, wanted))]
    if pixels.shape != wanted:
        raise _corrupt(block, f"{wanted} pixels (z, y, x, samples)", pixels.shape)
    return pixels.reshape(block.shape)


def _samples(
    codecs: ModuleType,
    data: bytes,
    shape: tuple[int, ...],
    stored: np.dtype,
    bits: int,
    row: int,
    predictor: int,
) -> Array:
    """Make pixels of bytes. Rows begin with a byte; tiles may lack rows outside of the page."""
    rows = min(shape[0] * shape[1], len(data) // row)
    shape = (shape[0], rows // shape[0], *shape[2:])
    data = data[: shape[0] * shape[1] * row]
    dtype = stored.newbyteorder("=")
    if bits == 24 and stored.kind == "f":
        pixels = codecs.float24_decode(data, byteorder=stored.byteorder)
    elif bits == 8 * stored.itemsize:
        # What this predictor made of the bytes knows no byte order.
        as_stored = dtype if PREDICTORS[predictor][0] == "floatpred" else stored
        pixels = np.frombuffer(data, as_stored)
    else:
        unsigned = dtype if dtype.kind == "b" else np.dtype(f"u{dtype.itemsize}")
        run = shape[2] * shape[3]
        pixels = codecs.packints_decode(data, unsigned, bits, runlen=run).view(dtype)
        if dtype.kind == "i":
            unused = 8 * dtype.itemsize - bits
            pixels = pixels << unused >> unused  # the sign goes on
    pixels = pixels.astype(dtype, copy=False).reshape(shape)
    if predictor == 1:
        return pixels
    name, distance = PREDICTORS[predictor]
    undone: Array = getattr(codecs, f"{name}_decode")(pixels, axis=-2, dist=distance)
    return undone


def _image(
    codecs: ModuleType,
    name: str,
    data: bytes,
    shapes: tuple[tuple[int, ...], ...],
    dtype: np.dtype,
    *,
    t4options: int = 0,
    tables: bytes | None = None,
    **colours: Any,
) -> Array:
    """Decompress an image of one of some shapes: tiles at an edge may be whole, or cut there."""
    problem: Exception | None = None
    for shape in dict.fromkeys(shapes):
        out = np.empty(shape, dtype)
        try:
            if name == JPEG:
                spaces = _colour_spaces(data, **colours)
                codecs.jpeg_decode(data, tables=tables, shape=shape[1:3], out=out, **spaces)
            elif name.startswith("ccitt"):
                facts = {"t4options": t4options} if name == "ccittfax3" else {}
                rows = out.reshape(shape[1:3])
                getattr(codecs, f"{name}_decode")(data, *shape[1:3], out=rows, **facts)
            elif name == "webp":
                codecs.webp_decode(data, hasalpha=shape[3] == 4, out=out)
            else:
                getattr(codecs, f"{name}_decode")(data, out=out)
        except Exception as error:  # noqa: BLE001 - every codec has its own
            problem = problem or error
        else:
            return out
    raise problem or ValueError("no shape")


def _colour_spaces(
    data: bytes, *, photometric: int, planar: bool, extra: bool
) -> dict[str, int | None]:
    """Say which colours a JPEG file holds, and which come out: RGB of what is stored as YCbCr."""
    if planar:
        return {"outcolorspace": GREY}
    if extra:
        return {}
    if photometric == RGB:
        return {"colorspace": None if data[6:10] == b"JFIF" else RGB, "outcolorspace": RGB}
    known = {YCBCR: RGB, CMYK: CMYK_OUT}
    return {"outcolorspace": known.get(photometric)}


def _corrupt(block: Block, expected: str, found: object) -> CorruptFileError:
    return CorruptFileError(
        "a strip or tile cannot be decoded",
        path=block.file.path,
        where=f"byte {block.offset}",
        expected=expected,
        found=found,
    )
