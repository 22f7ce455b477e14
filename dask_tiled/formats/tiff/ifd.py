"""Image file directories (IFDs) of TIFF files: chain, entries, and description.

All values are checked against the file length, and cyclic chains end: other modules get bytes that
exist.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from struct import Struct
from typing import Any, Literal, NamedTuple, TypeAlias

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.files.file import File, opened_fd, read_head
from dask_tiled.files.paths import is_url
from dask_tiled.system.files import pread

Entry: TypeAlias = tuple[int, int, int, bytes]
"""Tag, type, number of values, and the field that holds them or their offset."""
Values: TypeAlias = dict[int, tuple[Entry, bytes]]  # entries and their values, by tag

BLOCK_BYTES = 4096  # bytes read at a time: an IFD with the values next to it
MOST_ENTRIES = 4096  # maximum number of entries of an IFD
LETTERS = dict(enumerate("BsHIIbshiifdI", 1)) | dict(enumerate("QqQ", 16))
"""Types of numbers and text by type number, as :mod:`struct` calls them."""
RATIONALS = {5, 10}  # two numbers each
SIZES = {kind: struct.calcsize(one) << (kind in RATIONALS) for kind, one in LETTERS.items()}
"""Bytes of a value, by type number."""
INTEGERS = {k: one for k, one in LETTERS.items() if k not in RATIONALS and one not in "sfd"}
UNSIGNED = {k: one for k, one in INTEGERS.items() if one.isupper()}  # counts and offsets
OFFSETS, COUNTS = (324, 273, 513), (325, 279, 514)
"""Tags of segment offsets and segment sizes: tiles, strips, old-style JPEG files."""
SUB_IFDS = 330  # the tag of pyramid levels
DESCRIPTION = 270  # the tag of a free text
MOST_TEXT = 1 << 26
END_OF_OME, BLANK = b"OME>", b"\0 \t\r\n"
"""End of the last tag of OME-XML, and the bytes that may follow it."""
PADDED = 64, 1 << 12, 1 << 20
"""Look for the end in this many bytes, one after the other."""


class Flavour(NamedTuple):
    """Encoding of numbers in a file: an offset, the number of entries of an IFD, an entry."""

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
"""Encoding of numbers by the first bytes of a file, which the offset of the first IFD follows."""


def is_tiff(head: bytes) -> bool:
    """Return whether a file begins like TIFF."""
    return head.startswith(tuple(FLAVOURS))


def size_of(entry: Entry) -> int:
    """Return the bytes of an entry's values; 0 for unknown types."""
    return SIZES.get(entry[1], 0) * entry[2]


def unpack(order: str, kind: int, value: bytes) -> tuple[Any, ...]:
    """Return the numbers in bytes of one type."""
    letter = LETTERS[kind]
    return struct.unpack(f"{order}{len(value) // struct.calcsize(letter)}{letter}", value)


class Ifd(NamedTuple):
    """An IFD of an open file: its offset, and its entries by tag."""

    source: OpenTiff
    at: int
    end: int  # of the entries
    entries: dict[int, Entry]

    @property
    def following(self) -> int:
        """Offset of the next IFD in the chain, or 0."""
        return self.source.number(self.source.flavour.word, self.end)

    def first_of(self, tags: Iterable[int]) -> Entry | None:
        """Return the entry of the first of some tags that is there; None without any."""
        return next((self.entries[tag] for tag in tags if tag in self.entries), None)

    def small_values(self, tags: Iterable[int], most: int) -> Values:
        """Read the values of some tags; skip values of more than ``most`` bytes."""
        values = {}
        for tag in tags:
            entry = self.entries.get(tag)
            if entry is not None and 0 < size_of(entry) <= most:
                with suppress(DatasetError):  # out of reach, and not needed
                    values[tag] = entry, self.source.value(entry)
        return values

    def room(self, at: int) -> int:
        """Return the bytes from an offset to the next IFD or value, or to the end of the file."""
        source = self.source
        long = (entry for entry in self.entries.values() if size_of(entry) > len(entry[3]))
        places = [self.at, self.following, *map(source.place, long), source.file.size]
        return min((place for place in places if place > at), default=at) - at

    @property
    def description(self) -> str:
        """The description of the page; empty if there is none."""
        entry = self.entries.get(DESCRIPTION)
        if entry is None or size_of(entry) > MOST_TEXT:
            return ""
        return self.source.value(entry).rstrip(b"\0").decode("utf-8", "replace")

    def corrupt(self, problem: str, **details: Any) -> CorruptFileError:
        """Return an error about the IFD."""
        return self.source.corrupt(problem, self.at, **details)


class OpenTiff:
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
        """Read bytes; `what` names them in the error for a short file."""
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

    def chain(self) -> Iterator[Ifd]:
        """Yield the IFDs of the main chain."""
        at = self.number(self.flavour.word, len(self.magic))
        if not at:
            raise self.corrupt("the file has no pages", len(self.magic))
        seen = set[int]()
        while at:
            if at in seen:
                raise self.corrupt("the chain of IFDs is cyclic", at)
            seen.add(at)
            ifd = self.ifd(at)
            at = ifd.following
            yield ifd

    @cached_property
    def first(self) -> Ifd:
        """The first IFD."""
        return next(self.chain())

    def ifd(self, at: int) -> Ifd:
        """Read an IFD."""
        _, _, number, entry = self.flavour
        count, start = self.number(number, at), at + number.size
        if not 0 < count <= MOST_ENTRIES:
            raise self.corrupt("an IFD has no entries, or too many", at, found=count)
        fields = self.read(start, count * entry.size)
        entries = [*entry.iter_unpack(fields)]
        # If a tag occurs twice, the first entry wins.
        return Ifd(self, at, start + len(fields), {one[0]: one for one in reversed(entries)})

    def value(self, entry: Entry) -> bytes:
        """Read the values of an entry."""
        nbytes, field = size_of(entry), entry[3]
        if nbytes <= len(field):
            return field[:nbytes]
        return self.read(self.place(entry), nbytes, "the values of an entry")

    def place(self, entry: Entry) -> int:
        """Return the offset of values that do not fit into the entry."""
        return int(self.flavour.word.unpack(entry[3])[0])

    def numbers(self, entry: Entry) -> array[int]:
        """Read the values of an entry of counts or offsets."""
        tag, kind, length, _ = entry
        try:
            form = f"{self.flavour.order}{length}{UNSIGNED[kind]}"
            return array("q", struct.unpack(form, self.value(entry)))
        except (KeyError, OverflowError) as error:
            found = f"type {kind} of tag {tag}"
            raise self.corrupt(
                "an entry of offsets or counts has an invalid type", found=found
            ) from error

    def corrupt(self, problem: str, at: int | None = None, **details: Any) -> CorruptFileError:
        """Return an error about the IFD at an offset."""
        where = None if at is None else f"byte {at}"
        return CorruptFileError(problem, path=self.file.path, where=where, **details)

    def number(self, form: Struct, at: int) -> int:
        """Read a number."""
        return int(form.unpack(self.read(at, form.size))[0])


@contextmanager
def opened(file: File) -> Iterator[OpenTiff]:
    """Open a TIFF file for reading IFDs."""
    if is_url(file.path):
        yield OpenTiff(file, file.read)
        return
    with opened_fd(file.path) as fd:
        yield OpenTiff(file, partial(pread, fd))


def find_description(path: str) -> tuple[int, int]:
    """Return offset and length of the first page's description; 0 if it is absent or short."""
    with opened(File.at(path)) as source:
        entry = source.first.entries.get(DESCRIPTION)
        if entry is None or size_of(entry) <= len(entry[3]):
            return 0, 0
        return source.place(entry), size_of(entry)


def is_ome_tiff(path: str, head: bytes) -> bool:
    """Return whether a file is a TIFF file whose first description is OME-XML."""
    try:
        start, nbytes = find_description(path) if is_tiff(head) else (0, 0)
    except DatasetError:
        return False
    if nbytes < len(END_OF_OME):
        return False
    for tail in PADDED:
        end = read_head(path, min(nbytes, tail), start + max(0, nbytes - tail)).rstrip(BLANK)
        if len(end) >= len(END_OF_OME):
            return end.endswith(END_OF_OME)
    return False
