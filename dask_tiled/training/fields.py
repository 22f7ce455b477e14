"""The fields of a sample file: how the values of some samples become records and bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import DatasetError, check_whole
from dask_tiled.formats.beton import structure
from dask_tiled.model.indexing import Array

Values = Any
"""Values of some samples: an array of them, or a sequence."""
Modes = Literal["raw", "jpg", "smart", "proportion"]


class Column(NamedTuple):
    """A field of some samples, as it is stored."""

    records: Array
    """What the records say of them; where their bytes lie is filled in when it is known."""
    payload: Array | list[Any] | None = None
    """Their bytes: rows of equal length, or one object for each; nothing is stored of numbers."""

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each sample."""
        if isinstance(self.payload, np.ndarray):
            return np.full(len(self.payload), self.payload.shape[1], np.int64)
        return np.fromiter(map(len, self.payload or ()), np.int64)


MOST_JPEG = 65500
"""Pixels along a side with which JPEG libraries do."""

Encode = Callable[[Values, Sequence[int]], Column]
"""Makes a column of values of samples, and their numbers."""


@dataclass(frozen=True, slots=True)
class ImageField:
    """A field of RGB images: uint8 arrays of shape (height, width, 3), or the bytes of JPEG files.

    Attributes
    ----------
    mode : {"raw", "jpg", "smart", "proportion"}
        Whether images are stored as pixels or as JPEG; "smart" stores those of more than
        `smart_threshold` bytes as JPEG, "proportion" so large a share of them, by chance. JPEG
        files that need no other size are stored as they are.
    quality : int
        Quality of JPEG, 1 to 100. JPEG is lossy, and pixels depend on the decoder by a few values:
        FFCV's differ by up to 7 of 255 from Pillow's at quality 95.
    max_resolution : int, optional
        Images with a longer side are made smaller, so that it has so many pixels.
    smart_threshold : int, optional
        Bytes of pixels; without it "smart" stores pixels.
    proportion : float
        Share of the images that become JPEG.
    """

    mode: Modes = "raw"
    quality: int = 90
    max_resolution: int | None = None
    smart_threshold: int | None = None
    proportion: float = 0.5

    def __post_init__(self) -> None:
        if self.mode not in get_args(Modes):
            raise DatasetError("no such mode", expected=get_args(Modes), found=repr(self.mode))
        check_whole("quality", self.quality, least=1, most=100)
        for name in ("max_resolution", "smart_threshold"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least=1)
        if not isinstance(self.proportion, (float, int)) or not 0 <= self.proportion <= 1:
            raise DatasetError("no share", expected="0 to 1", found=repr(self.proportion))


class Field(NamedTuple):
    """A field, as the file describes it."""

    name: str
    type_id: int
    arguments: bytes
    encode: Encode

    @property
    def descriptor(self) -> bytes:
        """What the file says of it."""
        name = self.name.encode("ascii")[:16].ljust(16, b"\0")
        return bytes([self.type_id]) + name + self.arguments.ljust(1024, b"\0")


def field_of(name: str, kind: Any, seed: int) -> Field:
    """Make a field of what a user calls its type.

    Parameters
    ----------
    name : str
    kind : str, ImageField, or (dtype, shape)
        "float", "int", "bytes", "json" or "image"; or type and shape of arrays.
    seed : int
        For what is done by chance.

    Raises
    ------
    DatasetError
        There is no such type, or a name or a type that cannot be stored.
    """
    if not isinstance(name, str) or not name.isascii() or not name or "\0" in name:
        raise DatasetError("a field cannot have that name", expected="ASCII", found=repr(name))
    if isinstance(kind, str) and kind == "image":
        kind = ImageField()
    if isinstance(kind, ImageField):
        return Field(name, structure.IMAGE, b"", _Images(kind, seed))
    if isinstance(kind, str) and kind in _KINDS:
        type_id, encode = _KINDS[kind]
        return Field(name, type_id, b"", encode)
    try:
        dtype, shape = kind
        dtype = np.dtype(dtype).newbyteorder("<")  # FFCV refuses the other order
        shape = tuple(int(n) for n in shape)
    except (TypeError, ValueError) as error:
        raise DatasetError(
            "no type of fields",
            where=f"field {name!r}",
            expected=f"{', '.join(_KINDS)}, image, an ImageField, or (dtype, shape)",
            found=repr(kind),
        ) from error
    try:
        arguments = structure.pack_array(dtype, shape)
        stored = structure.parse_array(arguments) == (dtype, shape)
    except ValueError:
        stored = False
    if not stored or 0 in shape or not shape:
        raise DatasetError(
            "such arrays cannot be stored",
            where=f"field {name!r}",
            expected="numbers, in 1 to 32 axes, none of which is empty",
            found=f"{dtype} of shape {shape}",
            hint=None if shape else 'Say in types what they are, such as "bytes" or "json".',
        )
    return Field(name, structure.ARRAY, arguments, _Arrays(dtype, shape))


def kind_of(values: Any) -> Any:
    """Find out which type of field suits an array of samples."""
    dtype, shape = values.dtype, values.shape[1:]
    if dtype.kind in "biu" and not shape:
        return "int"
    if (
        dtype.kind == "f"
        and dtype.itemsize <= structure.STORED[structure.FLOAT].itemsize
        and not shape
    ):
        return "float"
    return (dtype, shape)


def _numbers(dtype: np.dtype, values: Values, _: Sequence[int]) -> Column:
    found: Array
    if isinstance(values, np.ndarray):
        found = values
    else:  # what a tar file holds is text
        parse = int if dtype.kind == "i" else float
        found = np.array([parse(one) if isinstance(one, bytes) else one for one in values])
    if found.dtype.kind not in ("biu" if dtype.kind == "i" else "biuf") or found.ndim != 1:
        raise ValueError(f"{found.dtype} of shape {found.shape[1:]}, not a number of {dtype}")
    stored = found.astype(dtype)
    if dtype.kind == "i" and (stored != found).any():
        raise ValueError(f"a number beyond {dtype}")
    return Column(stored)


def _floats(values: Values, numbers: Sequence[int]) -> Column:
    return _numbers(structure.STORED[structure.FLOAT], values, numbers)


def _ints(values: Values, numbers: Sequence[int]) -> Column:
    return _numbers(structure.STORED[structure.INT], values, numbers)


def _regions(payload: list[bytes]) -> Column:
    records = np.zeros(len(payload), structure.REGION)
    records["size"] = [len(one) for one in payload]
    # FFCV looks up the length of a value by its place, which no other value may share.
    return Column(records, [one or b"\0" for one in payload])


def _bytes(values: Values, _: Sequence[int]) -> Column:
    return _regions([memoryview(one).cast("B").tobytes() for one in values])


def _json(values: Values, _: Sequence[int]) -> Column:
    # What a tar file holds is text already.
    plain = [json.loads(one) if isinstance(one, bytes) else one for one in values]
    return _regions([json.dumps(one).encode() + b"\0" for one in plain])


_KINDS: dict[str, tuple[int, Encode]] = {
    "float": (structure.FLOAT, _floats),
    "int": (structure.INT, _ints),
    "bytes": (structure.BYTES, _bytes),
    "json": (structure.JSON, _json),
}


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Arrays of one shape, stored in their own type, in little-endian order; nothing is cast."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def __call__(self, values: Values, _: Sequence[int]) -> Column:
        if isinstance(values, np.ndarray) and not values.dtype.hasobject:
            self._check(values.dtype, values.shape[1:])
        else:
            values = np.stack([self._loaded(one) for one in values])
        stored = np.ascontiguousarray(values, self.dtype)
        rows = stored.reshape(len(stored), -1).view(np.uint8)
        return Column(np.zeros(len(stored), structure.STORED[structure.ARRAY]), rows)

    def _check(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        same = dtype.newbyteorder("=") == self.dtype.newbyteorder("=")
        if not same or shape != self.shape:
            raise ValueError(f"{dtype} of shape {shape}, not {self.dtype} of {self.shape}")

    def _loaded(self, one: Any) -> Array:
        if isinstance(one, bytes):
            one = np.load(io.BytesIO(one), allow_pickle=False)
        found = np.asarray(one)
        self._check(found.dtype, found.shape)
        return found


@dataclass(frozen=True, slots=True)
class _Images:
    """RGB images, some of which become JPEG."""

    options: ImageField
    seed: int

    def __call__(self, values: Values, numbers: Sequence[int]) -> Column:
        records = np.zeros(len(values), structure.PIXELS)
        payload = []
        for k, (value, number) in enumerate(zip(values, numbers, strict=True)):
            mode, (width, height), data = self._encoded(value, number)
            records[k] = mode, width, height, 0
            payload.append(data)
        return Column(records, payload)

    def _encoded(self, value: Any, number: int) -> tuple[int, tuple[int, int], Any]:
        from PIL import Image

        options = self.options
        image: Image.Image
        if isinstance(value, bytes):
            image = Image.open(io.BytesIO(value))
        elif isinstance(value, Image.Image):
            image = value
        else:
            pixels = np.asarray(value)
            if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
                raise ValueError(f"{pixels.dtype} of shape {pixels.shape}, no RGB image of bytes")
            if 0 in pixels.shape:
                raise ValueError(f"an image of shape {pixels.shape}")
            image = Image.fromarray(pixels)
        longest, most = max(image.size), options.max_resolution
        shrunk = most is not None and longest > most
        if image.mode[0] in "IF" or image.has_transparency_data:
            raise ValueError(f"an image of mode {image.mode}, no RGB image of bytes")
        size = image.size
        if shrunk:
            size = tuple(max(1, round(n * most / longest)) for n in size)  # type: ignore[operator, assignment]
        jpeg = self._is_jpeg(3 * size[0] * size[1], number)
        if max(size) > (MOST_JPEG if jpeg else 65535):
            raise ValueError(f"an image of {size} pixels, too many along one side")
        if not jpeg:
            return structure.RAW, size, self._sized(image, size).tobytes()
        as_it_is = isinstance(value, bytes) and not shrunk
        if as_it_is and image.format == "JPEG" and image.mode == "RGB":
            return structure.JPEG, size, value
        stream = io.BytesIO()
        self._sized(image, size).save(stream, "JPEG", quality=options.quality)
        return structure.JPEG, size, stream.getvalue()

    def _sized(self, image: Any, size: tuple[int, int]) -> Any:
        from PIL import Image

        rgb = image.convert("RGB")
        return rgb if rgb.size == size else rgb.resize(size, Image.Resampling.BOX)

    def _is_jpeg(self, nbytes: int, number: int) -> bool:
        options = self.options
        if options.mode == "smart":
            return options.smart_threshold is not None and nbytes > options.smart_threshold
        if options.mode == "proportion":
            return np.random.default_rng((self.seed, number)).random() < options.proportion
        return options.mode == "jpg"
