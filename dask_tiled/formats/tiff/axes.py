"""Axes of TIFF series, and the entries of a page as plain values.

Layout facts: TIFF, revision 6.0 (XResolution, YResolution, ResolutionUnit); the source of ImageJ
(TiffDecoder, Calibration).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_tiled.errors import CorruptFileError
from dask_tiled.formats.tiff.ifd import COUNTS, OFFSETS, opened
from dask_tiled.formats.tiff.kind import parsed
from dask_tiled.formats.tiff.pages import SUB_IFDS, Pages
from dask_tiled.formats.tiff.series import FILES, IMAGEJ, read_pairs
from dask_tiled.model.description import Axis

LINKS = {34665, 34853, 40965, SUB_IFDS, *OFFSETS, *COUNTS}
"""Entries that lead elsewhere."""
MOST_VALUE_BYTES = 1 << 16
MOST_LISTED = 256
"""Longer values are told of, and not shown."""
NAMES = {"i": "frame", "q": "frame", FILES: "file"}
UNITS = {2: "inch", 3: "cm"}
NO_UNITS = {"", "pixel", "pixels", "null"}


def read_tags(pages: Pages, row: int) -> dict[str, Any]:
    """Read the entries of a page as plain values, by the names that tifffile gives them."""
    with opened(pages.file_of(row)) as source:
        ifd = source.ifd(pages[row].ifd)
        values = ifd.small_values(ifd.entries.keys() - LINKS, MOST_VALUE_BYTES)
        try:
            with parsed(ifd, values) as page:
                shown = [tag for tag in page.tags if tag.code in values]
                return {str(tag.name): _plain(tag.value) for tag in shown}
        except CorruptFileError:  # of the layout nothing is: these are for people
            return {}


def named_axes(letters: str, sig: str, tags: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Name axes, by a letter for each, with the scales that the entries of the first page give."""
    scales = _calibrated(tags)
    names: list[str] = []
    for letter in letters:
        name = NAMES.get(letter, letter)
        taken = name in names or name in sig
        names.append(f"{name}_{len(names)}" if taken else name)
    return tuple(scales.get(name, Axis(name)) for name in (*names, *sig))


def _calibrated(tags: Mapping[str, Any]) -> dict[str, Axis]:
    """Give the axes that have a scale. Where ImageJ names a unit, it is that of the resolution."""
    description = tags.get("ImageDescription", "")
    pairs = read_pairs(description) if str(description).startswith(IMAGEJ) else {}
    unit = _unit(pairs.get("unit", ""))
    steps = {
        "y": (_step(tags, "YResolution"), _unit(pairs.get("yunit", "")) or unit),
        "x": (_step(tags, "XResolution"), unit),
    }
    if not unit:
        unit = UNITS.get(tags.get("ResolutionUnit", 0), "")
        steps = {name: (step, unit) for name, (step, _) in steps.items()}
    steps["z"] = abs(_number(pairs.get("spacing", ""))), _unit(pairs.get("zunit", "")) or unit
    steps["t"] = _number(pairs.get("finterval", "")), _unit(pairs.get("tunit", "s"))
    origins = {name: _number(pairs.get(f"{name}origin", "")) for name in steps}
    return {
        name: Axis.calibrated(name, units, step, 0.0 - origins[name] * step)
        for name, (step, units) in steps.items()
        if units
    }


def _step(tags: Mapping[str, Any], name: str) -> float:
    """Give units per pixel; 0 if the page does not say it."""
    match tags.get(name):
        case (int(pixels), int(units)) if pixels > 0 and units > 0:
            return units / pixels
    return 0.0


def _unit(text: str) -> str:
    known = re.sub(r"\\u([0-9A-Fa-f]{4})", lambda match: chr(int(match[1], 16)), text)
    return "" if known in NO_UNITS else known


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _plain(value: Any) -> Any:
    """Write a value with numbers, text and tuples."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist() if value.size <= MOST_LISTED else range(value.size)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)  # tifffile gives numbers names
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, bytes):
        return value.hex() if len(value) <= MOST_LISTED else f"{len(value)} bytes"
    if isinstance(value, (tuple, list, range)):
        return tuple(map(_plain, value)) if len(value) <= MOST_LISTED else f"{len(value)} values"
    return str(value)[:MOST_LISTED]
