"""The fields of a sample file: encoding values to records and bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.formats.beton import structure
from dask_tiled.model.indexing import Array, Index

Values = Any
"""Values of some samples: an array, or a sequence."""
Modes = Literal["raw", "jpg", "smart", "proportion"]
MOST_PIXELS = {structure.RAW: (1 << 16) - 1, structure.JPEG: 65500}
"""Largest side of an image, as records can store it, and as JPEG libraries accept it."""


class Column(NamedTuple):
    """The encoded values of a field for some samples."""

    records: Array
    """The records; pointers are filled in when bytes are written."""
    payload: Array | list[Any] | None = None
    """The bytes: rows of equal length, or one object for each sample; None for numbers."""

    @property
    def sizes(self) -> Index:
        """Bytes of each sample."""
        if isinstance(self.payload, np.ndarray):
            return np.full(len(self.payload), self.payload.shape[1], np.int64)
        return np.fromiter(map(len, self.payload or ()), np.int64)


Encode = Callable[[Values, Sequence[int]], Column]
"""Encodes the values of samples, given with their numbers in the file, as a column."""
Encoders = Mapping[structure.Field, Encode]


@dataclass(frozen=True, slots=True)
class ImageField:
    """A field of RGB images: uint8 arrays of shape (height, width, 3), or the bytes of JPEG files.

    Attributes
    ----------
    mode : {"raw", "jpg", "smart", "proportion"}
        Whether images are stored as pixels or as JPEG; "smart" stores those of more than
        `smart_threshold` bytes as JPEG, "proportion" a random share of them. JPEG
        files that are not resized are stored unchanged.
    quality : int
        Quality of JPEG, 1 to 100. JPEG is lossy, and decoders differ: FFCV's pixels differ by up to
        7 of 255 from Pillow's at quality 95.
    max_resolution : int, optional
        Longest side in pixels; larger images are shrunk to it.
    smart_threshold : int, optional
        Size in bytes above which "smart" stores JPEG; by default never.
    proportion : float
        Share of the images that become JPEG.

    Examples
    --------
    >>> import dask_tiled
    >>> dask_tiled.ImageField("jpg", quality=95).quality
    95
    """

    mode: Modes = "raw"
    quality: int = 90
    max_resolution: int | None = None
    smart_threshold: int | None = None
    proportion: float = 0.5

    def __post_init__(self) -> None:
        if self.mode not in get_args(Modes):
            raise DatasetError("invalid mode", expected=get_args(Modes), found=repr(self.mode))
        check_whole("quality", self.quality, least=1, most=100)
        for name in ("max_resolution", "smart_threshold"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least=1)
        if not isinstance(self.proportion, (float, int)) or not 0 <= self.proportion <= 1:
            raise DatasetError("invalid proportion", expected="0 to 1", found=repr(self.proportion))


def field_of(name: str, kind: Any, seed: int) -> tuple[structure.Field, Encode]:
    """Return a field and its encoder; ``kind`` is a type as :func:`to_beton` takes it.

    Raise a DatasetError if the name or the type is invalid, or cannot be stored.
    """
    if not isinstance(name, str) or not name.isascii() or not name or "\0" in name:
        raise DatasetError("invalid name of a field", expected="ASCII", found=repr(name))
    where = f"field {name!r}"
    if isinstance(kind, str) and kind == "image":
        kind = ImageField()
    if isinstance(kind, ImageField):
        return structure.Field(structure.IMAGE, name), partial(_images, kind, seed)
    if isinstance(kind, str) and kind in _KINDS:
        type_id, encode = _KINDS[kind]
        return structure.Field(type_id, name), encode
    try:
        dtype, shape = kind
        dtype = np.dtype(dtype).newbyteorder("<")  # FFCV refuses big-endian pixels
        shape = tuple(int(n) for n in shape)
    except (TypeError, ValueError) as error:
        expected = f"{', '.join(_KINDS)}, image, an ImageField, or (dtype, shape)"
        problem = "invalid type of a field"
        raise DatasetError(problem, where=where, expected=expected, found=repr(kind)) from error
    try:
        arguments = structure.pack_array(dtype, shape)
        stored = structure.parse_array(arguments) == (dtype, shape)
    except ValueError:
        stored = False
    if not stored or 0 in shape or not shape:
        raise DatasetError(
            "arrays of this dtype or shape cannot be stored",
            where=where,
            expected="numbers, with 1 to 32 axes, none of them empty",
            found=f"{dtype} of shape {shape}",
            hint=None if shape else 'Pass types=, such as "bytes" or "json".',
        )
    return structure.Field(structure.ARRAY, name, arguments), partial(_arrays, dtype, shape)


def kind_of(values: Any) -> Any:
    """Return the field type for an array of samples."""
    dtype, shape = values.dtype, values.shape[1:]
    if dtype.kind in "biu" and not shape:
        return "int"
    is_float = dtype.kind == "f" and dtype.itemsize <= structure.STORED[structure.FLOAT].itemsize
    return "float" if is_float and not shape else (dtype, shape)


def _numbers(type_id: int, values: Values, _: Sequence[int]) -> Column:
    """Encode numbers, which are stored in the records."""
    dtype = structure.STORED[type_id]
    if not isinstance(values, np.ndarray):  # tar files hold numbers as text
        parse = int if dtype.kind == "i" else float
        values = np.array([parse(one) if isinstance(one, bytes) else one for one in values])
    if values.dtype.kind not in ("biu" if dtype.kind == "i" else "biuf") or values.ndim != 1:
        raise ValueError(
            f"{values.dtype} of shape {values.shape[1:]} instead of a number of {dtype}"
        )
    stored = values.astype(dtype)
    if dtype.kind == "i" and (stored != values).any():
        raise ValueError(f"a number beyond {dtype}")
    return Column(stored)


def _bytes(values: Values, _: Sequence[int]) -> Column:
    payload = [memoryview(one).cast("B").tobytes() for one in values]
    records = np.zeros(len(payload), structure.REGION)
    records["size"] = [*map(len, payload)]
    # FFCV finds lengths by pointer, so pointers must be unique.
    return Column(records, [one or b"\0" for one in payload])


def _json(values: Values, numbers: Sequence[int]) -> Column:
    # Tar files hold JSON as text.
    plain = [json.loads(one) if isinstance(one, bytes) else one for one in values]
    return _bytes([json.dumps(one).encode() + b"\0" for one in plain], numbers)


_KINDS: dict[str, tuple[int, Encode]] = {
    "float": (structure.FLOAT, partial(_numbers, structure.FLOAT)),
    "int": (structure.INT, partial(_numbers, structure.INT)),
    "bytes": (structure.BYTES, _bytes),
    "json": (structure.JSON, _json),
}


def _arrays(dtype: np.dtype, shape: tuple[int, ...], values: Values, _: Sequence[int]) -> Column:
    """Encode arrays of one dtype and shape; only the byte order may change."""
    stacked = isinstance(values, np.ndarray) and not values.dtype.hasobject
    rows = values if stacked else [_array(one) for one in values]
    for one in rows[:1] if stacked else rows:
        if one.dtype.newbyteorder("=") != dtype.newbyteorder("=") or one.shape != shape:
            raise ValueError(f"{one.dtype} of shape {one.shape}, not {dtype} of {shape}")
    stored = np.ascontiguousarray(rows if stacked else np.stack(rows), dtype)
    payload = stored.reshape(len(stored), -1).view(np.uint8)
    return Column(np.zeros(len(stored), structure.STORED[structure.ARRAY]), payload)


def _array(one: Any) -> Array:
    """Return an array; tar files hold arrays as .npy."""
    is_file = isinstance(one, bytes)
    return np.asarray(np.load(io.BytesIO(one), allow_pickle=False) if is_file else one)


def _images(options: ImageField, seed: int, values: Values, numbers: Sequence[int]) -> Column:
    records = np.zeros(len(values), structure.PIXELS)
    payload = []
    for k, (value, number) in enumerate(zip(values, numbers, strict=True)):
        mode, (width, height), data = _image(value, options, (seed, number))
        records[k] = mode, width, height, 0
        payload.append(data)
    return Column(records, payload)


def _image(
    value: Any, options: ImageField, chance: tuple[int, int]
) -> tuple[int, tuple[int, int], bytes]:
    """Return mode, size and bytes of an image."""
    from PIL import Image

    image = _opened(value)
    size: Any = image.size
    longest, most = max(size), options.max_resolution
    if most is not None and longest > most:
        size = tuple(max(1, round(n * most / longest)) for n in size)
    mode = structure.JPEG if _is_jpeg(3 * size[0] * size[1], options, chance) else structure.RAW
    if max(size) > MOST_PIXELS[mode]:
        raise ValueError(f"an image of {size} pixels, one side of which is too long")
    of_a_file = isinstance(value, bytes) and size == image.size and image.mode == "RGB"
    if mode == structure.JPEG and of_a_file and image.format == "JPEG":
        return mode, size, value
    rgb = image.convert("RGB")
    if rgb.size != size:
        rgb = rgb.resize(size, Image.Resampling.BOX)
    if mode == structure.RAW:
        return mode, size, rgb.tobytes()
    stream = io.BytesIO()
    rgb.save(stream, "JPEG", quality=options.quality)
    return mode, size, stream.getvalue()


def _opened(value: Any) -> Any:
    """Open a Pillow image; refuse images that RGB cannot represent."""
    from PIL import Image

    image = Image.open(io.BytesIO(value)) if isinstance(value, bytes) else value
    if not isinstance(image, Image.Image):
        pixels = np.asarray(value)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ValueError(f"{pixels.dtype} of shape {pixels.shape}, not an 8-bit RGB image")
        if 0 in pixels.shape:
            raise ValueError(f"an image of shape {pixels.shape}")
        image = Image.fromarray(pixels)
    if image.mode[0] in "IF" or image.has_transparency_data:
        raise ValueError(f"an image of mode {image.mode}, not 8-bit RGB")
    return image


def _is_jpeg(nbytes: int, options: ImageField, chance: tuple[int, int]) -> bool:
    if options.mode == "smart":
        return options.smart_threshold is not None and nbytes > options.smart_threshold
    if options.mode == "proportion":
        return np.random.default_rng(chance).random() < options.proportion
    return options.mode == "jpg"
