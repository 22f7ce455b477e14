"""Zeiss LSM: offsets of files above 4 GiB, and sizes of compressed strips.

Layout facts: the LSM file format, as tifffile follows it. Offsets have 32 bits and wrap around;
sizes of strips are those of their pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.formats.tiff.ifd import Ifd
from dask_tiled.formats.tiff.tags import read_tags
from dask_tiled.formats.tools.text import number_in
from dask_tiled.model.indexing import Index

LSM_INFO, FACTS = 34412, "CZ_LSMINFO"  # number and name of the tag of the facts about a file
WRAP = 1 << 32  # bytes after which offsets start again
WITH_TIMES = {2, 3, 4, 5, 6, 7, 9, 10}  # types of scans with an axis of time
STACKS = {0: "z", 3: "t", 6: "tz", 7: "tz"}
"""Axes of frames, by the type of a scan."""
LONGEST = 2
"""Strips packed by LZW have at most this many times the bytes of their pixels."""
BITS_PER_SAMPLE = 258
BITS = {8, 12, 16, 32}


def read_facts(first: Ifd) -> Mapping[str, Any] | None:
    """Return the facts about a file, given its first page; None if it is not an LSM file."""
    if LSM_INFO not in first.entries:
        return None
    facts = read_tags(first).get(FACTS)
    return facts if isinstance(facts, Mapping) else {}


def shape_of(facts: Mapping[str, Any]) -> dict[str, int]:
    """Return the lengths of the axes of frames by letter, slowest first."""
    letters = STACKS.get(int(number_in(facts, "ScanType", default=-1)), "")
    sizes = {"t": number_in(facts, "DimensionTime"), "z": number_in(facts, "DimensionZ")}
    shape = {"p": _counts(facts)[1], **{letter: int(sizes[letter]) for letter in letters}}
    return {letter: size for letter, size in shape.items() if size > 1}


class Strips(NamedTuple):
    """Strips of all pages of a file, as columns, in the order of pages."""

    page: Index
    offset: Index
    nbytes: Index  # as stored, those of the pixels
    packed: Index  # whether it is compressed

    def placed(self, ifd: Ifd) -> tuple[Index, Index]:
        """Return the offsets and sizes of strips in a file, given its first page."""
        size = ifd.source.file.size
        offset = _unwrapped(self, ifd) if size >= WRAP else self.offset
        starts = np.unique(np.append(offset, size))
        following = np.append(starts, 0)[np.searchsorted(starts, offset, "right")]
        room = np.minimum(following - offset, LONGEST * self.nbytes)
        return offset, np.where(self.packed & (offset < size), room, self.nbytes)


def bits_of_two(ifd: Ifd) -> bytes | None:
    """Return the bits of both samples of a page, whose entry may hold their offset; else None."""
    entry = ifd.entries.get(BITS_PER_SAMPLE)
    if entry is None or entry[1:3] != (3, 2):
        return None
    with suppress(DatasetError):
        inside = ifd.source.value(entry)
        behind = ifd.source.place(entry)
        for stored in (inside, ifd.source.read(behind, len(inside), "bits of samples")):
            first, second = struct.unpack("<2H", stored)
            if first == second and first in BITS:
                return stored
    return None


def _unwrapped(strips: Strips, ifd: Ifd) -> Index:
    """Return 64-bit offsets: strips follow each other, so where one decreases it wraps around."""
    count = int(strips.page[-1]) + 1 if len(strips.page) else 0
    rank = np.empty(count, np.int64)
    rank[_order(strips, ifd, count)] = np.arange(count)
    written = np.flatnonzero(strips.offset > 0)
    order = written[np.argsort(rank[strips.page[written]], kind="stable")]
    stored = strips.offset[order]
    offset = strips.offset.copy()
    offset[order] += WRAP * np.append([0], (np.diff(stored) < 0).cumsum())[: len(order)]
    size, stop = ifd.source.file.size, int((offset + strips.nbytes * ~strips.packed).max(initial=0))
    if stop > size:
        problem, found = "strips are not in the order of the pages", f"one that ends at {stop}"
        raise ifd.corrupt(problem, expected=f"strips within {size} bytes", found=found)
    return offset


def _order(strips: Strips, ifd: Ifd, count: int) -> Index:
    """Return pages in the order of their strips: times before positions, in pairs with thumbnails.

    Thumbnails come first if the first of them does.
    """
    if count % 2:
        return np.arange(count)
    pairs = np.arange(count).reshape(-1, 2)
    times, positions = _counts(read_facts(ifd) or {})
    if times > 1 and positions > 1 and len(pairs) % (times * positions) == 0:
        pairs = pairs.reshape(positions, times, -1, 2).swapaxes(0, 1).reshape(-1, 2)
    first = strips.offset[np.searchsorted(strips.page, [0, 1])]
    return (pairs[:, ::-1] if first[0] > first[1] else pairs).ravel()


def _counts(facts: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of times and of positions."""
    times, *places = (int(number_in(facts, f"Dimension{name}")) for name in ("Time", "P", "M"))
    timed = number_in(facts, "ScanType") in WITH_TIMES
    return times if timed else 1, max(1, places[0]) * max(1, places[1])
