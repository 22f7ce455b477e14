"""Facts in text headers of frames, decoded together, and facts about the instrument."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_tiled.formats import tools
from dask_tiled.model.instrument import entries

SETTINGS = {
    "sequence_number": (1, "i8"), "time": (9, "M8[us]"), "counter": (11, "i2"),
    "colour_mode": (12, "i2"), "gain_mode": (13, "i2"),
}  # fmt: skip
"""Facts with a single field, by field number."""
FIRST, THRESHOLDS = 14, 8
"""The first field of thresholds, and their number; DACs follow up to ``MQ1A``."""
SINGLE = "exposure_time", "time_utc"
FACTS = {"exposure_time": "f8", "thresholds": "f8", "dacs": "i4", "time_utc": "M8[ns]"}
DATE = np.frombuffer(b"0000-00-00 00:00:00.".ljust(40, b"0"), np.uint8)
ROWS = (
    ("detector", "hdr/Readout System"),
    ("exposure_time", "header/exposure", "ns"),
    ("exposure_time", "header/shutter (s)", "s"),
    ("gain_setting", "hdr/Gain"),
    ("threshold", "header/thresholds and DACs", "keV", lambda texts: texts.split()[0]),
    ("threshold", "hdr/Thresholds (keV)", "keV", lambda texts: texts.split(",")[0]),
    ("date", "header/time (UTC)"),
    ("date", "header/time"),
)
INSTRUMENT = entries({"mib": ROWS})


class HeaderPlace(NamedTuple):
    """Position of a value in a header."""

    start: int
    stop: int
    per: float | None = None  # divisor, such as 1e9 for ns


def fields_between(header: bytes) -> list[HeaderPlace]:
    """Return the fields of a header that hold text: not blanks or padding."""
    places, at = [], 0
    for text in header.split(b","):
        if b"\0" not in text and text.strip():
            places.append(HeaderPlace(at, at + len(text)))
        at += len(text) + 1
    return places


def find_facts(header: bytes) -> dict[str, list[HeaderPlace]]:
    """Locate the facts of a frame header: settings, thresholds, the DACs of each chip, times."""
    fields = fields_between(header)
    texts = [header[field.start : field.stop].strip() for field in fields]
    end = texts.index(b"MQ1A") if b"MQ1A" in texts else len(fields)
    places = {name: [fields[k]] for name, (k, _) in SETTINGS.items() if k < end}
    if end > 10:
        places["exposure_time"] = [fields[10]]
    dacs = min(FIRST + THRESHOLDS, end)
    if end > FIRST:
        places["thresholds"] = fields[FIRST:dacs]
    chips = max(1, int(texts[3])) if re.fullmatch(rb"\d{1,18}", texts[3]) else 1
    of_chip, rest = divmod(end - dacs, chips)
    if of_chip > 1 and not rest:  # the type of each chip, then its DACs
        places["dacs"] = [
            field for k in range(dacs, end, of_chip) for field in fields[k + 1 : k + of_chip]
        ]
    utc, exposure = fields[end + 1 : end + 2], fields[end + 2 : end + 3]
    if utc:  # NumPy does not parse the letter of a time zone
        zone = texts[end + 1].endswith(b"Z")
        places["time_utc"] = [utc[0]._replace(stop=utc[0].stop - zone)]
    if exposure and texts[end + 2].endswith(b"ns"):
        stop = exposure[0].stop - 2
        places["exposure_time"] = [HeaderPlace(exposure[0].start, stop, 1e9)]
    return places


def facts_type(header: bytes, chips: int) -> np.dtype:
    """Return the dtype of the facts in headers like the first one."""
    found = find_facts(header)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys((*SETTINGS, *SINGLE), ())
    if "thresholds" in found:
        shapes["thresholds"] = (len(found["thresholds"]),)
    if "dacs" in found:
        shapes["dacs"] = chips, len(found["dacs"]) // chips
    kinds = {name: kind for name, (_, kind) in SETTINGS.items()} | FACTS
    return np.dtype([(name, kind, shapes[name]) for name, kind in kinds.items() if name in found])


def decode(records: npt.NDArray[Any], facts: npt.NDArray[Any]) -> None:
    """Decode headers, grouped by the positions of their commas.

    Raise a WrongHeader if a value is missing, or cannot be read.
    """
    if not len(records):
        return
    text = records.view(np.uint8).reshape(len(records), -1)
    for rows in _equal_rows(text == ord(",")):
        places = find_facts(text[rows[0]].tobytes())
        for name in facts.dtype.names or ():
            of_one = facts[name].reshape(len(facts), -1)
            found = places.get(name, ())
            if len(found) != of_one.shape[1]:
                count = f"{of_one.shape[1]} values, as in the first frame"
                raise tools.WrongHeader(int(rows[0]), name, count, len(found))
            for k, place in enumerate(found):
                of_one[rows, k] = _values(text, rows, place, of_one.dtype, name)
            facts[name] = of_one.reshape(facts[name].shape)


def _equal_rows(separators: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows that are equal, group by group."""
    if (separators == separators[0]).all():
        yield np.arange(len(separators))
        return
    packed = np.packbits(separators, axis=1)
    keys = packed.view(f"S{packed.shape[1]}")[:, 0]
    _, which = np.unique(keys, return_inverse=True)
    order = np.argsort(which, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(which[order])) + 1)


def _values(
    text: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int64],
    at: HeaderPlace,
    dtype: np.dtype,
    name: str,
) -> npt.NDArray[Any]:
    """Decode a value of some headers, once if it is the same in all."""
    part = text[rows, at.start : at.stop]
    texts = np.ascontiguousarray(part).view(f"S{at.stop - at.start}")[:, 0]
    if (part == part[0]).all():
        texts = texts[:1]
    try:
        values = _read(texts, dtype)
    except (ValueError, OverflowError):
        number = next(k for k in range(len(texts)) if not _is_read(texts[k : k + 1], dtype))
        where, expected = f"bytes {at.start} to {at.stop} ({name})", f"a {dtype}"
        found = repr(bytes(texts[number]).decode("latin1"))
        raise tools.WrongHeader(int(rows[number]), where, expected, found) from None
    return values if at.per is None else values / at.per


def _read(texts: npt.NDArray[np.bytes_], dtype: np.dtype) -> npt.NDArray[Any]:
    if dtype.kind == "M":  # NumPy accepts words, and shifts time zones
        signs = texts.view(np.uint8).reshape(len(texts), -1).copy()
        signs[:, 10:11][signs[:, 10:11] == ord("T")] = ord(" ")
        is_digit = (signs >= ord("0")) & (signs <= ord("9"))
        if not (np.where(is_digit, ord("0"), signs) == DATE[: signs.shape[1]]).all():
            raise ValueError("no date and time")
    return texts.astype(dtype)


def _is_read(text: npt.NDArray[np.bytes_], dtype: np.dtype) -> bool:
    try:
        _read(text, dtype)
    except (ValueError, OverflowError):
        return False
    return True
