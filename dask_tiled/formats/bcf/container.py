"""The container of Bruker's composite files: entries in chunks, which may be packed by zlib.

Layout facts: RosettaSciIO's reader, and real files.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.formats.tools.files import read_exactly
from dask_tiled.model.indexing import Bytes, Index

MAGIC = b"AAMVHFSS"
FIRST, HEADER = 0x118, 32
"""Offset of the first chunk, and bytes before the content of each."""
CONTAINER: tools.Fields = {
    "chunk": (0x128, "u4"), "tree": (0x140, "u4"), "entries": (0x144, "u4"),
}  # fmt: skip
ENTRY: tools.Fields = {"table": (0, "i4"), "length": (4, "u8"), "name": (0xE0, "S256")}
ENTRY_BYTES, MOST_ENTRIES, MOST_CHUNK = 512, 1 << 16, 1 << 24
PACKED = b"AACS"
PACKED_HEADER, BLOCK_HEADER, MOST_BLOCK = 0x80, 16, 1 << 26
PART_BYTES = 1 << 19
"""Bytes of an entry that are read at once, if they are not packed."""


class EntryContent(NamedTuple):
    """The content of an entry, packed or not, in consecutive chunks."""

    file: tools.File
    chunk: int  # bytes of a chunk, with its header
    start: int  # offset in the file of the first chunk
    length: int

    def place(self, at: Any) -> Any:
        """Return the offset in the file of a byte of the content, or of several."""
        number, inside = np.divmod(at, self.chunk - HEADER)
        return self.start + number * self.chunk + HEADER + inside

    def read(self, start: int, stop: int) -> Bytes:
        """Read a part of the content, still packed."""
        first, last = int(self.place(start)), int(self.place(min(stop, self.length) - 1)) + 1
        data = read_exactly(self.file.path, last - first, first, "an entry")
        return unframed(np.frombuffer(data, np.uint8), first, self.chunk)

    def blocks(self) -> tuple[int, Index | None]:
        """Return unpacked bytes of a block, and positions of blocks and their end; 1 if plain."""
        header = self.read(0, PACKED_HEADER).tobytes()
        if not header.startswith(PACKED) or len(header) < PACKED_HEADER:
            return 1, None
        size, _, count = struct.unpack_from("<III", header, 4)
        places = [PACKED_HEADER]
        while len(places) <= count and places[-1] + BLOCK_HEADER <= self.length:
            nbytes = self.read(places[-1], places[-1] + 4).tobytes()
            places.append(places[-1] + BLOCK_HEADER + int.from_bytes(nbytes, "little"))
        if not 0 < size <= MOST_BLOCK or places[-1] > self.length or len(places) != count + 1:
            what, found = "the packed blocks do not fit", f"{count} of {size} bytes"
            raise tools.TruncatedFileError(what, path=self.file.path, found=found)
        return size, np.array(places)

    def parts(self) -> Iterator[Bytes]:
        """Yield the content, unpacked."""
        size, places = self.blocks()
        step = max(1, PART_BYTES // size)
        edges = range(self.length) if places is None else places[:-1].tolist()
        for start, stop in pairwise([*edges[::step], self.length]):
            part = self.read(start, stop)
            yield part if places is None else unpacked(part, size, self.file.path, start)


def unframed(data: Bytes, offset: int, chunk: int) -> Bytes:
    """Remove the headers of chunks from bytes of a file that begin in the content of a chunk."""
    before = (offset - FIRST) % chunk
    after = -(before + len(data)) % chunk
    chunks = np.pad(data, (before, after)).reshape(-1, chunk)
    return chunks[:, HEADER:].reshape(-1)[before - HEADER :][: -after or None]


def unpacked(data: Bytes, size: int, path: str, at: int) -> Bytes:
    """Unpack blocks that follow one another; all but the last have ``size`` bytes."""
    parts, stop = [], 0
    try:
        while stop + BLOCK_HEADER <= len(data):
            start = stop + BLOCK_HEADER
            stop = start + int.from_bytes(data[stop : stop + 4].tobytes(), "little")
            parts.append(zlib.decompressobj().decompress(data[start:stop].data, size))
            if stop < len(data) and len(parts[-1]) != size:
                raise zlib.error(f"{len(parts[-1])} bytes")  # noqa: TRY301
    except zlib.error as error:
        what, where, expected = "a packed block is damaged", f"byte {at}", f"{size} bytes"
        raise tools.CorruptFileError(
            what, path=path, where=where, expected=expected, found=str(error)
        ) from error
    return np.frombuffer(b"".join(parts), np.uint8)


def read_entry(file: tools.File, name: str) -> EntryContent:
    """Find an entry by its name, and check that its chunks are consecutive."""
    header = tools.read_fields(file.path, CONTAINER)
    allowed = {"chunk": range(ENTRY_BYTES, MOST_CHUNK), "entries": range(1, MOST_ENTRIES)}
    tools.check_fields(file.path, header, CONTAINER, allowed, "invalid container")
    chunk, nbytes = header["chunk"], header["entries"] * ENTRY_BYTES
    tree = b"".join(_chain(file, chunk, header["tree"], nbytes, "the tree"))
    listed = (tools.parse_fields(tree[at:], ENTRY) for at in range(0, nbytes, ENTRY_BYTES))
    entry = next((one for one in listed if one["name"] == name), None)
    if entry is None:
        raise tools.DatasetError("the file has no such entry", path=file.path, expected=name)
    count = -(-entry["length"] // (chunk - HEADER))
    if not 0 < count <= file.size // chunk:
        what = "the entry is longer than the file"
        raise tools.TruncatedFileError(what, path=file.path, where=name, found=entry["length"])
    table = b"".join(_chain(file, chunk, entry["table"], 4 * count, f"the chunks of {name}"))
    numbers = np.frombuffer(table, "<u4", count).astype(np.int64)
    if (np.diff(numbers) != 1).any():
        what, found = "scattered chunks are not supported", f"after {numbers[0]}"
        raise tools.DatasetError(what, path=file.path, where=name, found=found)
    return EntryContent(file, chunk, FIRST + int(numbers[0]) * chunk, entry["length"])


def _chain(file: tools.File, chunk: int, number: int, nbytes: int, within: str) -> Iterator[bytes]:
    """Read chunks that each name the next one."""
    for _ in range(-(-nbytes // (chunk - HEADER))):
        if number < 0:
            problem = "a chunk leads nowhere"
            raise tools.CorruptFileError(problem, path=file.path, where=within, found=number)
        data = read_exactly(file.path, chunk, FIRST + number * chunk, within)
        (number,) = struct.unpack_from("<i", data)
        yield data[HEADER:]
