"""A series of a DECTRIS detector: what its messages hold, whatever their encoding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

MOST_SIDE = 1 << 16
"""Largest height or width of a frame."""
COMPRESSIONS = "bslz4", "lz4", ""
"""Compressions of frames, framed as by the filters of HDF5; none."""


class PackedArray(NamedTuple):
    """An array as it was sent, perhaps compressed."""

    shape: tuple[int, int]
    dtype: np.dtype
    compression: str
    data: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the pixels."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize


class SeriesStart(NamedTuple):
    """The start of a series."""

    series: int
    frames: int
    """Number of frames; 0 if unknown."""
    channels: tuple[str, ...]
    facts: Mapping[str, Any]
    """Numbers, texts and booleans, by name."""
    masks: Mapping[str, PackedArray]
    """Pixel masks by channel."""


class SeriesImage(NamedTuple):
    """The frames of all channels of an exposure."""

    series: int
    number: int
    channels: Mapping[str, PackedArray]


class SeriesEnd(NamedTuple):
    """The end of a series."""

    series: int


SeriesMessage: TypeAlias = SeriesStart | SeriesImage | SeriesEnd | None
"""What a message holds; None if nothing of it is recorded."""


class AlikeImages(Protocol):
    """Finds images that differ from one before by their number, times and pixels only."""

    def find(
        self, data: memoryview, at: int, number: int, most: int
    ) -> tuple[list[list[memoryview]], int]:
        """Find images that follow one another, in messages as ZeroMQ sends them.

        Parameters
        ----------
        data : memoryview
            Bytes of the stream.
        at : int
            Where a message begins.
        number : int
            Number of the first image.
        most : int
            Number of images to find at most.

        Returns
        -------
        list of lists of memoryviews
            The pixels of each image by channel.
        int
            The end of the last image.
        """


class WrongMessageError(Exception):
    """A message has an invalid part: part, expected, found."""


def checked(told: Any, name: str, *kinds: type) -> Any:
    """Return a value of a message after checking its type.

    Raise a WrongMessageError if it is missing or of another type.
    """
    value = told.get(name) if isinstance(told, dict) else None
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise WrongMessageError(name, kinds[0].__name__, repr(value)[:80])
    return value


def whole(told: Any, name: str, *, least: int = 0) -> int:
    """Return a whole number of a message.

    Raise a WrongMessageError if it is missing, none, or less than ``least``.
    """
    value: int = checked(told, name, int)
    if value < least:
        raise WrongMessageError(name, f"{least} or more", value)
    return value


def packed(shape: Any, dtype: Any, compression: str, data: Any) -> PackedArray:
    """Return an array of a message after checking that its parts fit.

    Raise a WrongMessageError if they do not.
    """
    sizes: Any = tuple(shape) if isinstance(shape, list | tuple) else ()
    if len(sizes) != 2 or not all(isinstance(n, int) and 0 < n <= MOST_SIDE for n in sizes):
        raise WrongMessageError("shape", f"2 sizes up to {MOST_SIDE}", repr(shape)[:80])
    if compression not in COMPRESSIONS:
        raise WrongMessageError("compression", ", ".join(COMPRESSIONS[:2]), repr(compression)[:80])
    if not isinstance(data, bytes):
        raise WrongMessageError("pixels", "bytes", type(data).__name__)
    array = PackedArray(sizes, dtype, compression, data)
    told = int.from_bytes(data[:8]) if compression else len(data)
    if told != array.nbytes:
        raise WrongMessageError("bytes of the pixels", array.nbytes, told)
    return array


def pixels_like(frame: PackedArray, head: bytes, width: int) -> bytes:
    """Return the pattern of a head and the length of pixels like a frame's, in some bytes.

    The length is its last group. The compressed form begins with the bytes of the pixels.
    """
    if not frame.compression:
        return b"%b(%b)" % (re.escape(head), re.escape(len(frame.data).to_bytes(width)))
    return b"%b(.{%d})(?=%b)" % (re.escape(head), width, re.escape(frame.nbytes.to_bytes(8)))
