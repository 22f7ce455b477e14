"""Messages of DECTRIS stream V1: several parts each, in JSON and as bytes.

Facts of the protocol: the SIMPLON API reference of DECTRIS, "Stream".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_tiled.live.framing import LONG, MORE
from dask_tiled.live.series import (
    MOST_SIDE,
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

CHANNEL = "threshold_1"
"""The name of the only channel."""
ENCODING = re.compile(r"(?:bs(?P<bits>8|16|32)-)?(?P<lz4>lz4)?(?P<order>[<>])")
DTYPES = {"uint8": "u1", "uint16": "u2", "uint32": "u4"}
MOST_BLOCK = 1 << 31
NAMES = {
    "photon_energy": "incident_energy", "wavelength": "incident_wavelength",
    "description": "detector_description", "detector_number": "detector_serial_number",
    "x_pixel_size": "pixel_size_x", "y_pixel_size": "pixel_size_y",
}  # fmt: skip
"""Names in stream V2 of facts of the configuration."""
IMAGE_PARTS = 3
NUMBER, HASH = (
    re.compile(rb'(?<="frame":) *([0-9]{1,18})'),
    re.compile(rb'(?<="hash":) *"[0-9a-f]*"'),
)
SIZE = re.compile(rb'(?<="size":) *[0-9]+')
"""What differs between images; the size is that of the part with the pixels, too."""


def read_parts(parts: Sequence[bytes]) -> SeriesMessage:
    """Return what a message of some parts holds.

    The start is one message, or its parts are messages of their own: the configuration comes
    second.

    Raise a WrongMessageError if it is not one of the protocol.
    """
    head = _json(parts[0])
    kind = str(head.get("htype", "")).rpartition("-")[0]
    if kind == "dseries_end":
        return SeriesEnd(whole(head, "series"))
    if kind == "dimage":
        return _image(head, parts)
    if kind == "dheader":
        series = whole(head, "series")
        start = _start(series, _json(parts[1]) if len(parts) > 1 else {})
        return start._replace(masks=_masks(parts[2:]))
    if "nimages" in head:
        return _start(-1, head)
    return None


def _json(part: bytes) -> dict[str, Any]:
    try:
        told = json.loads(part.decode())  # bytes take longer
    except (ValueError, RecursionError) as error:
        raise WrongMessageError("encoding", "JSON", f"{error}"[:80]) from error
    if not isinstance(told, dict):
        raise WrongMessageError("message", "a JSON object", repr(told)[:80])
    return told


def _start(series: int, config: dict[str, Any]) -> SeriesStart:
    frames = 0
    if config:
        frames = whole(config, "nimages", least=1) * whole(config, "ntrigger", least=1)
    facts = {
        NAMES.get(name, name): one
        for name, one in config.items()
        if isinstance(one, str | int | float)
    }
    threshold = facts.pop("threshold_energy", None)
    if isinstance(threshold, int | float):
        facts[f"{CHANNEL}_threshold_energy"] = float(threshold)
    return SeriesStart(series, frames, (CHANNEL,), facts, {})


def _masks(parts: Sequence[bytes]) -> dict[str, PackedArray]:
    """Return the pixel mask among further parts of a start: pairs of a header and bytes."""
    for head, data in zip(parts[::2], parts[1::2], strict=False):
        told = _json(head)
        if str(told.get("htype", "")).startswith("dpixelmask"):
            dtype = DTYPES.get(checked(told, "type", str), "u4")
            shape = checked(told, "shape", list)
            return {CHANNEL: packed(shape[::-1], np.dtype(f"<{dtype}"), "", data)}
    return {}


def _image(head: dict[str, Any], parts: Sequence[bytes]) -> SeriesImage:
    if len(parts) < IMAGE_PARTS:
        raise WrongMessageError("parts of a frame", f"{IMAGE_PARTS} or more", len(parts))
    shape, dtype, compression = _pixels(_json(parts[1]))
    data = parts[2]
    if compression == "lz4":
        data = _framed(data, shape[0] * shape[1] * dtype.itemsize)
    frame = packed(shape, dtype, compression, data)
    return SeriesImage(whole(head, "series"), whole(head, "frame"), {CHANNEL: frame})


def _pixels(told: dict[str, Any]) -> tuple[tuple[int, int], np.dtype, str]:
    """Return shape, dtype and compression of a frame."""
    kind = DTYPES.get(checked(told, "type", str))
    encoding = ENCODING.fullmatch(checked(told, "encoding", str))
    if kind is None or encoding is None:
        found = f"{told['type']!r}, {told['encoding']!r}"[:80]
        raise WrongMessageError("pixels", f"one of {', '.join(DTYPES)}, bs…-lz4<, lz4<", found)
    dtype = np.dtype(encoding["order"] + kind)
    if encoding["bits"] and int(encoding["bits"]) != 8 * dtype.itemsize:
        raise WrongMessageError("element size", f"{8 * dtype.itemsize} bits", encoding["bits"])
    shape = checked(told, "shape", list)
    if len(shape) != 2 or not all(isinstance(n, int) and 0 < n <= MOST_SIDE for n in shape):
        raise WrongMessageError("shape", f"2 sizes up to {MOST_SIDE}", repr(shape)[:80])
    width, height = shape
    return (height, width), dtype, f"{'bs' if encoding['bits'] else ''}{encoding['lz4'] or ''}"


class AlikeImagesV1:
    """Finds images like one before, whose parts and frame are given; see :class:`AlikeImages`."""

    def __init__(self, parts: Sequence[bytes], frame: PackedArray) -> None:
        heads = _loosened(parts[0], NUMBER, HASH), _loosened(parts[1], SIZE)
        pixels = b"|".join(pixels_like(frame, bytes([flags]), 8) for flags in (LONG, LONG | MORE))
        pattern = b"%c.(%b)%c.(%b)(?:%b)" % (MORE, heads[0], MORE, heads[1], pixels)
        self._match = re.compile(pattern, re.DOTALL).match

    def find(
        self, data: memoryview, at: int, number: int, most: int
    ) -> tuple[list[list[memoryview]], int]:
        """Find images that follow one another; see :class:`AlikeImages`."""
        images, size = list[list[memoryview]](), len(data)
        while len(images) < most:
            found = self._match(data, at)
            if found is None or int(found[2]) != number + len(images):
                break
            _, (head, head_end), _, (pixels, pixels_end), *_ = found.regs
            if data[head - 1] != head_end - head or data[pixels - 1] != pixels_end - pixels:
                break
            start = end = found.end()
            end = stop = start + int.from_bytes(found[found.lastindex or 0])
            if data[pixels_end] & MORE and stop + 1 < size and not data[stop]:
                end += 2 + data[stop + 1]
            elif data[pixels_end] & MORE:
                break
            if end > size:
                break
            images.append([data[start:stop]])
            at = end
        return images, at


def _loosened(part: bytes, *differ: re.Pattern[bytes]) -> bytes:
    """Return the pattern of parts that differ from this one at some places."""
    spans = [(found.span(), one.pattern) for one in differ if (found := one.search(part))]
    pattern, at = b"", 0
    for (start, stop), other in sorted(spans):
        pattern += re.escape(part[at:start]) + other
        at = stop
    return pattern + re.escape(part[at:])


def _framed(block: bytes, nbytes: int) -> bytes:
    """Return a block of LZ4 as the filter of HDF5 frames it: a single block."""
    if not 0 < nbytes < MOST_BLOCK:
        raise WrongMessageError("shape", f"less than {MOST_BLOCK} bytes", nbytes)
    sizes = nbytes.to_bytes(8, "big"), nbytes.to_bytes(4, "big"), len(block).to_bytes(4, "big")
    return b"".join([*sizes, block])
