"""Tables of TIFF pages: where the segments of every page lie, and in which of few kinds.

Pages whose entries say the same of how pixels are stored are of one kind, in whatever file they
are. tifffile parses the first page of each kind; of the others, nothing but offsets is read.

Layout facts: TIFF, revision 6.0; Adobe's technical notes on TIFF (SubIFDs); the BigTIFF design.

How to use it, for one file or a set of many::

    pages = Pages()
    rows = [pages.read(File.at(path), [0])[0] for path in paths]  # the first page of each file
    layout = layout_of(pages, rows)  # of tiff_segments.py
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError
from dask_tiled.formats.tiff.ifd import COUNTS, OFFSETS, Entry, Ifd, Source, opened
from dask_tiled.formats.tiff.kind import LAYOUT_TAGS, Kind, read_kind
from dask_tiled.model.decoders import Decoder
from dask_tiled.model.files import File
from dask_tiled.model.selection import Index

DESCRIPTION, SUB_IFDS = 270, 330
MOST_LAYOUT_BYTES = 1 << 20
MOST_DESCRIPTION_BYTES = 1 << 26


class Pages:
    """A growing table of pages. A row is a page; files of equal layout share their kinds.

    Attributes
    ----------
    files : list of File
        The files read so far.
    kinds : list of Kind
        The kinds found so far.
    """

    def __init__(self) -> None:
        self.files: list[File] = []
        self.kinds: list[Kind] = []
        self._numbers: dict[File, int] = {}
        self._known: dict[tuple[Any, ...], int] = {}
        self._of_kind: dict[Kind, int] = {}
        self._file, self._kind, self._ifd, self._levels, self._first, self._frames = (
            array("q") for _ in range(6)
        )
        self._offsets, self._nbytes = array("q"), array("q")
        self._room = 0  # for segments: the place of each takes a byte of the file, at the least

    def __len__(self) -> int:
        """Count the pages."""
        return len(self._kind)

    def read(self, file: File, numbers: Sequence[int] | None = None, *, level: int = 0) -> Index:
        """Add pages of a file.

        Parameters
        ----------
        file : File
        numbers : sequence of int, optional
            Numbers of the pages in the main chain, from 0 on, in any order; by default all. No page
            behind the last of them is looked at.
        level : int
            0 for the pages themselves; 1 and up for the first, second, ... of their SubIFDs.

        Returns
        -------
        int64 array
            The rows of these pages in the table.

        Raises
        ------
        CorruptFileError, TruncatedFileError
            The file is no TIFF file, or a page is damaged.
        DatasetError
            There is no such page or level, or tifffile is not installed.
        """
        with opened(file) as source:
            self._room = len(self._offsets) + file.size
            if numbers is None:
                rows = [self._add(source, at, level) for at in source.chain()]
            else:
                chain = list(islice(source.chain(), max(numbers, default=-1) + 1))
                wrong = [n for n in numbers if not 0 <= n < len(chain)]
                if wrong:
                    raise DatasetError(
                        "no such page",
                        path=file.path,
                        expected=f"0 to {len(chain) - 1}",
                        found=wrong[0],
                    )
                rows = [self._add(source, chain[n], level) for n in numbers]
        return np.array(rows, np.int64)

    def follow(self, row: int, count: int) -> Index:
        """Add a page together with frames that have no IFD, whose pixels follow without gaps.

        Parameters
        ----------
        row : int
            A page for which :meth:`is_contiguous` holds.
        count : int
            How many frames there are, with that of this page.

        Returns
        -------
        int64 array
            The one row that stands for all of them.
        """
        for column in (self._file, self._kind, self._ifd, self._levels, self._first):
            column.append(column[row])
        self._frames.append(count)
        return np.array([len(self) - 1])

    def is_contiguous(self, row: int) -> bool:
        """Tell whether the pixels of a page are stored plainly, and without gaps."""
        kind = self.kind_of(row)
        offsets, _ = self.segments(np.array([row]))
        follow = (np.diff(offsets[0]) == kind.stored_bytes).all()
        rows, height = kind.segment[2], kind.full[2]
        whole = height % rows == 0 or kind.n_segments == kind.counts[2]
        return bool(isinstance(kind.decoder, Decoder) and not kind.tiled and follow and whole)

    def kind_of(self, row: int) -> Kind:
        """Give the kind of a page."""
        return self.kinds[self._kind[row]]

    def file_of(self, row: int) -> File:
        """Give the file of a page."""
        return self.files[self._file[row]]

    def count_levels(self, row: int) -> int:
        """Count the levels of a page: itself and its SubIFDs."""
        return self._levels[row]

    def ifd_of(self, row: int) -> int:
        """Say where in its file the IFD of a page is."""
        return self._ifd[row]

    def columns(self, rows: Index) -> tuple[Index, Index, Index]:
        """Give the numbers of the files and of the kinds of pages, and how many frames each is."""
        return _taken(self._file, rows), _taken(self._kind, rows), _taken(self._frames, rows)

    def segments(self, rows: Index) -> tuple[Index, Index]:
        """Give the places and the bytes of the segments of pages of one kind.

        Returns
        -------
        offsets, nbytes : int64 arrays, of shape (pages, segments)
        """
        count = self.kind_of(int(rows[0])).n_segments
        wanted = _taken(self._first, rows)[:, None] + np.arange(count)
        return _taken(self._offsets, wanted), _taken(self._nbytes, wanted)

    def _add(self, source: Source, at: int, level: int) -> int:
        ifd = source.ifd(at)
        levels = 1
        if SUB_IFDS in ifd.entries:
            levels += ifd.entries[SUB_IFDS].length
        if level >= levels:
            raise DatasetError(
                "a page has no such level",
                path=source.file.path,
                expected=f"0 to {levels - 1}",
                found=level,
            )
        if level:
            ifd = source.ifd(source.numbers(ifd.entries[SUB_IFDS])[level - 1])
        number = self._number_of_kind(source, ifd)
        offsets, nbytes = _segments(source, ifd, self.kinds[number])
        if len(self._offsets) + len(offsets) > self._room:
            raise CorruptFileError(
                "the same strips or tiles again and again",
                path=source.file.path,
                where=f"byte {ifd.at}",
                expected=f"at most {source.file.size} of them",
            )
        file = self._numbers.setdefault(source.file, len(self.files))
        if file == len(self.files):
            self.files.append(source.file)
        self._file.append(file)
        self._kind.append(number)
        self._ifd.append(ifd.at)
        self._levels.append(levels)
        self._first.append(len(self._offsets))
        self._frames.append(1)
        self._offsets.extend(offsets)
        self._nbytes.extend(nbytes)
        return len(self) - 1

    def _number_of_kind(self, source: Source, ifd: Ifd) -> int:
        """Find the kind of a page, by the entries that matter and their values."""
        entries = [entry for entry in ifd.entries.values() if entry.tag in LAYOUT_TAGS]
        key: tuple[Any, ...] = (source.flavour.order, *entries)
        if key in self._known:
            return self._known[key]
        values = {entry.tag: (entry, _value(source, entry)) for entry in entries}
        if not all(entry.is_complete for entry in entries):
            key = source.flavour.order, *((e[:3], value) for e, value in values.values())
        if key not in self._known:
            kind = read_kind(source, ifd, values)
            number = self._of_kind.setdefault(kind, len(self.kinds))
            if number == len(self.kinds):
                self.kinds.append(kind)
            self._known[key] = number
        return self._known[key]


def count_pages(file: File) -> int:
    """Count the pages of the main chain of a file, without looking at what is in them.

    Raises
    ------
    CorruptFileError, TruncatedFileError
        The file is no TIFF, or the chain is broken.
    """
    with opened(file) as source:
        return sum(1 for _ in source.chain())


def read_description(file: File, ifd: int | None = None) -> str:
    """Read the ImageDescription of a page; empty where there is none.

    Parameters
    ----------
    file : File
    ifd : int, optional
        Where its IFD is; by default, that of the first page.

    Raises
    ------
    CorruptFileError, TruncatedFileError
        The file is no TIFF, or the page is damaged.
    """
    with opened(file) as source:
        at = next(source.chain()) if ifd is None else ifd
        entry = source.ifd(at).entries.get(DESCRIPTION)
        if entry is None or entry.nbytes > MOST_DESCRIPTION_BYTES:
            return ""
        return source.value(entry).rstrip(b"\0").decode("utf-8", "replace")


def _value(source: Source, entry: Entry) -> bytes:
    """Read what tells kinds apart."""
    if entry.nbytes > MOST_LAYOUT_BYTES:
        raise CorruptFileError(
            "an entry of too many values",
            path=source.file.path,
            expected=f"at most {MOST_LAYOUT_BYTES} bytes",
            found=f"{entry.nbytes} bytes",
        )
    return source.value(entry)


def _segments(source: Source, ifd: Ifd, kind: Kind) -> tuple[array[int], array[int]]:
    """Read where the segments of a page are, and how many bytes they have."""
    offsets = _numbers(source, ifd, OFFSETS, kind)
    nbytes = _numbers(source, ifd, COUNTS, kind)
    if not nbytes and isinstance(kind.decoder, Decoder):
        nbytes = array("q", [kind.stored_bytes]) * len(offsets)
    elif not nbytes and len(offsets) == 1:
        nbytes = array("q", [max(0, source.file.size - offsets[0])])
    if not offsets or not nbytes:
        raise CorruptFileError(
            "strips or tiles in unknown places", path=source.file.path, where=f"byte {ifd.at}"
        )
    return offsets, nbytes


def _numbers(source: Source, ifd: Ifd, tags: tuple[int, ...], kind: Kind) -> array[int]:
    """Read the first of some entries that is there: a number for each segment, or none."""
    entry = next((ifd.entries[tag] for tag in tags if tag in ifd.entries), None)
    if entry is None:
        return array("q")
    if entry.length < kind.n_segments:
        raise CorruptFileError(
            "strips or tiles are missing",
            path=source.file.path,
            where=f"byte {ifd.at}",
            expected=f"{kind.n_segments} of them, for {kind.full} pixels",
            found=entry.length,
        )
    return source.numbers(entry)[: kind.n_segments]


def _taken(column: array[int], places: Index) -> Index:
    if not column:
        return np.empty(0, np.int64)
    taken: Index = np.frombuffer(column, np.int64)[places]
    return taken
