"""Zeiss LSM: offsets of files above 4 GiB, and sizes of compressed strips.

Layout facts: the LSM file format, as tifffile follows it. Offsets have 32 bits and wrap around;
sizes of strips are those of their pixels.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import DatasetError
from dask_tiled.formats.tiff.ifd import Ifd, opened
from dask_tiled.model.files import File
from dask_tiled.model.indexing import Index

LSM_INFO = 34412  # the tag of the facts about a file
WRAP = 1 << 32  # bytes after which offsets start again
TIMES, SCAN_TYPE, POSITIONS = 24, 88, 264
"""Offsets of facts: the number of times, the type of the scan, numbers of positions and tiles."""
WITH_TIMES = {2, 3, 4, 5, 6, 7, 9, 10}  # types of scans with an axis of time
LONGEST = 2
"""Strips packed by LZW have at most this many times the bytes of their pixels."""
BITS_PER_SAMPLE = 258
BITS = {8, 12, 16, 32}


PLANES = 16  # offset of the number of planes, before channels and times
VOXEL, INTERVAL = 40, 112  # offsets of the steps along x, y and z in m, and along t in s
STACKS = {0: "z", 3: "t", 6: "tz", 7: "tz"}
"""Axes of frames, by the type of a scan."""


class LsmStack(NamedTuple):
    """Axes of the frames: lengths by letter, slowest first, and steps, in m and s."""

    shape: dict[str, int]
    steps: dict[str, float]


def read_stack(file: File, at: int) -> LsmStack | None:
    """Return the axes that the page at an offset tells; None if it is not of an LSM file."""
    with opened(file) as source:
        ifd = source.ifd(at)
        if LSM_INFO not in ifd.entries:
            return None
        found = _facts(ifd)
    (planes, _, times), (kind,) = (
        struct.unpack_from("<3i", found, PLANES),
        struct.unpack_from("<H", found, SCAN_TYPE),
    )
    _, places = _counts(ifd)
    letters = STACKS.get(kind, "")
    shape = {"p": places, **{k: {"t": times, "z": planes}[k] for k in letters}}
    steps = dict(zip("xyz", struct.unpack_from("<3d", found, VOXEL), strict=True))
    steps["t"] = struct.unpack_from("<d", found, INTERVAL)[0]
    return LsmStack({k: n for k, n in shape.items() if n > 1}, steps)


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
    times, positions = _counts(ifd)
    if times > 1 and positions > 1 and len(pairs) % (times * positions) == 0:
        pairs = pairs.reshape(positions, times, -1, 2).swapaxes(0, 1).reshape(-1, 2)
    first = strips.offset[np.searchsorted(strips.page, [0, 1])]
    return (pairs[:, ::-1] if first[0] > first[1] else pairs).ravel()


def _counts(ifd: Ifd) -> tuple[int, int]:
    """Return the numbers of times and of positions."""
    found = _facts(ifd)
    (times,), (kind,) = (
        struct.unpack_from("<i", found, TIMES),
        struct.unpack_from("<H", found, SCAN_TYPE),
    )
    places = struct.unpack_from("<2i", found, POSITIONS)
    return (times if kind in WITH_TIMES else 1), max(1, places[0]) * max(1, places[1])


def _facts(ifd: Ifd) -> bytes:
    """Return the facts about a file, with zeros for those that older versions lack."""
    return ifd.source.value(ifd.entries[LSM_INFO]).ljust(POSITIONS + 8, b"\0")
