"""Codecs of the pixels in strips and tiles."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_tiled.codecs.chunks import chunk_decoder
from dask_tiled.codecs.image_codecs import ROWS
from dask_tiled.formats import tools
from dask_tiled.formats.tiff.ifd import OFFSETS, Ifd

Codec = dict[str, Any]

SOFTWARE, MOST_SOFTWARE = 305, 256
"""Tag of the program that wrote the file, on the first page, and maximum bytes of its name."""
WHOLE_BYTES = {8, 16, 32, 64, 128}
OLD_JPEG = 6
LERC = "lerc"
# fmt: off
BYTE_CODECS: Mapping[int, str] = {
    1: "", 5: "imagecodecs_lzw", 8: "numcodecs.zlib", 32773: "imagecodecs_packbits",
    32946: "numcodecs.zlib", 34925: "numcodecs.lzma", 34926: "numcodecs.zstd",
    50000: "numcodecs.zstd", 50013: "numcodecs.zlib",
}
"""Byte codecs, by compression number."""
IMAGE_CODECS: Mapping[int, str] = {
    2: "ccittrle", 3: "ccittfax3", 4: "ccittfax4", 6: "jpeg", 7: "jpeg", 33007: "jpeg",
    34892: "jpeg", 22610: "jpegxr", 34934: "jpegxr", 33003: "jpeg2k", 33004: "jpeg2k",
    33005: "jpeg2k", 34712: "jpeg2k", 34887: LERC, 34927: "webp", 50001: "webp", 34933: "png",
    50002: "jpegxl", 52546: "jpegxl",
}
"""Image codecs, by compression number."""
PREDICTORS: Mapping[int, tuple[str, int]] = {
    1: ("", 0), 2: ("delta", 1), 34892: ("delta", 2), 34893: ("delta", 4),
    3: ("floatpred", 1), 34894: ("floatpred", 2), 34895: ("floatpred", 4),
}
"""Predictors by number: name, and distance of the compared pixels."""
# fmt: on
YCBCR, RGB, CMYK, GREY, CMYK_OUT = 6, 2, 5, 1, 4
"""Colours: photometric interpretations of TIFF; the last one is CMYK in imagecodecs."""


def decoder_of(
    ifd: Ifd, page: Any, dtype: np.dtype, axes: str, segment: tuple[int, ...]
) -> tuple[tools.Decoder | tools.BlockDecoder, str]:
    """Return the decoder of a segment, and why it cannot decode; empty if it can.

    Parameters
    ----------
    ifd : Ifd
    page : TiffPage
        The page that tifffile reads from it.
    dtype : numpy.dtype
        Type of the pixels, in native byte order.
    axes, segment : str, tuple of int
        Axes and shape of a stored strip or tile.
    """
    order = ifd.source.flavour.order
    stored = np.dtype(dtype.newbyteorder(order).str)  # canonical dtype, equal after pickling
    compression, predictor = int(page.compression), int(page.predictor)
    if compression == predictor == page.fillorder == 1 and page.bitspersample in WHOLE_BYTES:
        return tools.plain(stored), _problem(ifd, page)
    problem = _problem(ifd, page)
    codecs = [] if problem else _codecs(ifd, page, axes)
    called = "tile" if page.is_tiled else "strip"
    return chunk_decoder(codecs, segment, stored, called=called), problem


def _codecs(ifd: Ifd, page: Any, axes: str) -> list[Codec]:
    """Return the codec documents of a segment, in encoding order."""
    compression, reverse = int(page.compression), page.fillorder == 2
    name = IMAGE_CODECS.get(compression)
    if name == "jpeg":
        return [_codec("imagecodecs_jpeg", **_jpeg(page))]  # JPEG has its own bit order
    reversed_bits = [_codec("imagecodecs_bitorder")] * reverse
    axis, bits = axes.index("x") - len(axes), page.bitspersample
    predictor, distance = PREDICTORS.get(int(page.predictor), ("", 0))
    codecs = [_codec(f"imagecodecs_{predictor}", axis=axis, dist=distance)] if predictor else []
    if name is not None:  # only LERC uses the predictor; others ignore the tag
        return [*(codecs if name == LERC else []), _image(name, page), *reversed_bits]
    # The output of this predictor has no byte order.
    little = ifd.source.flavour.order == "<" or (predictor == "floatpred" and bits in WHOLE_BYTES)
    apart = {"apart": True} if axis == -2 and bits == 1 and _is_of_tifffile(ifd) else {}
    codecs.append(_codec(ROWS, axis=axis, bits=bits, endian="little" if little else "big", **apart))
    packer = BYTE_CODECS[compression]
    return [*codecs, *([_codec(packer)] if packer else []), *reversed_bits]


def _is_of_tifffile(ifd: Ifd) -> bool:
    """Return whether tifffile wrote the file; it packs the bits of each sample separately."""
    first = ifd.source.ifd(next(ifd.source.chain()))
    values = first.small_values((SOFTWARE,), MOST_SOFTWARE)
    return SOFTWARE in values and values[SOFTWARE][1].startswith(b"tifffile")


def _codec(name: str, **configuration: Any) -> Codec:
    return {"name": name, "configuration": configuration}


def _image(name: str, page: Any) -> Codec:
    options: Codec = {}
    if name == "webp":
        options["hasalpha"] = page.planarconfig == 1 and page.samplesperpixel == 4
    if name.startswith("ccitt"):
        options["width"] = int(page.tilewidth if page.is_tiled else page.imagewidth)
    if name == "ccittfax3":
        options["t4options"] = int(page.tags.valueof(292, 0))
    return _codec(f"imagecodecs_{name}", **options)


def _jpeg(page: Any) -> Codec:
    """Return JPEG tables, stored and decoded colour space."""
    told: Codec = {}
    if page.jpegtables is not None:
        told["tables"] = base64.b64encode(page.jpegtables).decode()
    if page.planarconfig != 1:
        return told | {"colorspace_data": GREY}
    if page.extrasamples:
        return told
    if page.photometric == RGB:
        return told | {"colorspace_jpeg": RGB, "colorspace_data": RGB}
    out = {YCBCR: RGB, CMYK: CMYK_OUT}.get(int(page.photometric))
    return told if out is None else told | {"colorspace_data": out}


def _problem(ifd: Ifd, page: Any) -> str:
    """Return why the segments of a page cannot be decoded; empty if they can."""
    compression = int(page.compression)
    image = IMAGE_CODECS.get(compression)
    if image is None and compression not in BYTE_CODECS:
        return f"compression {compression}"
    if image in (None, LERC) and int(page.predictor) not in PREDICTORS:
        return f"predictor {int(page.predictor)}"
    if image is not None:
        known = compression != OLD_JPEG or _holds_jpeg(ifd)
        return "" if known else f"old-style JPEG compression ({OLD_JPEG}) is not supported"
    if page.is_subsampled:
        return "subsampled colours without JPEG"
    if isinstance(page.bitspersample, tuple):
        return f"samples of {page.bitspersample} bits"
    return "complex integers" if page.sampleformat == 5 else ""


def _holds_jpeg(ifd: Ifd) -> bool:
    """Return whether the first segment is a complete JPEG file."""
    entry = next((ifd.entries[tag] for tag in OFFSETS if tag in ifd.entries), None)
    at = ifd.source.numbers(entry)[0] if entry and entry[2] else 0
    return ifd.source.file.read(2, at) == b"\xff\xd8"
