"""Tables of TIFF pages: the kind of every page, and the offsets of its segments.

Pages with equal layout tags are of one kind, also across files. Their tags are parsed once for each
kind; of the other pages only offsets are read.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tiff.ifd import (
    COUNTS,
    OFFSETS,
    SUB_IFDS,
    Ifd,
    OpenTiff,
    opened,
    size_of,
)
from dask_tiled.formats.tiff.kind import PageLayout, read_kind
from dask_tiled.formats.tiff.lsm import BITS_PER_SAMPLE, LSM_INFO, Strips, bits_of_two
from dask_tiled.formats.tiff.pixel_tags import LAYOUT_TAGS
from dask_tiled.model.indexing import Index

MOST_LAYOUT_BYTES = 1 << 20
SUBFILE_TYPE = 254
DATE_TIME, MOST_DATE_BYTES = 306, 64  # the tag DateTime


class Page(NamedTuple):
    """A row of the table."""

    file: int
    kind: int
    ifd: int  # offset
    levels: int  # including the page itself
    segment: int  # row of the first segment
    frames: int


class Pages:
    """A growing table with a row per page; files with equal layout share kinds."""

    def __init__(self, *, dated: bool = False) -> None:
        self.dates: dict[int, bytes] | None = {} if dated else None  # raw dates, by row
        self.files: list[tools.File] = []
        self.kinds: list[PageLayout] = []
        self._numbers: dict[tools.File, int] = {}
        self._known: dict[tuple[Any, ...], int] = {}
        self._rows, self._offsets, self._nbytes = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self._rows) // len(Page._fields)

    def __getitem__(self, row: int) -> Page:
        width = len(Page._fields)
        return Page._make(self._rows[width * row : width * (row + 1)])

    def read(
        self, file: tools.File, numbers: Sequence[int] | None = None, *, level: int = 0
    ) -> Index:
        """Add pages of a file, or a `level` of their SubIFDs; return their rows.

        No page after those in `numbers` is read; missing pages become -1.
        """
        first, count, stop = len(self), 0, None if numbers is None else max(numbers, default=-1) + 1
        wanted = range(file.size) if numbers is None else {*numbers}
        with opened(file) as source:
            number = self._numbers.setdefault(file, len(self.files))
            if number == len(self.files):
                self.files.append(file)
            # A segment offset takes at least a byte of the file.
            room = len(self._offsets) + file.size
            for count, ifd in enumerate(islice(source.chain(), stop), 1):
                if count - 1 in wanted:
                    self._add(ifd, number, level, room)
            rows = np.arange(first, len(self))
            if numbers is None and LSM_INFO in source.first.entries:
                self._place_strips(rows, source.first)
        if numbers is None:
            return rows
        places = np.searchsorted(np.unique(numbers), numbers)
        return np.where(np.less(numbers, count), first + places, -1)

    def follow(self, row: int, frames: int) -> int:
        """Add a row for frames without IFD, whose pixels follow a page without gaps."""
        if self.dates is not None and row in self.dates:
            self.dates[len(self)] = self.dates[row]
        self._rows.extend(self[row]._replace(frames=frames))
        return len(self) - 1

    def kind_of(self, row: int) -> PageLayout:
        """Return the kind of a page."""
        return self.kinds[self[row].kind]

    def file_of(self, row: int) -> tools.File:
        """Return the file of a page."""
        return self.files[self[row].file]

    def name_of(self, row: int) -> str:
        """Return the name of a page: its number, or its offset for pages of a pyramid."""
        ifd = self[row].ifd
        with opened(self.file_of(row)) as source, suppress(tools.DatasetError):
            for number, other in enumerate(source.chain()):
                if other.at == ifd:
                    return f"page {number}"
        return f"the page at byte {ifd}"

    def ifd(self, row: int) -> Ifd:
        """Return the entries of a page; the file is opened again for each value."""
        file = self.file_of(row)
        return OpenTiff(file, file.read).ifd(self[row].ifd)

    def is_reduced(self, row: int) -> bool:
        """Return whether a page is a smaller version of another one, such as a thumbnail."""
        ifd = self.ifd(row)
        with suppress(tools.DatasetError):
            values = ifd.small_values((SUBFILE_TYPE,), 4)
            return any(ifd.source.numbers(entry)[0] & 1 for entry, _ in values.values())
        return False

    def columns(self, rows: Index) -> Index:
        """Return the fields of pages, as one array per field of :class:`Page`."""
        return np.frombuffer(self._rows, np.int64).reshape(-1, len(Page._fields))[rows].T

    def segments(self, rows: Index) -> tuple[Index, Index]:
        """Return offsets and sizes of the segments of pages of one kind, as (pages, segments)."""
        first = self.columns(rows)[Page._fields.index("segment")]
        wanted = first[:, None] + np.arange(self.kind_of(int(rows[0])).n_segments)
        places, sizes = (np.frombuffer(c, np.int64) for c in (self._offsets, self._nbytes))
        return places[wanted], sizes[wanted]

    def _add(self, ifd: Ifd, file: int, level: int, room: int) -> None:
        source, entries = ifd.source, ifd.entries
        if self.dates is not None and DATE_TIME in entries:
            self.dates[len(self)] = _date(ifd)
        # A damaged count may be too large for the table.
        levels = 1 + min(entries[SUB_IFDS][2], source.file.size) if SUB_IFDS in entries else 1
        if level >= levels:
            known, problem = f"0 to {levels - 1}", "no such level of a page"
            raise tools.DatasetError(problem, path=source.file.path, expected=known, found=level)
        if level:
            ifd = source.ifd(source.numbers(entries[SUB_IFDS])[level - 1])
        number = self._number_of_kind(ifd)
        offsets, nbytes = _segments(ifd, self.kinds[number])
        first = len(self._offsets)
        if first + len(offsets) > room:
            most = f"at most {source.file.size} in all"
            raise ifd.corrupt("too many strips or tiles", expected=most)
        self._offsets.extend(offsets)
        self._nbytes.extend(nbytes)
        self._rows.extend((file, number, ifd.at, levels, first, 1))

    def _place_strips(self, rows: Index, first: Ifd) -> None:
        """Correct the offsets and sizes of the strips of an LSM file, given its first page."""
        kinds, starts = self.columns(rows)[[1, 4]]
        counts = np.array([kind.n_segments for kind in self.kinds])[kinds]
        packed = np.array([not isinstance(k.decoder, tools.Decoder) for k in self.kinds])[kinds]
        own = slice(int(starts[0]), int(starts[-1] + counts[-1]))
        places, sizes = (np.frombuffer(c, np.int64)[own] for c in (self._offsets, self._nbytes))
        pages, packed = (np.repeat(column, counts) for column in (np.arange(len(rows)), packed))
        places[:], sizes[:] = Strips(pages, places, sizes, packed).placed(first)

    def _number_of_kind(self, ifd: Ifd) -> int:
        """Return the index of a page's kind, by its layout entries and their values."""
        telling = [entry for tag, entry in ifd.entries.items() if tag in LAYOUT_TAGS]
        source, order = ifd.source, ifd.source.flavour.order
        key: tuple[Any, ...] = (order, *telling)
        if key in self._known:
            return self._known[key]
        longest = max(map(size_of, telling), default=0)
        if longest > MOST_LAYOUT_BYTES:
            most, found = f"at most {MOST_LAYOUT_BYTES} bytes", f"{longest} bytes"
            raise ifd.corrupt("an entry has too many values", expected=most, found=found)
        values = {entry[0]: (entry, source.value(entry)) for entry in telling}
        bits = bits_of_two(ifd) if LSM_INFO in source.first.entries else None
        if bits is not None:
            values[BITS_PER_SAMPLE] = values[BITS_PER_SAMPLE][0], bits
        # Entries hold offsets of long values.
        if bits is not None or longest > source.flavour.word.size:
            key = order, *((entry[:3], value) for entry, value in values.values())
        if key not in self._known:
            kind = read_kind(ifd, values)
            self._known[key] = self._known.setdefault(kind, len(self.kinds))
            if self._known[key] == len(self.kinds):
                self.kinds.append(kind)
        return self._known[key]


def _date(ifd: Ifd) -> bytes:
    """Read the DateTime of a page."""
    entry = ifd.entries[DATE_TIME]
    if not 0 < size_of(entry) <= MOST_DATE_BYTES:
        most, found = f"1 to {MOST_DATE_BYTES} bytes", f"{size_of(entry)} bytes"
        raise ifd.corrupt("invalid length of a DateTime", expected=most, found=found)
    return ifd.source.value(entry)


def _segments(ifd: Ifd, kind: PageLayout) -> tuple[array[int], array[int]]:
    """Read offsets and sizes of a page's segments."""
    offsets, nbytes = _numbers(ifd, OFFSETS, kind), _numbers(ifd, COUNTS, kind)
    if not nbytes and isinstance(kind.decoder, tools.Decoder):
        nbytes = array("q", [kind.nbytes(kind.segment)]) * len(offsets)
    elif len(offsets) == 1 and not (nbytes and (nbytes[0] or kind.tiled)):
        nbytes = array("q", [ifd.room(offsets[0]) if offsets[0] else 0])
    if not offsets or not nbytes:
        raise ifd.corrupt("strips or tiles have no offsets or sizes")
    return offsets, nbytes


def _numbers(ifd: Ifd, tags: Sequence[int], kind: PageLayout) -> array[int]:
    """Read the first of some tags that exists, a number per segment; empty if none does."""
    entry = ifd.first_of(tags)
    if entry is None:
        return array("q")
    if entry[2] < kind.n_segments:
        wanted = f"{kind.n_segments} of them, for {kind.full} pixels"
        raise ifd.corrupt("strips or tiles are missing", expected=wanted, found=entry[2])
    return ifd.source.numbers(entry)[: kind.n_segments]
