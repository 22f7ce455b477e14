"""Image file directories (IFDs) of TIFF files: their chain, their entries, and the description.

Whatever a file says is checked against its length here, and no chain is followed in a circle: what
other modules see of an entry are bytes that are there.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from struct import Struct
from typing import Any, Literal, NamedTuple, TypeAlias

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.model.files import File, opened_fd, read_head
from dask_tiled.model.paths import is_url

Entry: TypeAlias = tuple[int, int, int, bytes]
"""Tag, type, number of values, and the field that holds them, or says where they are."""
Values: TypeAlias = dict[int, tuple[Entry, bytes]]  # entries and their values, by tag

BLOCK_BYTES = 4096  # so much is read at a time: an IFD and the values beside it
MOST_ENTRIES = 4096  # no IFD has more
SIZES = dict(enumerate((1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 2, 8, 8, 8, 8), 1))
"""Bytes of a value, by the number of its type."""
UNSIGNED = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}
"""Types of what counts, or says where something is, as :mod:`struct` calls them."""
OFFSETS, COUNTS = (324, 273, 513), (325, 279, 514)
"""Tags of where segments are, and of their bytes: tiles, strips, JPEG files of the old kind."""
SUB_IFDS = 330  # the tag of where the levels of a pyramid are
DESCRIPTION = 270  # the tag of a text in which writers say what TIFF has no entries for
MOST_TEXT = 1 << 26


class Flavour(NamedTuple):
    """How the numbers of a file are written: an offset, how many entries an IFD has, an entry."""

    order: Literal["<", ">"]
    word: Struct
    number: Struct
    entry: Struct


def _flavour(order: Literal["<", ">"], word: str, number: str) -> Flavour:
    size = struct.calcsize(order + word)
    return Flavour(order, *(Struct(order + form) for form in (word, number, f"HH{word}{size}s")))


FLAVOURS = {
    b"II*\0": _flavour("<", "I", "H"),
    b"MM\0*": _flavour(">", "I", "H"),
    b"II+\0\x08\0\0\0": _flavour("<", "Q", "Q"),
    b"MM\0+\0\x08\0\0": _flavour(">", "Q", "Q"),
}
"""What a file begins with says how its numbers are written. The place of the first IFD follows."""


def is_tiff(head: bytes) -> bool:
    """Return whether a file begins as a TIFF file."""
    return head.startswith(tuple(FLAVOURS))


def size_of(entry: Entry) -> int:
    """Count the bytes of the values of an entry; 0 if nobody knows the type."""
    return SIZES.get(entry[1], 0) * entry[2]


class Ifd(NamedTuple):
    """An IFD of an open file: the byte that it begins at, and its entries by tag."""

    source: Source
    at: int
    entries: dict[int, Entry]

    def small_values(self, tags: Iterable[int], most: int) -> Values:
        """Read the values of entries of some tags, without those of more than so many bytes."""
        values = {}
        for tag in tags:
            entry = self.entries.get(tag)
            if entry is not None and 0 < size_of(entry) <= most:
                with suppress(DatasetError):  # somewhere else, and nobody needs them
                    values[tag] = entry, self.source.value(entry)
        return values

    def room(self, at: int) -> int:
        """Count the bytes from a place to the next IFD or values, or to the end of the file."""
        source = self.source
        long = (entry for entry in self.entries.values() if size_of(entry) > len(entry[3]))
        places = [self.at, source.after(self.at), *map(source.place, long), source.file.size]
        return min((place for place in places if place > at), default=at) - at

    def corrupt(self, problem: str, **details: Any) -> CorruptFileError:
        """Make the error for something that is wrong in the IFD."""
        return self.source.corrupt(problem, self.at, **details)


class Source:
    """An open TIFF file."""

    def __init__(self, file: File, read: Callable[[int, int], bytes]) -> None:
        self.file = file
        self._read = read
        self._at, self._block = 0, read(BLOCK_BYTES, 0)
        self.magic = next((magic for magic in FLAVOURS if self._block.startswith(magic)), b"")
        if not self.magic:
            raise self.corrupt("not a TIFF file", 0, found=f"{self._block[:8]!r} at its start")
        self.flavour = FLAVOURS[self.magic]

    def read(self, at: int, nbytes: int, what: str = "an IFD") -> bytes:
        """Read bytes; `what` they are is for the error where the file ends before."""
        start = at - self._at
        if 0 <= start <= len(self._block) - nbytes:
            return self._block[start : start + nbytes]
        if at + nbytes <= self.file.size:
            self._at, self._block = at, self._read(max(nbytes, BLOCK_BYTES), at)
            if len(self._block) >= nbytes:
                return self._block[:nbytes]
        raise TruncatedFileError(
            f"the file ends inside {what}",
            path=self.file.path,
            where=f"byte {at}",
            expected=f"{nbytes} bytes",
            found=f"{max(0, self.file.size - at)} bytes",
        )

    def chain(self) -> Iterator[int]:
        """Say where the IFDs of the main chain are."""
        word = self.flavour.word
        at = self._number(word, len(self.magic))
        if not at:
            raise self.corrupt("the file has no pages", len(self.magic))
        seen = set[int]()
        while at:
            if at in seen:
                raise self.corrupt("the chain of IFDs goes in a circle", at)
            seen.add(at)
            following = self.after(at)
            yield at
            at = following

    def after(self, at: int) -> int:
        """Return the place of the IFD that follows another one in its chain, or 0."""
        return self._number(self.flavour.word, at + self.flavour.number.size + self._nbytes(at))

    def ifd(self, at: int) -> Ifd:
        """Read an IFD."""
        fields = self.read(at + self.flavour.number.size, self._nbytes(at))
        entries = [*self.flavour.entry.iter_unpack(fields)]
        # Of two entries with one tag, the first counts.
        return Ifd(self, at, {entry[0]: entry for entry in reversed(entries)})

    def value(self, entry: Entry) -> bytes:
        """Read the values of an entry."""
        nbytes, field = size_of(entry), entry[3]
        if nbytes <= len(field):
            return field[:nbytes]
        return self.read(self.place(entry), nbytes, "the values of an entry")

    def place(self, entry: Entry) -> int:
        """Say where the values of an entry are that its field does not hold."""
        return int(self.flavour.word.unpack(entry[3])[0])

    def numbers(self, entry: Entry) -> array[int]:
        """Read the values of an entry that counts, or says where something is."""
        tag, kind, length, _ = entry
        try:
            form = f"{self.flavour.order}{length}{UNSIGNED[kind]}"
            return array("q", struct.unpack(form, self.value(entry)))
        except (KeyError, OverflowError) as error:
            found = f"type {kind} of tag {tag}"
            raise self.corrupt("an entry finds nothing", found=found) from error

    def corrupt(self, problem: str, at: int | None = None, **details: Any) -> CorruptFileError:
        """Make the error for something that is wrong in the IFD at some byte."""
        where = None if at is None else f"byte {at}"
        return CorruptFileError(problem, path=self.file.path, where=where, **details)

    def _number(self, form: Struct, at: int) -> int:
        return int(form.unpack(self.read(at, form.size))[0])

    def _nbytes(self, at: int) -> int:
        """Count the bytes of the entries of an IFD."""
        count = self._number(self.flavour.number, at)
        if not 0 < count <= MOST_ENTRIES:
            raise self.corrupt("an IFD without entries, or with too many", at, found=count)
        return count * self.flavour.entry.size


@contextmanager
def opened(file: File) -> Iterator[Source]:
    """Open a TIFF file, for its IFDs."""
    if is_url(file.path):
        yield Source(file, file.read)
        return
    with opened_fd(file.path) as fd:
        yield Source(file, partial(os.pread, fd))


def find_description(path: str) -> tuple[int, int]:
    """Find that of the first page: first byte and length, or 0 for none or a short one."""
    with opened(File.at(path)) as source:
        entry = source.ifd(next(source.chain())).entries.get(DESCRIPTION)
        if entry is None or size_of(entry) <= len(entry[3]):
            return 0, 0
        return source.place(entry), size_of(entry)


def read_description(file: File, ifd: int | None = None) -> str:
    """Read that of the page whose IFD is at a byte, by default the first; empty if it has none."""
    with opened(file) as source:
        entries = source.ifd(next(source.chain()) if ifd is None else ifd).entries
        entry = entries.get(DESCRIPTION)
        if entry is None or size_of(entry) > MOST_TEXT:
            return ""
        return source.value(entry).rstrip(b"\0").decode("utf-8", "replace")


def is_ome_tiff(path: str, head: bytes) -> bool:
    """Return whether a file is a TIFF file, and describes its first page as OME-TIFF files do."""
    try:
        start, nbytes = find_description(path) if is_tiff(head) else (0, 0)
    except DatasetError:
        return False
    tail = min(nbytes, 64)
    return read_head(path, tail, start + nbytes - tail).rstrip(b"\0 \t\r\n").endswith(b"OME>")
