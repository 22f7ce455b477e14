"""Messages of DECTRIS stream V2, in CBOR.

Facts of the protocol: "Stream V2" and "CBOR Tag for DECTRIS Compressed Byte Strings" in the public
documentation of DECTRIS; RFC 8746 on typed arrays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.live.framing import LONG
from dask_tiled.live.series import (
    PackedArray,
    SeriesEnd,
    SeriesImage,
    SeriesMessage,
    SeriesStart,
    WrongMessageError,
    checked,
    packed,
    pixels_like,
    whole,
)

ARRAY, COMPRESSED = 40, 56500
TYPED = {64: "u1", 65: ">u2", 66: ">u4", 68: "u1", 69: "<u2", 70: "<u4"}
"""Dtypes of pixels by tag."""
WIDTHS = {24: 1, 25: 2, 26: 4, 27: 8}
"""Bytes of the number behind the head of an item, by the lowest 5 bits of the head."""
WHOLE, BYTES, TEXT, OTHER = 0, 2, 3, 7
"""Types of items, the highest 3 bits of a head; floats are among the last."""
NUMBER = rb"([\x00-\x17]|\x18.|\x19..|\x1a.{4}|\x1b.{8})"
"""The pattern of a whole number."""
LONGEST = 1 << 12
"""Longest text that is kept as a fact."""
NOT_FACTS = {"type", "channels", "series_id", "pixel_mask", "flatfield", "user_data"}


def read_message(message: bytes) -> SeriesMessage:
    """Return what a message holds.

    Raise a WrongMessageError if it is not one of the protocol.
    """
    import cbor2

    try:
        told = cbor2.loads(message)
    except Exception as error:  # the decoder calls others, with errors of their own
        raise WrongMessageError("encoding", "CBOR", f"{error}"[:80]) from error
    kind = checked(told, "type", str)
    series = whole(told, "series_id")
    if kind == "start":
        return _start(told, series)
    if kind == "image":
        data = checked(told, "data", dict)
        channels = {str(name): _array(one) for name, one in data.items()}
        return SeriesImage(series, whole(told, "image_id"), channels)
    return SeriesEnd(series) if kind == "end" else None


def _start(told: dict[str, Any], series: int) -> SeriesStart:
    channels = tuple(map(str, checked(told, "channels", list, tuple)))
    facts = {str(name): one for name, one in told.items() if name not in NOT_FACTS}
    plain = {name: one for name, one in facts.items() if isinstance(one, str | int | float)}
    thresholds = told.get("threshold_energy")
    if isinstance(thresholds, dict):
        numbers = {str(name): one for name, one in thresholds.items() if isinstance(one, float)}
        plain |= {f"{name}_threshold_energy": one for name, one in numbers.items()}
    masks = told.get("pixel_mask")
    arrays = masks if isinstance(masks, dict) else {}
    return SeriesStart(
        series,
        whole(told, "number_of_images"),
        channels,
        {
            name: one
            for name, one in plain.items()
            if not isinstance(one, str) or len(one) < LONGEST
        },
        {str(name): _array(one) for name, one in arrays.items()},
    )


def _array(item: Any) -> PackedArray:
    """Return a multi-dimensional array."""
    shape, values = _parts(item, ARRAY, 2)
    tag = getattr(values, "tag", None)
    if tag not in TYPED:
        raise WrongMessageError("type of the pixels", f"a tag of {[*TYPED]}", repr(tag)[:80])
    dtype, data, compression = np.dtype(TYPED[tag]), values.value, ""
    if not isinstance(data, bytes):
        compression, itemsize, data = _parts(data, COMPRESSED, 3)
        if compression == "bslz4" and itemsize != dtype.itemsize:
            raise WrongMessageError("element size", dtype.itemsize, repr(itemsize)[:80])
    return packed(shape, dtype, compression, data)


def _parts(item: Any, tag: int, count: int) -> Any:
    """Return the items of a tagged array."""
    value = getattr(item, "value", None)
    found = getattr(item, "tag", None)
    if found != tag or not isinstance(value, list | tuple) or len(value) != count:
        raise WrongMessageError("an array", f"tag {tag} of {count} items", repr(item)[:80])
    return value


class AlikeImagesV2:
    """Finds images like one before, whose parts and frame are given; see :class:`AlikeImages`.

    Their messages have the same items in the same order. Of those before the pixels, whole numbers
    and floats may differ.
    """

    def __init__(self, parts: Sequence[bytes], frame: PackedArray) -> None:
        first, *others = _patterns(parts[0], frame)
        heads = b"%c(.{8})%b" % (LONG, first), *others
        *self._heads, self._tail = (re.compile(head, re.DOTALL) for head in heads)
        groups = [head.groups for head in self._heads]
        self._is_known = groups == [3] + [1] * (len(groups) - 1)

    def find(
        self, data: memoryview, at: int, number: int, most: int
    ) -> tuple[list[list[memoryview]], int]:
        """Find images that follow one another; see :class:`AlikeImages`."""
        images = list[list[memoryview]]()
        while self._is_known and len(images) < most:
            image, end = self._image(data, at, number + len(images))
            if not image:
                break
            images.append(image)
            at = end
        return images, at

    def _image(self, data: memoryview, at: int, number: int) -> tuple[list[memoryview], int]:
        """Return the pixels of an image by channel, none if there is no such image; and its end."""
        image, end, stop = list[memoryview](), len(data), at
        for head in self._heads:
            found = head.match(data, stop, end)
            if found is None:
                return [], at
            if not image:
                told = found[2]
                end = at + 9 + int.from_bytes(found[1])
                if (told[0] if len(told) == 1 else int.from_bytes(told[1:])) != number:
                    return [], at
            start = found.end()
            stop = start + int.from_bytes(found[head.groups])
            image.append(data[start:stop])
        if max(stop, end) > len(data) or self._tail.fullmatch(data, stop, end) is None:
            return [], at
        return image, end


def _patterns(message: bytes, frame: PackedArray) -> list[bytes]:
    """Return the patterns of what is before, between and after the pixels of channels.

    Groups are the number of the image and the length of the pixels.
    """
    patterns, at, name, is_data = [b""], 0, b"", False
    while at < len(message):
        kind, low = divmod(message[at], 32)
        width = WIDTHS.get(low, 0)
        stop = at + 1 + width
        value = int.from_bytes(message[at + 1 : stop]) if width else low
        item = message[at : stop + value if kind in {BYTES, TEXT} else stop]
        if is_data and kind == BYTES:
            patterns[-1] += pixels_like(frame, item[:1], width)
            patterns.append(b"")
        elif kind == WHOLE and not is_data and name != b"series_id":
            patterns[-1] += NUMBER if name == b"image_id" else b"(?:%b)" % NUMBER[1:-1]
        elif kind == OTHER and width and not is_data:
            patterns[-1] += item[:1] + b".{%d}" % width
        else:
            patterns[-1] += re.escape(item)
        name = item[1 + width :] if kind == TEXT else b""
        is_data = is_data or name == b"data"
        at += len(item)
    return patterns
