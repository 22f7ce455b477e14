"""Segments of TIFF pages become pixels: imagecodecs decompresses, without tifffile and any lock.

Nothing decodes to more than a segment has room for: what a header promises is what is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.model.indexing import Array

Shape = tuple[int, ...]

JPEG = "jpeg"
# fmt: off
BYTE_CODECS: Mapping[int, str] = {
    5: "lzw", 8: "deflate", 32773: "packbits", 32946: "deflate", 34925: "lzma", 34926: "zstd",
    50000: "zstd", 50013: "deflate",
}
"""What decompresses to the bytes of pixels, by the number of the compression."""
IMAGE_CODECS: Mapping[int, str] = {
    2: "ccittrle", 3: "ccittfax3", 4: "ccittfax4", 6: JPEG, 7: JPEG, 33007: JPEG, 34892: JPEG,
    22610: "jpegxr", 34934: "jpegxr", 33003: "jpeg2k", 33004: "jpeg2k", 33005: "jpeg2k",
    34712: "jpeg2k", 34887: "lerc", 34927: "webp", 50001: "webp", 34933: "png", 50002: "jpegxl",
    52546: "jpegxl",
}
"""What decompresses to an image."""
PREDICTORS: Mapping[int, tuple[str, int]] = {
    1: ("", 0), 2: ("delta", 1), 34892: ("delta", 2), 34893: ("delta", 4),
    3: ("floatpred", 1), 34894: ("floatpred", 2), 34895: ("floatpred", 4),
}
"""What undoes a predictor, and the distance of the pixels that it compares."""
# fmt: on
YCBCR, RGB, CMYK, GREY, CMYK_OUT = 6, 2, 5, 1, 4
"""Colours: photometric interpretations of TIFF, and the last for what imagecodecs calls CMYK."""


class Storage(NamedTuple):
    """How the pixels of a strip or a tile are stored."""

    axes: str  # of a block, without that of frames
    segment: tuple[int, ...]  # z, y, x, samples; the last strip of a page has fewer rows
    tiled: bool
    dtype: str
    bits: int
    compression: int
    predictor: int
    reversed_bits: bool  # the first pixel of a byte is in its lowest bits
    t4options: int
    tables: bytes | None  # of JPEG, and so are the others
    photometric: int
    planar: bool
    extra: bool


def decode(block: tools.Block, fetch: tools.Fetch, **options: Any) -> Array:
    """Decode a strip or a tile, of which the block may be a part; `options` are a `Storage`."""
    storage = Storage(**options)
    codecs = tools.require("imagecodecs", "tiff", block.file.path)
    name = IMAGE_CODECS.get(storage.compression)
    stored = bytes(fetch(block.file, block.offset, block.offset + block.nbytes))
    sizes = dict(zip(storage.axes, block.shape[1:], strict=True))
    wanted = sizes.get("z", 1), sizes["y"], sizes["x"], storage.segment[3]
    shape = storage.segment if storage.tiled else (1, wanted[1], *storage.segment[2:])
    try:
        if storage.reversed_bits and name != JPEG:
            stored = codecs.bitorder_decode(stored)
        if name is None:
            pixels = _samples(codecs, stored, shape, wanted, storage)
        else:
            pixels = _image(codecs, name, stored, (shape, wanted), storage)
    except Exception as error:  # every codec has its own
        raise _corrupt(block, "data of its codec", repr(error)) from error
    pixels = pixels[tuple(map(slice, wanted))]
    if pixels.shape != wanted:
        raise _corrupt(block, f"{wanted} pixels (z, y, x, samples)", pixels.shape)
    return pixels.reshape(block.shape)


def _samples(
    codecs: ModuleType, content: bytes, shape: Shape, wanted: Shape, storage: Storage
) -> Array:
    """Make pixels of bytes. Rows begin with a byte; tiles may lack rows outside of the page."""
    segment, bits, stored = storage.segment, storage.bits, np.dtype(storage.dtype)
    name, distance = PREDICTORS[storage.predictor]
    row = -(-segment[2] * segment[3] * bits // 8)
    if storage.compression != 1:
        codec = BYTE_CODECS[storage.compression]
        tools.check_room(codec, len(content), math.prod(wanted[:2]) * row)
        room = min(segment[0] * segment[1] * row, tools.most_bytes(codec, len(content)))
        content = getattr(codecs, f"{codec}_decode")(content, out=room)
    rows = min(shape[0] * shape[1], len(content) // row)
    shape = (shape[0], rows // shape[0], *shape[2:])
    content = content[: shape[0] * shape[1] * row]
    dtype = stored.newbyteorder("=")
    if bits == 24 and stored.kind == "f":
        pixels = codecs.float24_decode(content, byteorder=stored.byteorder)
    elif bits == 8 * stored.itemsize:
        # What this predictor made of the bytes knows no byte order.
        pixels = np.frombuffer(content, dtype if name == "floatpred" else stored)
    else:
        unsigned = dtype if dtype.kind == "b" else np.dtype(f"u{dtype.itemsize}")
        run = shape[2] * shape[3]
        pixels = codecs.packints_decode(content, unsigned, bits, runlen=run).view(dtype)
        if dtype.kind == "i":
            unused = 8 * dtype.itemsize - bits
            pixels = pixels << unused >> unused  # the sign goes on
    pixels = pixels.astype(dtype, copy=False).reshape(shape)
    return getattr(codecs, f"{name}_decode")(pixels, axis=-2, dist=distance) if name else pixels


def _image(
    codecs: ModuleType, name: str, content: bytes, shapes: Sequence[Shape], storage: Storage
) -> Array:
    """Decompress an image of one of some shapes: tiles at an edge may be whole, or cut there."""
    problem: Exception | None = None
    for shape in dict.fromkeys(shapes):
        dtype = np.dtype(storage.dtype).newbyteorder("=")
        tools.check_room(name, len(content), math.prod(shape) * dtype.itemsize)
        out = np.empty(shape, "u1" if dtype.kind == "b" else dtype)
        options: dict[str, Any] = {"out": out}
        sizes: Shape = ()
        if name == JPEG:
            options |= {"shape": shape[1:3], "tables": storage.tables}
            options |= _colour_spaces(content, storage)
        elif name == "webp":
            options["hasalpha"] = shape[3] == 4
        elif name.startswith("ccitt"):
            sizes, options["out"] = shape[1:3], out.reshape(shape[1:3])
            options |= {"t4options": storage.t4options} if name == "ccittfax3" else {}
        try:
            getattr(codecs, f"{name}_decode")(content, *sizes, **options)
        except Exception as error:  # noqa: BLE001 - every codec has its own
            problem = problem or error
        else:
            return out != 0 if dtype.kind == "b" else out  # some write 255
    raise problem or ValueError("no shape")


def _colour_spaces(content: bytes, storage: Storage) -> dict[str, int | None]:
    """Say which colours a JPEG file holds, and which come out: RGB of what is stored as YCbCr."""
    if storage.planar:
        return {"outcolorspace": GREY}
    if storage.extra:
        return {}
    if storage.photometric == RGB:
        return {"colorspace": None if content[6:10] == b"JFIF" else RGB, "outcolorspace": RGB}
    return {"outcolorspace": {YCBCR: RGB, CMYK: CMYK_OUT}.get(storage.photometric)}


def _corrupt(block: tools.Block, expected: str, found: object) -> tools.CorruptFileError:
    path, where = block.file.path, f"byte {block.offset}"
    return tools.CorruptFileError(
        "a strip or tile cannot be decoded", path=path, where=where, expected=expected, found=found
    )
