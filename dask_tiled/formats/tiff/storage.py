"""Codecs of the pixels in strips and tiles."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_tiled.codecs.chunks import chunk_decoder
from dask_tiled.codecs.image_codecs import EER, OPTIONS, ROWS
from dask_tiled.formats import tools
from dask_tiled.formats.tiff import eer
from dask_tiled.formats.tiff import pixel_tags as tag
from dask_tiled.formats.tiff.ifd import OFFSETS, Ifd

Codec = dict[str, Any]

SOFTWARE, MOST_SOFTWARE = 305, 256
"""Tag of the program that wrote the file, on the first page, and maximum bytes of its name."""
WHOLE_BYTES = {(8,), (16,), (32,), (64,), (128,)}
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
CMYK, GREY, CMYK_OUT = 5, 1, 4
"""Colours: photometric interpretations of TIFF; the last one is CMYK in imagecodecs."""


def decoder_of(
    ifd: Ifd, tags: tag.PixelTags, dtype: np.dtype, segment: tuple[int, ...]
) -> tuple[tools.Decoder | tools.BlockDecoder, str]:
    """Return the decoder of segments of a shape, and why it cannot decode; empty if it can.

    ``dtype`` is in native byte order.
    """
    order = ifd.source.flavour.order
    stored = np.dtype(dtype.newbyteorder(order).str)  # canonical dtype, equal after pickling
    problem = _problem(ifd, tags)
    is_plain = {*map(tags.__getitem__, (tag.COMPRESSION, tag.PREDICTOR, tag.FILL_ORDER))} == {1}
    if is_plain and tags.of_samples(tag.BITS) in WHOLE_BYTES:
        return tools.plain(stored), problem
    codecs = [] if problem else _codecs(ifd, tags)
    called = "tile" if tag.TILE_WIDTH in tags else "strip"
    return chunk_decoder(codecs, segment, stored, called=called), problem


def _codecs(ifd: Ifd, tags: tag.PixelTags) -> list[Codec]:
    """Return the codec documents of a segment, in encoding order."""
    name = IMAGE_CODECS.get(tags[tag.COMPRESSION])
    if name == "jpeg":
        return [_codec("imagecodecs_jpeg", **_jpeg(tags))]  # JPEG has its own bit order
    if bits_of_codes := _bits_of_codes(ifd, tags):
        options = zip(OPTIONS[EER], bits_of_codes, strict=True)
        return [_codec(EER, **dict(options))]
    reversed_bits = [_codec("imagecodecs_bitorder")] * (tags[tag.FILL_ORDER] == 2)
    axis = tags.axes.index("x") - len(tags.axes)
    predictor, distance = PREDICTORS.get(tags[tag.PREDICTOR], ("", 0))
    codecs = [_codec(f"imagecodecs_{predictor}", axis=axis, dist=distance)] if predictor else []
    if name is not None:  # only LERC uses the predictor; others ignore the tag
        return [*(codecs if name == LERC else []), _image(name, tags), *reversed_bits]
    # The output of this predictor has no byte order.
    bits = tags.of_samples(tag.BITS)
    swapped = predictor == "floatpred" and bits in WHOLE_BYTES
    endian = "little" if swapped or ifd.source.flavour.order == "<" else "big"
    apart = {"apart": True} if axis == -2 and bits == (1,) and _is_of_tifffile(ifd) else {}
    codecs.append(_codec(ROWS, axis=axis, bits=bits[0], endian=endian, **apart))
    packer = BYTE_CODECS[tags[tag.COMPRESSION]]
    return [*codecs, *([_codec(packer)] if packer else []), *reversed_bits]


def _is_of_tifffile(ifd: Ifd) -> bool:
    """Return whether tifffile wrote the file; it packs the bits of each sample separately."""
    values = ifd.source.first.small_values((SOFTWARE,), MOST_SOFTWARE)
    return SOFTWARE in values and values[SOFTWARE][1].startswith(b"tifffile")


def _codec(name: str, **configuration: Any) -> Codec:
    return {"name": name, "configuration": configuration}


def _image(name: str, tags: tag.PixelTags) -> Codec:
    options: Codec = {}
    if name == "webp":
        options["hasalpha"] = tags.interleaved and tags[tag.SAMPLES] == 4
    if name.startswith("ccitt"):
        options["width"] = tags.segment[3]
    if name == "ccittfax3":
        options["t4options"] = tags[tag.FAX_OPTIONS]
    return _codec(f"imagecodecs_{name}", **options)


def _jpeg(tags: tag.PixelTags) -> Codec:
    """Return JPEG tables, stored and decoded colour space."""
    told: Codec = {}
    if tags.jpeg_tables:
        told["tables"] = base64.b64encode(tags.jpeg_tables).decode()
    if not tags.interleaved:
        return told | {"colorspace_data": GREY}
    if tag.EXTRA_SAMPLES in tags:
        return told
    if tags[tag.PHOTOMETRIC] == tag.RGB:
        return told | {"colorspace_jpeg": tag.RGB, "colorspace_data": tag.RGB}
    out = {tag.YCBCR: tag.RGB, CMYK: CMYK_OUT}.get(tags[tag.PHOTOMETRIC])
    return told if out is None else told | {"colorspace_data": out}


def _problem(ifd: Ifd, tags: tag.PixelTags) -> str:
    """Return why the segments of a page cannot be decoded; empty if they can."""
    compression, predictor = tags[tag.COMPRESSION], tags[tag.PREDICTOR]
    known, image = compression in BYTE_CODECS, IMAGE_CODECS.get(compression)
    bits, formats = (", ".join(map(str, tags.of_samples(one))) for one in (tag.BITS, tag.FORMAT))
    events = _bits_of_codes(ifd, tags) is not None
    old = compression == tag.OLD_JPEG and not _holds_jpeg(ifd)
    problems = {
        f"compression {compression}": not (known or image or events),
        "electron events in several strips": events and tags.segment[2:4] != tags.full[2:4],
        "electron events that are not bits": events and bits != "1",
        f"predictor {predictor}": (known or image == LERC) and predictor not in PREDICTORS,
        f"old-style JPEG compression ({tag.OLD_JPEG}) is not supported": old,
        "subsampled colours without JPEG": known and tags.subsampled,
        "complex integers": known and formats == str(tag.COMPLEX_INTEGER),
        f"samples of {bits} bits in format {formats}": tags.dtype is None,
    }
    return next((problem for problem, holds in problems.items() if holds), "")


def _bits_of_codes(ifd: Ifd, tags: tag.PixelTags) -> tuple[int, ...] | None:
    """Return the bits of the codes of electron events; None for other pages."""
    compression = tags[tag.COMPRESSION]
    return eer.code_bits(ifd, compression) if compression in eer.COMPRESSIONS else None


def _holds_jpeg(ifd: Ifd) -> bool:
    """Return whether the first segment is a complete JPEG file."""
    entry = ifd.first_of(OFFSETS)
    at = ifd.source.numbers(entry)[0] if entry and entry[2] else 0
    return ifd.source.file.read(2, at) == b"\xff\xd8"
