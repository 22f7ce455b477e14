"""Image file directories of TIFF files: their chain, and their entries as bytes.

Whatever a file says is checked against its length here, and no chain is followed in a circle: what
other modules see of an entry are bytes that are there.

Layout facts: TIFF, revision 6.0; the BigTIFF design.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from struct import Struct
from typing import Literal, NamedTuple

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.model.files import File

BLOCK_BYTES = 4096
"""So much is read at a time: an IFD and the values beside it."""
MOST_ENTRIES = 4096
"""No IFD has more."""
SIZES = dict(enumerate((1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 2, 8, 8, 8, 8), 1))
"""Bytes of a value, by the number of its type."""
UNSIGNED = {1: "u1", 3: "u2", 4: "u4", 13: "u4", 16: "u8", 18: "u8"}
"""Types of what counts, or says where something is."""
BYTE_ORDERS: Mapping[str, Literal["little", "big"]] = {"<": "little", ">": "big"}
OFFSETS, COUNTS = (324, 273, 513), (325, 279, 514)
"""Tags of where segments are, and of their bytes: tiles, strips, JPEG files of the old kind."""
AN_IFD = "an IFD"


class Flavour(NamedTuple):
    """How the numbers of a file are written.

    Attributes
    ----------
    order : {"<", ">"}
    word : struct.Struct
        An offset.
    number : struct.Struct
        How many entries an IFD has.
    entry : struct.Struct
        Tag, type, number of values, and the field that holds them or says where they are.
    """

    order: Literal["<", ">"]
    word: Struct
    number: Struct
    entry: Struct

    @classmethod
    def of(cls, order: Literal["<", ">"], word: str, number: str) -> Flavour:
        """Put it together from formats of :mod:`struct`."""
        size = Struct(word).size
        return cls(order, *map(Struct, (order + word, order + number, f"{order}HH{word}{size}s")))


FLAVOURS = {
    b"II*\0": Flavour.of("<", "I", "H"),
    b"MM\0*": Flavour.of(">", "I", "H"),
    b"II+\0\x08\0\0\0": Flavour.of("<", "Q", "Q"),
    b"MM\0+\0\x08\0\0": Flavour.of(">", "Q", "Q"),
}
"""What a file begins with says how its numbers are written. The place of the first IFD follows."""


class Entry(NamedTuple):
    """An entry of an IFD: type and number of its values, and the field that holds or finds them."""

    tag: int
    type: int
    length: int
    field: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of its values; 0 if nobody knows the type."""
        return SIZES.get(self.type, 0) * self.length

    @property
    def is_complete(self) -> bool:
        """Whether the field holds the values, and does not only say where they are."""
        return self.nbytes <= len(self.field)


class Ifd(NamedTuple):
    """An image file directory: where it is, and its entries by tag."""

    at: int
    entries: Mapping[int, Entry]


class Source:
    """An open TIFF file.

    Attributes
    ----------
    file : File
    magic : bytes
        What it begins with.
    flavour : Flavour
    """

    def __init__(self, file: File, fd: int) -> None:
        self.file = file
        self._fd = fd
        self._at = 0
        self._block = os.pread(fd, BLOCK_BYTES, 0)
        magic = next((magic for magic in FLAVOURS if self._block.startswith(magic)), None)
        if magic is None:
            raise CorruptFileError(
                "not a TIFF file", path=file.path, found=f"{self._block[:8]!r} at its start"
            )
        self.magic = magic
        self.flavour = FLAVOURS[magic]

    def read(self, at: int, nbytes: int, what: str) -> bytes:
        """Read bytes.

        Raises
        ------
        TruncatedFileError
            The file ends before.
        """
        start = at - self._at
        if 0 <= start <= len(self._block) - nbytes:
            return self._block[start : start + nbytes]
        if at + nbytes <= self.file.size:
            self._at, self._block = at, os.pread(self._fd, max(nbytes, BLOCK_BYTES), at)
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
        """Say where the IFDs of the main chain are.

        Raises
        ------
        CorruptFileError
            There is none, or the chain comes back to one.
        """
        at = self._word(len(self.magic))
        if not at:
            raise CorruptFileError("the file has no pages", path=self.file.path)
        seen = set[int]()
        while at:
            if at in seen:
                raise self._corrupt("the chain of IFDs goes in a circle", at)
            seen.add(at)
            following = self._word(at + self.flavour.number.size + self._entries_bytes(at))
            yield at
            at = following

    def ifd(self, at: int) -> Ifd:
        """Read an IFD."""
        flavour = self.flavour
        nbytes = self._entries_bytes(at)
        data = self.read(at + flavour.number.size, nbytes, AN_IFD)
        entries = list(map(Entry._make, flavour.entry.iter_unpack(data)))
        # Of two entries with one tag, the first counts.
        return Ifd(at, {entry.tag: entry for entry in reversed(entries)})

    def value(self, entry: Entry) -> bytes:
        """Read the values of an entry."""
        nbytes = entry.nbytes
        if entry.is_complete:
            return entry.field[:nbytes]
        (at,) = self.flavour.word.unpack(entry.field)
        return self.read(at, nbytes, "the values of an entry")

    def numbers(self, entry: Entry) -> array[int]:
        """Read the values of an entry that counts, or says where something is.

        Raises
        ------
        CorruptFileError
            They are no whole numbers, or reach beyond what any file has.
        """
        kind, data = UNSIGNED.get(entry.type), self.value(entry)
        if entry.length == 1 and kind:
            numbers = [int.from_bytes(data, BYTE_ORDERS[self.flavour.order])]
        else:
            numbers = np.frombuffer(data, self.flavour.order + (kind or "u1")).tolist()
        if not kind or (kind == "u8" and max(numbers, default=0) >> 62):
            raise CorruptFileError(
                "an entry finds nothing", path=self.file.path, found=f"type {entry.type}"
            )
        return array("q", numbers)

    def _word(self, at: int) -> int:
        word = self.flavour.word
        number: int = word.unpack(self.read(at, word.size, AN_IFD))[0]
        return number

    def _entries_bytes(self, at: int) -> int:
        flavour = self.flavour
        (count,) = flavour.number.unpack(self.read(at, flavour.number.size, AN_IFD))
        if not 0 < count <= MOST_ENTRIES:
            raise self._corrupt("an IFD without entries, or with too many", at, count)
        nbytes: int = flavour.entry.size * count
        return nbytes

    def _corrupt(self, problem: str, at: int, found: int | None = None) -> CorruptFileError:
        return CorruptFileError(problem, path=self.file.path, where=f"byte {at}", found=found)


@contextmanager
def opened(file: File) -> Iterator[Source]:
    """Open a TIFF file, for its IFDs.

    Raises
    ------
    CorruptFileError
        It is none.
    """
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield Source(file, fd)
    finally:
        os.close(fd)


def miniature(source: Source, values: Mapping[int, tuple[Entry, bytes]]) -> bytes:
    """Make a TIFF file of one IFD and its values, without pixels.

    This is all of a file that another library gets to see: it is small, and leads nowhere.

    Parameters
    ----------
    source : Source
        The file that it is a part of.
    values : mapping
        Entries and their values, by tag.
    """
    word, number, entry = source.flavour[1:]
    first = len(source.magic) + word.size
    behind = first + number.size + entry.size * len(values) + word.size
    entries, after = [], b""
    for _, (stored, value) in sorted(values.items()):
        field = value if len(value) <= word.size else word.pack(behind + len(after))
        entries.append(entry.pack(*stored[:3], field))
        if field is not value:
            after += value + b"\0" * (len(value) % 2)
    start = [source.magic, word.pack(first), number.pack(len(values))]
    return b"".join([*start, *entries, word.pack(0), after])


def small_values(
    source: Source, entries: Mapping[int, Entry], most_bytes: int
) -> dict[int, tuple[Entry, bytes]]:
    """Read the values of all entries that are there and not longer, by tag."""
    values = {}
    for tag, entry in entries.items():
        if 0 < entry.nbytes <= most_bytes:
            try:
                values[tag] = entry, source.value(entry)
            except DatasetError:  # somewhere else, and nobody needs them
                continue
    return values
