"""EER, electron events of Falcon cameras: how frames are coded, and facts of the acquisition.

A frame is one stream of codes, whatever its strips. Each code has the number of pixels to skip and,
unless that number is the maximum, an event with its place inside the pixel. Frames are shown with
whole pixels: where there was an event.

Layout facts: the source of Thermo Fisher's EerReaderLib, and tifffile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_tiled.errors import DatasetError
from dask_tiled.formats.tiff.ifd import Ifd
from dask_tiled.formats.tools.text import number_in, parse_xml

ACQUISITION, FACTS = 65001, "EER"
"""Tag of the facts of the acquisition, and their name in metadata."""
BEGIN, MOST_BYTES = b"<metadata>", 1 << 16
BITS: Mapping[int, tuple[int, int, int]] = {65000: (8, 2, 2), 65001: (7, 2, 2)}
"""Bits of the number to skip, and of the place along x and y, by compression number."""
VARIABLE, BIT_TAGS = 65002, (65007, 65008, 65009)
"""Compression number of frames whose tags tell these bits, and those tags."""
INTEGRATED = "integrated"  # name of the image that may precede the frames
LARGEST_PIXEL = 1e-6  # in m
COMPRESSIONS = {*BITS, VARIABLE}


def stored_facts(first: Ifd) -> bytes:
    """Return the facts as stored in the first page of a file; empty if it is not an EER file."""
    value = first.small_values((ACQUISITION,), MOST_BYTES).get(ACQUISITION, (None, b""))[1]
    return value if value.startswith(BEGIN) else b""


def code_bits(ifd: Ifd, compression: int) -> tuple[int, ...] | None:
    """Return the bits of the codes of a page; None if the file is not an EER file.

    Others use these compression numbers, too.
    """
    if not stored_facts(ifd.source.first):
        return None
    if compression in BITS:
        return BITS[compression]
    entries = [ifd.entries.get(tag) for tag in BIT_TAGS]
    told = zip(entries, BITS[65001], strict=True)
    return tuple(ifd.source.numbers(entry)[0] if entry else bits for entry, bits in told)


def read_facts(first: Ifd) -> dict[str, Any]:
    """Return the facts of an acquisition as text with units; empty if there are none."""
    stored = stored_facts(first).rstrip(b"\0")
    try:
        items = parse_xml(stored, first.source.file.path) if stored else ()
    except DatasetError:
        return {}
    named = ((item.get("name"), item.text, item.get("unit", "")) for item in items)
    return {name: f"{text.strip()} {unit}".strip() for name, text, unit in named if name and text}


def scales_of(facts: Mapping[str, Any]) -> dict[str, tuple[str, float, float]]:
    """Return unit, step and offset of axes: pixel sizes at the specimen, and the time of a frame.

    Sizes of a micrometre or more are those of the sensor.
    """
    scales = {"t": ("s", seconds_per_frame(facts), 0.0)}
    for axis, side in (("y", "height"), ("x", "width")):
        size, _, unit = str(facts.get(f"sensorPixelSize.{side}", "")).partition(" ")
        if unit == "m" and 0 < number_in(size) < LARGEST_PIXEL:
            scales[axis] = ("m", number_in(size), 0.0)
    return scales


def seconds_per_frame(facts: Mapping[str, Any]) -> float:
    """Return the exposure time of a frame in seconds; 0 if it is not told."""
    time, _, unit = str(facts.get("exposureTime", "")).partition(" ")
    frames = number_in(facts, "numberOfFrames")
    return number_in(time) / frames if unit == "s" and frames > 0 else 0.0
