"""Image codecs, under their names in imagecodecs, and rows of pixels.

TIFF files use them. At the edges of an image, chunks may be stored without the pixels outside;
these codecs then return smaller chunks. imagecodecs decodes all of them, limited only by the size
of its output buffer.

Layout facts: TIFF, revision 6.0; Adobe's technical notes on JPEG and on the floating-point
predictor, as tifffile follows them.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dask_tiled.codecs.limits import check_room
from dask_tiled.model.indexing import Array, Bytes

Config = Mapping[str, Any]
Shape = tuple[int, ...]

ROWS = "dask_tiled.rows"
"""Codec of pixels of ``bits`` bits in rows that begin at a byte; ``axis``, counted from the
last, is the first axis inside a row. ``endian`` applies to pixels of whole bytes. With
``apart``, 1-bit samples alternate in separate bytes."""
PREFIX = "imagecodecs_"
PREDICTORS = f"{PREFIX}delta", f"{PREFIX}floatpred"
"""Codecs that store differences of pixels at the distance ``dist`` along an ``axis``."""
JPEG, WEBP = f"{PREFIX}jpeg", f"{PREFIX}webp"
EER = f"{PREFIX}eer"
FAX = {f"{PREFIX}ccittrle", f"{PREFIX}ccittfax3", f"{PREFIX}ccittfax4"}
OTHERS = {f"{PREFIX}{name}" for name in ("jpeg2k", "jpegxl", "jpegxr", "lerc", "png")}
IMAGE_CODECS = {JPEG, WEBP, EER, *FAX, *OTHERS}
"""Codecs that encode an image, or a part of one, as a file."""
OPTIONS = {WEBP: ("hasalpha",), f"{PREFIX}ccittfax3": ("width", "t4options")}
OPTIONS[EER] = ("skipbits", "horzbits", "vertbits")
OPTIONS |= dict.fromkeys(FAX - {*OPTIONS}, ("width",))
"""Parameters for decoding; other parameters in numcodecs are for encoding."""
RGB = 2  # code of the colour space in imagecodecs


def library() -> Any:
    """Return imagecodecs."""
    import imagecodecs

    return imagecodecs


def unpacked(name: str, config: Config, data: Bytes, out: Bytes) -> Any:
    """Decode a bytes-to-bytes codec of imagecodecs."""
    return getattr(library(), f"{name}_decode")(data, out=out)


def check_predictor(config: Config, shape: Shape) -> None:
    """Check that TIFF supports a predictor.

    Raise a ValueError if TIFF does not support it.
    """
    axis, dist = config["axis"], config["dist"]
    if axis not in range(-len(shape), 0) or dist not in (1, 2, 4):
        raise ValueError(f"differences of pixels at distance {dist} along axis {axis}")


def unpredicted(name: str, config: Config, array: Array) -> Array:
    """Decode a predictor."""
    decode = getattr(library(), f"{name.removeprefix(PREFIX)}_decode")
    # imagecodecs writes into what it decodes: the process would end if it is a mapped file.
    native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
    return np.asarray(decode(native, axis=config["axis"], dist=config["dist"]))


def row_bytes(config: Config, shape: Shape) -> int:
    """Return the number of bytes in a row.

    Raise a ValueError if the configuration is invalid.
    """
    axis, bits, apart = config["axis"], config["bits"], config.get("apart", False)
    known = axis in (-1, -2) and bits in range(1, 129) and (not apart or (axis, bits) == (-2, 1))
    if not known or len(shape) < 1 - axis:
        raise ValueError(f"unsupported rows: along axis {axis}, {bits} bits per pixel")
    if apart:
        return -(-shape[-2] // 8) * shape[-1]
    return -(-math.prod(shape[axis:]) * bits // 8)


def rows_until(config: Config, shape: Shape, inside: Shape) -> int:
    """Return the number of rows up to the last pixel ``inside``."""
    strides = np.cumprod((1, *shape[: config["axis"]][:0:-1]))[::-1]
    return 1 + sum((n - 1) * step for n, step in zip(inside, strides.tolist(), strict=False))


def decoded_rows(config: Config, data: Bytes, shape: Shape, dtype: np.dtype) -> Array:
    """Decode the rows of a chunk; missing rows at the end reduce its shape.

    Raise a ValueError if rows are missing in more than one image.
    """
    axis, bits, row = config["axis"], config["bits"], row_bytes(config, shape)
    count = math.prod(shape[:axis])
    rows = min(count, len(data) // row)
    if rows < count:
        if count != shape[axis - 1]:
            raise ValueError(f"{len(data)} bytes")
        shape = (*shape[: axis - 1], rows, *shape[axis:])
    data = data[: rows * row]
    order: Literal["<", ">"] = ">" if config.get("endian") == "big" else "<"
    if bits == 8 * dtype.itemsize:
        pixels = data != 0 if dtype.kind == "b" else data.view(dtype.newbyteorder(order))
        return pixels.reshape(shape)
    native = dtype.newbyteorder("=")
    if config.get("apart"):
        pixels = np.unpackbits(data.reshape(rows, -1, shape[-1]), axis=1, count=shape[-2])
    elif bits == 24 and dtype.kind == "f":
        pixels = library().float24_decode(data.data, byteorder=order)
    else:
        unsigned = native if dtype.kind == "b" else np.dtype(f"u{dtype.itemsize}")
        run = math.prod(shape[axis:])
        pixels = library().packints_decode(data, unsigned, bits, runlen=run).view(native)
        if dtype.kind == "i":
            unused = 8 * dtype.itemsize - bits
            pixels = pixels << unused >> unused  # extend the sign
    return np.asarray(pixels, native).reshape(shape)


def decoded_image(
    name: str, config: Config, data: Bytes, shapes: Sequence[Shape], dtype: np.dtype
) -> Array:
    """Decode an image whose shape is the first of ``shapes`` that fits.

    Raise a ValueError if no shape fits. imagecodecs may raise other errors.
    """
    problem: Exception | None = None
    for shape in dict.fromkeys(shapes):
        try:
            return _decoded_image(name, config, data, shape, dtype)
        except Exception as error:  # noqa: BLE001 - codecs raise many errors
            problem = problem or error
    raise problem or ValueError("no shape")


def _decoded_image(name: str, config: Config, data: Bytes, shape: Shape, dtype: np.dtype) -> Array:
    short = name.removeprefix(PREFIX)
    options: dict[str, Any] = {one: config[one] for one in OPTIONS.get(name, ()) if one in config}
    check_room(short, len(data), math.prod(shape) * dtype.itemsize)
    pixels = np.empty(shape, "u1" if dtype.kind == "b" else dtype.newbyteorder("="))
    out = pixels
    if name == EER:  # adds events to what is there
        out = pixels.view(bool).reshape(-1, shape[-1])
        out[:], options["shape"] = False, out.shape
    elif name == JPEG:
        options = _of_jpeg(data, config)
        # JPEG headers cannot store larger sides.
        options["shape"] = tuple(n for n in shape if n > 1)[:2] if max(shape) > 65500 else None
    elif name in FAX:
        options["height"] = pixels.size // options["width"]
        out = pixels.reshape(-1, options["width"])
    getattr(library(), f"{short}_decode")(data, **options, out=out)
    return pixels != 0 if dtype.kind == "b" else pixels  # some encoders write 255 for true


def _of_jpeg(data: Bytes, config: Config) -> dict[str, Any]:
    """Return options of the JPEG decoder; JFIF files imply their colour space."""
    tables, stored = config.get("tables"), config.get("colorspace_jpeg")
    return {
        "tables": None if tables is None else base64.b64decode(tables),
        "colorspace": None if stored == RGB and data[6:10].tobytes() == b"JFIF" else stored,
        "outcolorspace": config.get("colorspace_data"),
    }
