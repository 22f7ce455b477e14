"""Messages of DECTRIS stream V2, in CBOR.

Facts of the protocol: "Stream V2" and "CBOR Tag for DECTRIS Compressed Byte Strings" in the public
documentation of DECTRIS; RFC 8746 on typed arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_tiled.live.series import (
    PackedArray,
    SeriesEnd,
    SeriesImage,
    SeriesMessage,
    SeriesStart,
    WrongMessageError,
    checked,
    packed,
    whole,
)

ARRAY, COMPRESSED = 40, 56500
TYPED = {64: "u1", 65: ">u2", 66: ">u4", 68: "u1", 69: "<u2", 70: "<u4"}
"""Dtypes of pixels by tag."""
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
